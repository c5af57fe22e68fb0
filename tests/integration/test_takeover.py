"""A decider that is killed is replaced within ten seconds (real Kafka, processes)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from broker_engine.log.confluent import ConfluentLog
from broker_engine.topics import Namespace
from broker_engine.worker import Client, task
from tests.support import promises
from tests.support.roles import KEY, RunningEngine, crowded, decider_role, running_engine, tell, until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

TAKEOVER_SECONDS = 10


@task(name="noop", retryCount=0)
def noop() -> None:
    """Nothing to do."""


def test_another_decider_takes_over_within_ten_seconds(bootstrap: str, namespace: str, tmp_path: Path) -> None:
    """Two deciders share the partitions. One is killed; what was its is decided by the other."""
    with running_engine(bootstrap, namespace, tmp_path / "survivor", partitions=4) as engine:
        engine.work(noop)
        other = decider_role(
            bootstrap, namespace, tmp_path / "victim", slot="1", partitions=4, log_file=tmp_path / "victim.log"
        )
        try:
            until(lambda: len(engine.processor.active) == 2, what="the second decider")
            until(lambda: "takeover.done" in (tmp_path / "victim.log").read_text(), what="its takeover")
            for number in range(20):
                engine.client.start_task("noop", workflow_id=f"before-{number}")
            other.kill()
            killed = time.monotonic()
            for number in range(40):
                engine.client.start_async("noop", workflow_id=f"after-{number}", definition=ALONE, wants_answer=False)
            engine.client.flush()
            until(lambda: len(engine.processor.active) == 4, what="the takeover")
            seconds = time.monotonic() - killed

            def ended() -> bool:
                return sum(state.status.is_terminal for state in engine.client.list()) == 60

            until(ended, what="the end of every workflow")
        finally:
            other.stop()
        tell(f"takeover after kill -9 of one of two deciders: {seconds:.1f} s")
        assert seconds <= TAKEOVER_SECONDS * crowded()
        assert check(engine) == []


ALONE = {"name": "noop", "tasks": [{"name": "noop", "taskReferenceName": "a"}]}


def check(engine: RunningEngine) -> list[str]:
    records = promises.Records(engine.namespace, engine.everything())
    return [
        *promises.one_schedule_per_hand_out(records),
        *promises.terminal_never_changes(records),
        *promises.no_transaction_was_torn(records),
        *promises.every_workflow_ends(records),
    ]


def test_the_same_slot_goes_on_after_kill_9(bootstrap: str, namespace: str, tmp_path: Path) -> None:
    """A single decider is killed in the middle of a load and started again with its slot."""
    log_file = tmp_path / "decider.log"
    role = decider_role(bootstrap, namespace, tmp_path / "data", partitions=2, log_file=log_file)
    log = ConfluentLog(bootstrap)
    try:
        until(lambda: log_file.read_text().count("takeover.done") == 2, what="the takeover")
        with Client(log, Namespace(namespace), key=KEY, timeout=60) as client:
            for number in range(200):
                client.start_async("noop", workflow_id=f"w{number}", definition=ALONE, wants_answer=False)
            client.flush()
            role.kill()
            killed = time.monotonic()
            role.start()
            until(lambda: len(list(client.list())) == 200, what="every workflow")
            tell(f"restarted and through its backlog in {time.monotonic() - killed:.1f} s")
    finally:
        role.stop()
