"""Nothing waits on a record alone: a lost delay record and a hand-out that nears its retention are made good."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker_engine.model.commands import DelayDue
from broker_engine.model.limits import HAND_OUT_LIFETIME_MS
from broker_engine.testing import Engine
from broker_engine.testing.worker import SteppedWorker
from broker_engine.worker import TaskFailed
from tests.support.looking import commands, delays, last, name_in, schedules, workflow


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine() as engine:
        engine.run()
        engine.register_task({"name": "work", "retryCount": 3, "retryDelaySeconds": 10, "timeoutSeconds": 0})
        yield engine


def fails_once(engine: Engine) -> SteppedWorker:
    def handler(_data: object, work: object) -> dict[str, object]:
        if work.attempt == 0:  # type: ignore[attr-defined]  # a ScheduledTask
            raise TaskFailed("not yet")
        return {}

    return engine.serve("work", handler)


def test_a_lost_delay_record_is_made_good_a_minute_later(engine: Engine) -> None:
    """Without the deadline behind it the retry would wait for ever on a record that no longer exists."""
    engine.tiers.clear()  # no delay role: as if its records were lost
    worker = fails_once(engine)
    workflow_id = engine.start_task("work")
    engine.run(69)
    assert last(engine, workflow_id).phase == "RETRY_WAIT"

    engine.run(1)
    assert [work.attempt for work in worker.ran] == [0, 1]
    assert workflow(engine, workflow_id).status == "COMPLETED"


def test_a_hand_out_older_than_half_its_retention_is_handed_out_again(engine: Engine) -> None:
    """Its record is deleted by retention with the queue unread: the task would be lost."""
    workflow_id = engine.start_task("work")
    engine.clock.advance(HAND_OUT_LIFETIME_MS)
    engine.run(7)

    assert [work.hand_out for work in schedules(engine)] == [1, 2]
    assert last(engine, workflow_id).hand_out == 2


def test_of_two_hand_outs_only_the_last_runs(engine: Engine) -> None:
    workflow_id = engine.start_task("work")
    engine.clock.advance(HAND_OUT_LIFETIME_MS)
    engine.run(7)
    worker = engine.serve("work")
    engine.run()

    assert [work.hand_out for work in worker.ran] == [2]
    assert workflow(engine, workflow_id).status == "COMPLETED"


def test_a_delay_that_comes_early_is_delayed_again(engine: Engine) -> None:
    """A tier with a wrong clock, or a state whose due moment has moved: a retry before its delay breaks a promise."""
    worker = fails_once(engine)
    workflow_id = engine.start_task("work", workflow_id=name_in(0))
    engine.run(5)
    task = last(engine, workflow_id)
    assert (task.phase, len(delays(engine))) == ("RETRY_WAIT", 1)

    engine.send(
        DelayDue(
            key=workflow_id,
            reference=task.reference,
            task_id=task.task_id,
            hand_out=task.hand_out,
            due_at_ms=task.due_at_ms or 0,
        )
    )
    engine.run()
    assert last(engine, workflow_id).phase == "RETRY_WAIT"
    assert [delay.due_at_ms for delay in delays(engine)] == [task.due_at_ms] * 2

    engine.run(5)
    first, second = worker.ran
    assert second.scheduled_at_ms - first.scheduled_at_ms >= 10_000
    assert len(schedules(engine)) == 2  # the second delay record changed nothing


def test_a_delay_a_moment_early_waits_in_the_heap(engine: Engine) -> None:
    """Clocks differ by a little: another record round the log for it would only come late."""
    fails_once(engine)
    workflow_id = engine.start_task("work", workflow_id=name_in(0))
    engine.tiers.clear()
    engine.run(9.5)
    task = last(engine, workflow_id)
    engine.send(
        DelayDue(
            key=workflow_id,
            reference=task.reference,
            task_id=task.task_id,
            hand_out=task.hand_out,
            due_at_ms=task.due_at_ms or 0,
        )
    )
    engine.run(0.5)

    assert workflow(engine, workflow_id).status == "COMPLETED"
    assert last(engine, workflow_id).handed_out_at_ms == task.due_at_ms
    assert len(delays(engine)) == 1
    assert len(commands(engine, DelayDue)) == 1
