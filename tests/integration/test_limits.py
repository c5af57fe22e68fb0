"""Limits on real Kafka: never more than allowed, no slot lost, the next start soon after a release."""

from __future__ import annotations

import os
import time
from pathlib import Path
from statistics import quantiles

import pytest

from broker_engine.log.confluent import ConfluentLog
from broker_engine.log.ports import Record
from broker_engine.model.status import Phase
from broker_engine.topics import Namespace, Topic
from broker_engine.wire.codecs import EVENT
from broker_engine.wire.records import TransitionEvent
from broker_engine.worker import Client, task
from tests.support import promises
from tests.support.narrow import LIMIT
from tests.support.roles import KEY, Role, crowded, decider_role, read_all, running_engine, tell, until, worker_role

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

TASKS, PARTITIONS, WORKERS = 60, 2, 8
ALONE = {"name": "narrow", "tasks": [{"name": "narrow", "taskReferenceName": "a"}]}
RATE, WINDOW_MS, DEMAND_SECONDS = 12, 5_000, 30


def test_under_limit_3_eight_workers_never_run_more_over_kills_of_the_limiter_and_of_a_holder(
    bootstrap: str, namespace: str, tmp_path: Path
) -> None:
    log, names = ConfluentLog(bootstrap), Namespace(namespace)
    decider = decider_role(bootstrap, namespace, tmp_path / "d", partitions=PARTITIONS, log_file=tmp_path / "d.log")
    workers: list[Role] = []
    try:
        until(lambda: (tmp_path / "d.log").read_text().count("takeover.done") == PARTITIONS, what="the takeover")
        for number in range(WORKERS):
            file = tmp_path / f"worker-{number}.log"
            workers.append(worker_role(bootstrap, namespace, "tests.support.narrow", log_file=file))
        with Client(log, names, key=KEY, timeout=60) as client:
            until(lambda: "narrow" in client.task_definitions(), what="the registration")
            holder = client.start_task("narrow", {"hold": True}, workflow_id="holder")
            until(lambda: client.get(holder).tasks[0].phase is Phase.RUNNING, what="the start of the one that holds")
            for number in range(TASKS):
                client.start_async("narrow", workflow_id=f"narrow-{number}", definition=ALONE, wants_answer=False)
            client.flush()
            until(lambda: ended(client) >= TASKS // 4, what="the first quarter")
            decider.kill()
            decider.start()
            until(lambda: ended(client) >= TASKS // 2, what="the first half")
            killed(workers, client.get(holder).tasks[0].worker_id or "")
            until(lambda: ended(client) == TASKS + 1, 120, what="the end of every workflow")
            left = [met for met in client.limits_in_use() if met.in_use or met.waiting]
    finally:
        for role in (*workers, decider):
            role.stop(5)

    assert left == []
    records = promises.Records(names, read_all(log, [names.topic(Topic.EVENTS), names.topic(Topic.TASK_STATE)]))
    assert promises.never_more_in_progress(records, {"narrow": LIMIT}) == []
    cuts = quantiles(gaps(records), n=100)
    tell(f"from a release to the next start, limit {LIMIT}: p50 {cuts[49]:.0f} ms, p99 {cuts[98]:.0f} ms")


def test_a_freed_slot_is_taken_soon(bootstrap: str, namespace: str, tmp_path: Path) -> None:
    """Nothing but one engine and one worker: the way of a slot, without the waits that crashes cause."""

    @task(name="narrow", concurrentExecLimit=2, concurrency=4)
    def narrow() -> None: ...

    with running_engine(bootstrap, namespace, tmp_path, partitions=PARTITIONS) as engine:
        engine.work(narrow)
        until(lambda: "narrow" in engine.client.task_definitions(), what="the registration")
        for number in range(TASKS):
            engine.client.start_async("narrow", workflow_id=f"n{number}", definition=ALONE, wants_answer=False)
        engine.client.flush()
        until(lambda: ended(engine.client) == TASKS, what="the end of every workflow")
        records = promises.Records(engine.namespace, engine.records(Topic.EVENTS))
        scheduled = sorted(
            record.timestamp_ms for record in engine.records(engine.namespace.schedule("default", "narrow"))
        )

    waits = gaps(records, 2)
    cuts = quantiles(waits, n=100)
    began = moments(records, to=Phase.RUNNING)
    on_queue = sorted(start - put for start, put in zip(began, scheduled, strict=True))
    tell(
        f"from a release to the next start: p50 {cuts[49]:.0f} ms, p99 {cuts[98]:.0f} ms, of it from the queue to the "
        f"start p50 {on_queue[len(on_queue) // 2]} ms; load {os.getloadavg()[0]:.1f}"
    )
    assert cuts[49] <= 100 * crowded()


def test_a_rate_of_12_per_5_s_is_used_up_and_never_exceeded(bootstrap: str, namespace: str, tmp_path: Path) -> None:
    @task(name="paced", rateLimitPerFrequency=RATE, rateLimitFrequencyInSeconds=WINDOW_MS // 1_000, concurrency=20)
    def paced() -> None: ...

    alone = {"name": "paced", "tasks": [{"name": "paced", "taskReferenceName": "a"}]}
    with running_engine(bootstrap, namespace, tmp_path, partitions=PARTITIONS) as engine:
        engine.work(paced)
        until(lambda: "paced" in engine.client.task_definitions(), what="the registration")
        for number in range(RATE * 8):
            engine.client.start_async("paced", workflow_id=f"paced-{number}", definition=alone, wants_answer=False)
        engine.client.flush()
        until(lambda: ended(engine.client) > 0, what="the first start")
        time.sleep(DEMAND_SECONDS)
        starts = start_times(engine.records(Topic.EVENTS), engine.records(Topic.COMMANDS))

    assert [
        later - first for first, later in zip(starts, starts[RATE:], strict=False) if later - first < WINDOW_MS
    ] == []
    within = [start for start in starts if start < starts[0] + DEMAND_SECONDS * 1_000]
    tell(f"a rate of {RATE} per {WINDOW_MS // 1_000} s: {len(within)} starts in {DEMAND_SECONDS} s")
    assert len(within) >= 66


def start_times(events: list[Record], commands: list[Record]) -> list[int]:
    """LogAppendTimes of the TaskStarted that were accepted."""
    appended = {(record.partition, record.offset): record.timestamp_ms for record in commands}
    decided = [EVENT.decode(record.value) for record in events]
    accepted = [(e.partition, e.offset) for e in decided for step in e.transitions if step.to_phase is Phase.RUNNING]
    return sorted(appended[place] for place in accepted)


def moments(records: promises.Records, *, to: Phase | None = None, of: Phase | None = None) -> list[int]:
    """Log times of the transitions to a phase, or from one."""
    events: list[TransitionEvent] = [EVENT.decode(record.value) for record in records.of(Topic.EVENTS)]
    return sorted(
        e.at_ms for e in events for step in e.transitions if (step.to_phase is to if to else step.from_phase is of)
    )


def gaps(records: promises.Records, limit: int = LIMIT) -> list[int]:
    """From each release to the start that took its slot, in log time."""
    starts, ends = moments(records, to=Phase.RUNNING), moments(records, of=Phase.RUNNING)
    return [start - end for start, end in zip(starts[limit:], ends, strict=False)]


def ended(client: Client) -> int:
    return sum(state.status.is_terminal for state in client.list())


def killed(workers: list[Role], worker_id: str) -> None:
    """kill -9 of the worker with this id, which names its process."""
    (role,) = [role for role in workers if f"-{role.pid}-" in worker_id]
    role.kill()
