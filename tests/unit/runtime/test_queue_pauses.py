"""Pausing a queue with everything that waits on it: what was there before follows, in order, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog

from broker_engine.errors import NotFound
from broker_engine.model.commands import QueueReady
from broker_engine.model.state import TaskState
from broker_engine.model.status import Phase
from broker_engine.runtime import queue_pauses as module
from broker_engine.testing import Engine
from tests.support.looking import commands

#: A pause is followed by all that waits within this time.
FOLLOWED_SECONDS = 2.0


@pytest.fixture
def engine() -> Iterator[Engine]:
    with structlog.testing.capture_logs(), Engine() as engine:
        engine.run()
        engine.register_task({"name": "work", "retryCount": 0})
        engine.register_task({"name": "other", "retryCount": 0})
        engine.run()
        yield engine


def task(engine: Engine, workflow_id: str) -> TaskState:
    (only,) = engine.workflow(workflow_id).tasks
    return only


def phases(engine: Engine, ids: list[str]) -> set[Phase]:
    return {task(engine, workflow_id).phase for workflow_id in ids}


def test_what_waits_is_held_within_two_seconds_and_resumed_it_runs(engine: Engine) -> None:
    ids = [engine.start_task("work") for _ in range(5)]
    engine.run()
    assert phases(engine, ids) == {Phase.QUEUED}

    engine.pause_queue("work")
    engine.run(FOLLOWED_SECONDS)
    assert phases(engine, ids) == {Phase.PAUSED}

    worker = engine.serve("work")
    engine.run(FOLLOWED_SECONDS)
    assert worker.ran == []
    engine.resume_queue("work")
    engine.run(FOLLOWED_SECONDS)
    assert phases(engine, ids) == {Phase.SUCCEEDED}


def test_other_queues_go_on(engine: Engine) -> None:
    engine.serve("other")
    engine.pause_queue("work")

    other = engine.start_task("other")
    engine.run(FOLLOWED_SECONDS)

    assert task(engine, other).phase is Phase.SUCCEEDED


def test_what_runs_goes_on(engine: Engine) -> None:
    engine.serve("work", takes_ms=lambda _work: 5_000)
    started = engine.start_task("work")
    engine.run(1)

    engine.pause_queue("work")
    engine.run(6)

    assert task(engine, started).phase is Phase.SUCCEEDED


def test_the_oldest_is_handed_out_first(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_AT_ONCE", 1)
    engine.pause_queue("work")
    ids = []
    for _ in range(4):
        ids.append(engine.start_task("work", workflow_id=f"same-{len(ids)}"))
        engine.run(1)

    engine.resume_queue("work")
    for _ in range(10):
        engine.run(0.6)

    by_partition: dict[int, list[str]] = {}
    for command, record in commands(engine, QueueReady):
        by_partition.setdefault(record.partition, []).append(command.key)
    assert sorted(key for keys in by_partition.values() for key in keys) == ids
    assert all(keys == sorted(keys) for keys in by_partition.values())


def test_a_queue_resumed_while_no_decider_runs_is_found_by_the_next_one(engine: Engine) -> None:
    engine.pause_queue("work", reason="look first")
    started = engine.start_task("work")
    engine.run(FOLLOWED_SECONDS)
    assert task(engine, started).phase is Phase.PAUSED

    (node,) = engine.nodes
    engine.resume_queue("work")
    node.kill()
    node.bury()
    node.start()
    engine.run(60)
    engine.run(FOLLOWED_SECONDS)

    assert task(engine, started).phase is Phase.QUEUED


def test_the_slot_of_what_is_taken_back_goes_to_others(engine: Engine) -> None:
    for name in ("work", "other"):
        lock = {"resourceLock": "${workflow.input.file}"}
        engine.register_task({"name": name, "retryCount": 0, **lock})
    first = engine.start_task("work", {"file": "a"})
    engine.run()
    second = engine.start_task("other", {"file": "a"})
    engine.serve("other")
    engine.run(1)
    assert task(engine, second).phase is Phase.QUEUED

    engine.pause_queue("work")
    engine.run(FOLLOWED_SECONDS)

    assert (task(engine, first).phase, task(engine, second).phase) == (Phase.PAUSED, Phase.SUCCEEDED)


def test_once_all_have_followed_nothing_more_is_sent(engine: Engine) -> None:
    started = [engine.start_task("work") for _ in range(3)]
    engine.run()
    engine.pause_queue("work")

    engine.run(30)

    assert len(commands(engine, QueueReady)) == len(started)


def test_a_queue_that_is_not_paused_cannot_be_resumed(engine: Engine) -> None:
    with pytest.raises(NotFound, match="queue:\\*:work is not paused"):
        engine.resume_queue("work")
