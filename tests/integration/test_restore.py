"""A broker that is killed in mid-run: everything waits, reconnects and ends (own broker)."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_engine.errors import NoAnswer
from broker_engine.runtime.local_broker import LocalBroker
from broker_engine.worker import TaskContext, TaskFailed, task
from tests.support import promises
from tests.support.roles import running_engine, until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

COUNT = 150


@task(name="sometimes", retryCount=2, retryDelaySeconds=1, responseTimeoutSeconds=20)
def sometimes(n: int, context: TaskContext) -> dict[str, int]:
    if n % 5 == 0 and context.attempt == 0:
        raise TaskFailed("not yet")
    return {"n": n}


ALONE = {
    "name": "sometimes",
    "tasks": [
        {"name": "sometimes", "taskReferenceName": name, "inputParameters": {"n": "${workflow.input.n}"}}
        for name in ("a", "b")
    ],
}


def test_a_broker_that_is_killed_and_started_again_costs_nothing(tmp_path: Path) -> None:
    with (
        LocalBroker.start(tmp_path / "kafka") as broker,
        running_engine(broker.bootstrap, "broken", tmp_path / "engine", partitions=2) as engine,
    ):
        engine.work(sometimes)
        until(lambda: "sometimes" in engine.client.task_definitions(), what="the registration")
        for number in range(COUNT):
            engine.client.start_async(
                "sometimes", {"n": number}, workflow_id=f"w{number}", definition=ALONE, wants_answer=False
            )
        engine.client.flush()
        broker.kill()
        broker.restart()

        def ended() -> bool:
            try:
                states = list(engine.client.list())
            except NoAnswer:
                return False
            return len(states) == COUNT and all(state.status.is_terminal for state in states)

        until(ended, 120, what="the end of every workflow")
        states = list(engine.client.list())
        records = promises.Records(engine.namespace, engine.everything())

    assert {state.status.value for state in states} == {"COMPLETED"}
    assert promises.one_schedule_per_hand_out(records) == []
    assert promises.terminal_never_changes(records) == []
    assert promises.no_retry_before_its_delay(records) == []
