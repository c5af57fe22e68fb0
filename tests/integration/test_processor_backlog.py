"""Work that was cancelled, timed out or handed out again while it lay in a backlog never runs (real Kafka)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from broker_engine.worker import TaskContext, task
from tests.support.roles import running_engine, until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


def test_void_work_in_a_backlog_never_runs(bootstrap: str, namespace: str, tmp_path: Path) -> None:
    """The queue has no worker for six seconds. Then one finds: cancelled, timed-out and good work, all of it old, so it
    asks before it runs anything."""
    ran: list[tuple[str, int]] = []

    @task(name="lies", retryCount=0)
    def lies(who: str, context: TaskContext) -> None:
        ran.append((who, context.attempt))

    @task(name="expires", retryCount=1, retryDelaySeconds=0, pollTimeoutSeconds=4, timeoutPolicy="RETRY")
    def expires(who: str, context: TaskContext) -> None:
        ran.append((who, context.attempt))

    with running_engine(bootstrap, namespace, tmp_path, partitions=2) as engine:
        client = engine.client
        client.register_task(lies.definition or {})
        client.register_task(expires.definition or {})
        cancelled = [client.start_task("lies", {"who": f"cancelled-{n}"}) for n in range(5)]
        good = [client.start_task("lies", {"who": f"good-{n}"}) for n in range(5)]
        timed_out = client.start_task("expires", {"who": "expired"})
        for workflow_id in cancelled:
            client.terminate(workflow_id, "changed my mind")
        started = time.monotonic()
        until(lambda: len(client.get(timed_out).tasks) == 2, what="the poll time-out")
        time.sleep(max(0.0, 6 - (time.monotonic() - started)))
        engine.work(lies, expires)
        for workflow_id in good:
            assert client.wait(workflow_id, 60).status == "COMPLETED"
        view = client.wait(timed_out, 60)
        statuses = {client.get(workflow_id).status for workflow_id in cancelled}

    assert [task.status for task in view.tasks] == ["TIMED_OUT", "COMPLETED"]
    assert statuses == {"TERMINATED"}
    assert sorted(ran) == sorted([("expired", 1)] + [(f"good-{n}", 0) for n in range(5)])
