"""Limits on real Kafka: never more than N in progress, also when the decider is killed."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from statistics import quantiles

import pytest

from broker_engine.log.confluent import ConfluentLog
from broker_engine.model.status import Phase
from broker_engine.runtime.namespace import ensure
from broker_engine.topics import Namespace, Topic
from broker_engine.wire.codecs import EVENT
from broker_engine.wire.signing import Signer
from broker_engine.worker import Client, Worker, task
from tests.support import promises
from tests.support.roles import KEY, Role, decider_role, read_all, tell, until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

TASKS, LIMIT, PARTITIONS = 60, 2, 2


@task(name="narrow", retryCount=0, concurrentExecLimit=LIMIT, concurrency=8)
def narrow() -> None:
    time.sleep(0.02)


def test_sixty_tasks_under_limit_2_are_never_more_than_two_over_a_kill_9(
    bootstrap: str, namespace: str, tmp_path: Path
) -> None:
    log, names = ConfluentLog(bootstrap), Namespace(namespace)
    ensure(log, names, partitions=PARTITIONS, signer=Signer(KEY), now_ms=time.time_ns() // 1_000_000)
    decider = decider_role(bootstrap, namespace, tmp_path / "d", partitions=PARTITIONS, log_file=tmp_path / "d.log")
    client = Client(log, names, key=KEY, timeout=60)
    worker = Worker(log, [narrow], namespace=names, client=client, grace_seconds=0.5)
    thread = running(worker)
    try:
        until(lambda: "narrow" in client.task_definitions(), what="the registration")
        for number in range(TASKS):
            client.start_async("narrow", workflow_id=f"narrow-{number}", definition=ALONE, wants_answer=False)
        client.flush()
        until(lambda: ended(client) >= TASKS // 4, what="the first quarter")
        killed(decider)
        until(lambda: ended(client) == TASKS, what="the end of every workflow")
    finally:
        worker.stop()
        thread.join(20)
        client.close()
        decider.stop()

    records = promises.Records(names, read_all(log, [names.topic(Topic.EVENTS), names.topic(Topic.TASK_STATE)]))
    assert promises.never_more_in_progress(records, {"narrow": LIMIT}) == []
    waits = sorted(gaps(records))
    cuts = quantiles(waits, n=100)
    tell(f"from a release to the next start, limit {LIMIT}: p50 {cuts[49]:.0f} ms, p99 {cuts[98]:.0f} ms")


def gaps(records: promises.Records) -> list[int]:
    """From each release to the start that took its slot, in log time."""
    events = [EVENT.decode(record.value) for record in records.of(Topic.EVENTS)]
    starts = sorted(e.at_ms for e in events for step in e.transitions if step.to_phase is Phase.RUNNING)
    ends = sorted(e.at_ms for e in events for step in e.transitions if step.from_phase is Phase.RUNNING)
    return [start - end for start, end in zip(starts[LIMIT:], ends, strict=False)]


ALONE = {"name": "narrow", "tasks": [{"name": "narrow", "taskReferenceName": "a"}]}


def ended(client: Client) -> int:
    return sum(state.status.is_terminal for state in client.list())


def killed(role: Role) -> None:
    role.kill()
    role.start()


def running(worker: Worker) -> threading.Thread:
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    return thread
