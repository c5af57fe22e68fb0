"""kill -9 of a worker on real Kafka: its work goes to another one long before the response time-out of an hour."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support.hanging import hangs_once
from tests.support.roles import crowded, running_engine, tell, until, worker_role

pytestmark = pytest.mark.kafka

#: Ten seconds of silence, and the looks at it.
RETRIED_SECONDS = 15


def test_the_work_of_a_killed_worker_is_retried_within_15_s(bootstrap: str, namespace: str, tmp_path: Path) -> None:
    with running_engine(bootstrap, namespace, tmp_path, partitions=2) as engine:
        role = worker_role(bootstrap, namespace, "tests.support.hanging", log_file=tmp_path / "worker.log")
        try:
            until(lambda: "hangs-once" in engine.client.task_definitions(), what="the registration")
            started = engine.client.start_task("hangs-once")
            until(lambda: engine.client.get(started).tasks[0].status == "IN_PROGRESS", what="the start")
            role.kill()
            killed = time.monotonic()
            engine.work(hangs_once)
            until(lambda: len(engine.client.get(started).tasks) == 2, what="the retry")
            seconds = time.monotonic() - killed
            view = engine.client.wait(started, 60)
        finally:
            role.stop()

    tell(f"the work of a killed worker was retried after {seconds:.1f} s")
    first, second = view.tasks
    assert (first.status, first.reason_code, first.attempt) == ("TIMED_OUT", "WORKER_LOST", 0)
    assert (second.status, second.attempt) == ("COMPLETED", 1)
    assert seconds <= RETRIED_SECONDS * crowded()
