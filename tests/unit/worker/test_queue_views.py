"""What is told of queues: counted from what stands on the topics of an engine in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog

from broker_engine.testing import Engine
from broker_engine.topics import Topic
from broker_engine.wire.codecs import PRESENCE
from broker_engine.wire.records import WorkerPresence
from broker_engine.worker.queue_views import QueueView, QueueViews


@pytest.fixture
def engine() -> Iterator[Engine]:
    with structlog.testing.capture_logs(), Engine() as engine:
        engine.run()
        engine.register_task({"name": "work", "retryCount": 0})
        engine.run()
        yield engine


def views(engine: Engine) -> QueueViews:
    return QueueViews(engine.log, engine.namespace, engine.views)


def look(engine: Engine, name: str = "default/work") -> QueueView:
    (found,) = (view for view in views(engine).all(engine.clock.now_ms()) if view.name == name)
    return found


def tell(engine: Engine, worker: str, *, free: int = 4, is_leaving: bool = False) -> int:
    value = PRESENCE.encode(WorkerPresence(worker, "work", "default", 4, free, "1", 0, is_leaving))
    return engine.send_bytes(worker.encode(), value, 0, engine.namespace.topic(Topic.WORKERS)).timestamp_ms


def test_a_queue_without_work_or_workers_is_told_as_empty(engine: Engine) -> None:
    view = look(engine)

    assert (view.depth, view.running, view.lag, view.workers) == (0, 0, 0, [])
    assert (view.last_poll_ms, view.oldest_waiting_ms) == (None, None)


def test_what_waits_is_counted_and_dated_by_the_oldest(engine: Engine) -> None:
    engine.start_task("work")
    (first,) = views(engine).waiting("default", "work")
    engine.run(5)
    engine.start_task("work")
    view = look(engine)

    assert (view.waiting, view.lag, view.is_lag_exact) == ({"worker": 2}, 2, True)
    assert view.oldest_waiting_ms == first.handed_out_at_ms


def test_the_line_begins_with_what_was_handed_out_first(engine: Engine) -> None:
    started = []
    for _ in range(3):
        started.append(engine.start_task("work"))
        engine.run(1)

    assert [task.workflow_id for task in views(engine).waiting("default", "work")] == started


def test_what_runs_is_no_longer_in_the_line(engine: Engine) -> None:
    engine.serve("work", takes_ms=lambda _work: 60_000)
    engine.start_task("work")
    engine.run(1)
    view = look(engine)

    assert (view.depth, view.running, view.lag, view.oldest_waiting_ms) == (0, 1, 0, None)


def test_ended_tasks_are_not_counted(engine: Engine) -> None:
    engine.serve("work")
    engine.start_task("work")
    engine.run(1)
    view = look(engine)

    assert (view.depth, view.running, view.lag) == (0, 0, 0)


def test_what_a_limit_holds_back_is_told_apart(engine: Engine) -> None:
    engine.register_task({"name": "work", "concurrentExecLimit": 1})
    engine.start_task("work")
    engine.start_task("work")
    engine.run(1)
    view = look(engine)

    assert view.waiting == {"worker": 1, "slot": 1}
    assert view.lag == 1


def test_live_workers_and_their_free_slots_are_told(engine: Engine) -> None:
    tell(engine, "one", free=3)
    engine.clock.advance(4_000)
    newest_ms = tell(engine, "two", free=1)
    view = look(engine)

    assert (sorted(worker.worker_id for worker in view.workers), view.free) == (["one", "two"], 4)
    assert view.last_poll_ms == newest_ms


def test_a_worker_that_left_or_fell_silent_is_none_but_its_last_word_counts(engine: Engine) -> None:
    tell(engine, "silent")
    engine.clock.advance(10_001)
    gone_ms = tell(engine, "gone", is_leaving=True)
    view = look(engine)

    assert (view.workers, view.last_poll_ms) == ([], gone_ms)


def test_a_queue_that_only_workers_know_has_no_topic(engine: Engine) -> None:
    presence = WorkerPresence("one", "new", "eu", 4, 4, "1", 0)
    engine.send_bytes(b"one", PRESENCE.encode(presence), 0, engine.namespace.topic(Topic.WORKERS))

    assert look(engine, "eu/new").lag is None


def test_a_long_backlog_is_told_by_offsets(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker_engine.worker.queue_views.MAX_COUNTED", 3)
    for _ in range(4):
        engine.start_task("work")
    view = look(engine)

    assert not view.is_lag_exact
    assert view.lag is not None
    assert 4 <= view.lag <= 8
