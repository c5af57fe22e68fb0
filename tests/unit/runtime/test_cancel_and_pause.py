"""Cancel and pause with everything that can go wrong between the request and the safe point."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import structlog

from broker_engine.errors import Conflict, NotFound, TransactionAborted
from broker_engine.model.commands import CancelTask
from broker_engine.model.decision import ControlKind
from broker_engine.model.status import Phase
from broker_engine.testing import Engine
from broker_engine.testing.worker import Behaviour
from broker_engine.wire.codecs import CONTROL
from broker_engine.wire.records import ScheduledTask
from broker_engine.worker import TaskFailed
from tests.support.crashing import crash
from tests.support.looking import attempts, schedules, workflow

TASK = {"name": "work", "retryCount": 2, "retryDelaySeconds": 1, "responseTimeoutSeconds": 60}
LONG_MS = 30_000


@pytest.fixture
def engine() -> Iterator[Engine]:
    with structlog.testing.capture_logs(), Engine() as engine:
        engine.run()
        engine.register_task(TASK)
        engine.register_workflow(
            {"name": "film", "tasks": [{"name": "work", "taskReferenceName": name} for name in ("a", "b")]}
        )
        engine.run()
        yield engine


def told(engine: Engine) -> list[ControlKind | None]:
    """What stands on the control topic: None is a record that takes the one before away."""
    records = engine.records(engine.namespace.control("default"))
    return [None if record.value is None else CONTROL.decode(record.value).kind for record in records]


def running(engine: Engine, behaves: Callable[[ScheduledTask], Behaviour] = lambda _work: Behaviour.ANSWERS) -> str:
    """A workflow whose first task runs for half a minute."""
    engine.serve("work", takes_ms=lambda w: LONG_MS if (w.reference, w.hand_out) == ("a", 1) else 0, behaves=behaves)
    started = engine.start("film")
    engine.run(1)
    assert attempts(engine, started)[0].phase is Phase.RUNNING
    return started


def test_a_running_task_stops_and_ends_as_canceled(engine: Engine) -> None:
    started = running(engine)

    engine.cancel_task(started, "a", "wrong file")
    engine.run()

    (worker,) = engine.workers
    assert [kind for _, kind in worker.stopped] == [ControlKind.CANCEL]
    assert [task.phase for task in attempts(engine, started)] == [Phase.CANCELED]
    assert workflow(engine, started).status == "TERMINATED"
    assert told(engine) == [ControlKind.CANCEL, None]


def test_cancel_twice_and_after_the_end_is_harmless(engine: Engine) -> None:
    started = running(engine, lambda _work: Behaviour.HEARS_NOTHING)

    engine.cancel_task(started, "a")
    again = engine.cancel_task(started, "a")
    engine.run(40)
    late = engine.cancel_task(started, "a")

    assert again == "asked to stop by user:test already"
    # It never came to a safe point: the result was there first.
    assert [task.status for task in attempts(engine, started)] == ["COMPLETED", "COMPLETED"]
    assert late == "already ended: the workflow is COMPLETED"
    assert told(engine) == [ControlKind.CANCEL, None]


def test_an_unknown_workflow_is_not_found(engine: Engine) -> None:
    with pytest.raises(NotFound):
        engine.cancel_task("nobody", "a")


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_decider_that_dies_over_the_request_has_carried_it_out_once(engine: Engine, moment: str) -> None:
    started = running(engine)
    engine.send(CancelTask(key=started, reference="a", **engine.asked()))
    node = crash(engine, moment)
    node.start()
    engine.run(1)

    assert [task.phase for task in attempts(engine, started)] == [Phase.CANCELED]
    assert told(engine) == [ControlKind.CANCEL, None]


def test_a_request_whose_transaction_is_aborted_is_decided_again(engine: Engine) -> None:
    started = running(engine)

    engine.log.commit_errors = [TransactionAborted()]
    engine.cancel_task(started, "a")
    engine.run()

    assert [task.phase for task in attempts(engine, started)] == [Phase.CANCELED]
    assert told(engine) == [ControlKind.CANCEL, None]


def test_a_decider_that_dies_between_request_and_safe_point_still_knows_of_it(engine: Engine) -> None:
    started = running(engine, lambda _work: Behaviour.DIES_RUNNING)
    (node,) = engine.nodes
    engine.cancel_task(started, "a", "wrong file")

    node.kill()
    node.bury()
    node.start()
    engine.run(90)

    (only,) = attempts(engine, started)
    assert (only.phase, only.attempt) == (Phase.CANCELED, 0)
    assert only.reason is not None
    assert only.reason.startswith("asked to stop by user:test: wrong file; it ended TIMED_OUT")


def test_a_zombie_decider_tells_nobody_anything(engine: Engine) -> None:
    started = running(engine)
    (loser,) = engine.nodes
    engine.nodes.append(engine.node("1"))
    engine.send(CancelTask(key=started, reference="a", **engine.asked()))

    def overtake(_transactional_id: str) -> None:
        engine.log.before_begin = None
        loser.suspend()
        for _ in range(8):
            engine.nodes[1].step()

    engine.log.before_begin = overtake
    engine.run(1)

    assert [task.phase for task in attempts(engine, started)] == [Phase.CANCELED]
    assert told(engine) == [ControlKind.CANCEL, None]


def test_a_worker_that_takes_the_task_after_the_cancel_does_not_run_it(engine: Engine) -> None:
    started = engine.start("film")
    engine.run()
    engine.cancel_task(started, "a")

    worker = engine.serve("work", takes_ms=lambda _work: 1_000)
    engine.run(10)

    assert worker.ran == []
    assert told(engine) == [ControlKind.CANCEL]


def test_terminating_a_workflow_stops_its_worker(engine: Engine) -> None:
    started = running(engine)

    engine.terminate(started, "no longer needed")
    engine.run(60)

    (worker,) = engine.workers
    assert [kind for _, kind in worker.stopped] == [ControlKind.CANCEL]
    assert worker.ran == []


def test_a_time_out_stops_the_worker_that_was_given_up(engine: Engine) -> None:
    engine.register_task(TASK | {"timeoutSeconds": 5, "responseTimeoutSeconds": 5, "timeoutPolicy": "RETRY"})
    started = engine.start_task("work")
    worker = engine.serve("work", takes_ms=lambda work: LONG_MS if work.attempt == 0 else 0)
    engine.run(60)

    assert [kind for _, kind in worker.stopped] == [ControlKind.SUPERSEDED]
    assert [task.status for task in attempts(engine, started)] == ["TIMED_OUT", "COMPLETED"]


# --- pause


def dies_first(work: ScheduledTask) -> Behaviour:
    return Behaviour.DIES_RUNNING if (work.reference, work.attempt) == ("a", 0) else Behaviour.ANSWERS


def test_a_paused_task_goes_on_as_the_same_attempt(engine: Engine) -> None:
    started = running(engine)

    engine.pause_task(started, "a")
    engine.run(3_600)
    (held,) = attempts(engine, started)
    engine.resume_task(started, "a")
    engine.run(1)

    assert (held.phase, held.attempt, held.hand_out) == (Phase.PAUSED, 0, 1)
    assert [(t.status, t.attempt, t.hand_out) for t in attempts(engine, started)] == [
        ("COMPLETED", 0, 2),
        ("COMPLETED", 0, 1),
    ]
    assert told(engine) == [ControlKind.PAUSE, None]


def test_a_pause_survives_the_decider(engine: Engine) -> None:
    started = running(engine)
    (node,) = engine.nodes
    engine.pause(started, "look first")

    node.kill()
    node.bury()
    node.start()
    engine.run(LONG_MS / 1_000)

    assert (workflow(engine, started).status, workflow(engine, started).reason) == (
        "PAUSED",
        "paused by user:test: look first",
    )
    done, held = attempts(engine, started)
    assert (done.status, held.phase) == ("COMPLETED", Phase.PAUSED)
    engine.resume(started)
    engine.run(40)
    assert workflow(engine, started).status == "COMPLETED"


def test_a_worker_that_dies_before_it_has_paused_leaves_a_paused_task(engine: Engine) -> None:
    started = running(engine, dies_first)

    engine.pause_task(started, "a")
    engine.run(120)

    lost, held = attempts(engine, started)
    assert (lost.status, held.phase, held.attempt) == ("TIMED_OUT", Phase.PAUSED, 1)
    engine.resume_task(started, "a")
    engine.run(60)
    assert workflow(engine, started).status == "COMPLETED"


def test_a_back_off_that_ends_in_a_pause_is_over_when_the_task_is_resumed(engine: Engine) -> None:
    failed: list[bool] = []

    def fail_once(_data: object, _work: object) -> dict[str, object]:
        if not failed:
            failed.append(True)
            raise TaskFailed("once")
        return {}

    started = engine.start("film")
    engine.serve("work", fail_once)
    engine.run()
    engine.pause_task(started, "a")
    engine.run(60)
    assert len(schedules(engine)) == 1

    engine.resume_task(started, "a")
    engine.run()

    assert [work.attempt for work in schedules(engine)] == [0, 1, 0]


def test_nothing_more_of_a_paused_workflow_is_handed_out(engine: Engine) -> None:
    started = engine.start("film")
    engine.run()
    engine.pause(started)
    worker = engine.serve("work", takes_ms=lambda _work: 1_000)
    engine.run(600)
    assert [(work.reference, work.hand_out) for work in worker.ran] == [("a", 1)]

    engine.resume(started)
    engine.run(10)

    assert workflow(engine, started).status == "COMPLETED"
    assert [(work.reference, work.hand_out) for work in worker.ran] == [("a", 1), ("b", 1)]


def test_a_granted_slot_that_lapses_in_a_pause_is_not_granted_again_before_its_end(engine: Engine) -> None:
    engine.register_task(TASK | {"concurrentExecLimit": 1})
    started = engine.start("film")
    engine.run(1)
    engine.pause(started)

    engine.run(600)
    (held,) = attempts(engine, started)
    engine.serve("work")
    engine.resume(started)
    engine.run(60)

    assert (held.phase, held.holds_slot) == (Phase.PAUSED, False)
    assert workflow(engine, started).status == "COMPLETED"


def test_an_ended_workflow_can_be_neither_paused_nor_resumed(engine: Engine) -> None:
    engine.serve("work")
    started = engine.start("film")
    engine.run(1)

    with pytest.raises(Conflict, match="is COMPLETED: only a running workflow can be paused"):
        engine.pause(started)
    with pytest.raises(Conflict, match="is COMPLETED: only a paused workflow can be resumed"):
        engine.resume(started)


def test_a_paused_task_gives_its_slot_to_the_next(engine: Engine) -> None:
    engine.register_task(TASK | {"concurrentExecLimit": 1})
    worker = engine.serve("work", takes_ms=lambda work: LONG_MS if work.hand_out == 1 else 0)
    first = engine.start_task("work", workflow_id="first")
    engine.run(1)
    second = engine.start_task("work", workflow_id="second")
    engine.run(1)
    assert attempts(engine, second)[0].waiting_for == "slot"

    engine.pause_task(first, "work")
    engine.run(1)
    assert attempts(engine, second)[0].phase is Phase.RUNNING
    engine.resume_task(first, "work")
    engine.run(60)

    assert [workflow(engine, each).status for each in (first, second)] == ["COMPLETED", "COMPLETED"]
    assert [work.workflow_id for work in worker.ran] == ["second", "first"]


def test_a_task_that_is_paused_while_it_waits_for_its_slot_asks_anew(engine: Engine) -> None:
    engine.register_task(TASK | {"concurrentExecLimit": 1})
    engine.serve("work", takes_ms=lambda _work: LONG_MS)
    first, second = (engine.start_task("work", workflow_id=name) for name in ("first", "second"))
    engine.run(1)
    waiting = next(each for each in (first, second) if attempts(engine, each)[0].waiting_for == "slot")

    engine.pause_task(waiting, "work")
    engine.resume_task(waiting, "work")
    engine.run(1)
    assert attempts(engine, waiting)[0].waiting_for == "slot"
    engine.run(120)

    assert [workflow(engine, each).status for each in (first, second)] == ["COMPLETED", "COMPLETED"]
