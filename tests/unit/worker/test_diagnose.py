"""Every live task of an engine answers what it waits for and what its next deadline is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog

from broker_engine.cli.shapes import explanation_json
from broker_engine.decider.moves import MOVES
from broker_engine.errors import NotFound
from broker_engine.model.commands import TaskStarted
from broker_engine.model.status import TERMINAL_PHASES
from broker_engine.testing import Engine
from broker_engine.worker import TaskFailed
from broker_engine.worker.diagnosis import Explanation, diagnose


@pytest.fixture
def engine() -> Iterator[Engine]:
    with structlog.testing.capture_logs(), Engine() as engine:
        engine.run()
        yield engine


def ask(engine: Engine, name: str, reference: str | None = None) -> Explanation:
    return diagnose(engine.views, name, reference, engine.clock.now_ms())


def register(engine: Engine, **fields: Any) -> None:
    engine.register_task({"name": "work", "retryCount": 1, **fields})
    engine.run()


def created(engine: Engine) -> str:
    steps = [{"name": "work", "taskReferenceName": "work", "startDelay": 60}]
    engine.register_workflow({"name": "late", "tasks": steps})
    return engine.start("late")


def queued(engine: Engine) -> str:
    register(engine)
    return engine.start_task("work")


def running(engine: Engine) -> str:
    register(engine)
    engine.serve("work", takes_ms=lambda _work: 60_000)
    started = engine.start_task("work")
    engine.run(0.5)
    return started


def taken(engine: Engine, *, prepares: bool) -> str:
    """Started by a worker that says nothing more."""
    register(engine)
    started = engine.start_task("work")
    engine.run(0.5)
    (task,) = engine.workflow(started).tasks
    about: dict[str, Any] = {"reference": task.reference, "task_id": task.task_id, "hand_out": task.hand_out}
    engine.send(TaskStarted(key=started, worker_id="w1", prepares=prepares, **about))
    engine.run(0.5)
    return started


def starting(engine: Engine) -> str:
    return taken(engine, prepares=True)


def canceling(engine: Engine) -> str:
    started = taken(engine, prepares=False)
    engine.cancel_task(started, "work")
    return started


def paused(engine: Engine) -> str:
    started = queued(engine)
    engine.pause_task(started, "work")
    return started


def retry_wait(engine: Engine) -> str:
    def fails(_data: object, _work: object) -> None:
        raise TaskFailed("no")

    register(engine, retryDelaySeconds=60)
    engine.serve("work", fails)
    started = engine.start_task("work")
    engine.run(0.5)
    return started


REACHED: dict[str, tuple[Callable[[Engine], str], str]] = {
    "CREATED": (created, "delay"),
    "QUEUED": (queued, "worker"),
    "STARTING": (starting, "result"),
    "RUNNING": (running, "result"),
    "CANCELING": (canceling, "result"),
    "PAUSED": (paused, "resume"),
    "RETRY_WAIT": (retry_wait, "delay"),
}


def test_every_live_phase_that_a_task_can_be_in_is_asked() -> None:
    phases = {phase for phase, _ in MOVES if phase is not None} - TERMINAL_PHASES

    assert set(REACHED) == {phase.value for phase in phases}


@pytest.mark.parametrize("phase", REACHED)
def test_a_live_task_says_what_it_waits_for_and_its_next_deadline(engine: Engine, phase: str) -> None:
    reach, waits_for = REACHED[phase]
    found = explanation_json(ask(engine, reach(engine), "work"))

    assert (found["phase"], found["waitingFor"]) == (phase, waits_for)
    if phase == "PAUSED":  # until somebody resumes it
        assert found["nextDeadline"] is None
    else:
        assert found["nextDeadline"]["at"] > engine.clock.now_ms()
    assert found["explanation"]


def test_a_task_behind_a_full_limit_says_where_it_stands_and_who_is_before_it(engine: Engine) -> None:
    register(engine, concurrentExecLimit=1)
    engine.serve("work", takes_ms=lambda _work: 60_000)
    first = engine.start_task("work")
    waiting = [engine.start_task("work") for _ in range(2)]
    engine.run(0.5)
    found = ask(engine, waiting[1], "work")

    assert found.sentence == "2nd in line for 1 slot of task type work"
    shown = explanation_json(found)["inLine"]
    assert (shown["position"], shown["limit"], [held["workflowId"] for held in shown["heldBy"]]) == (
        2,
        "type work",
        [first],
    )


def test_a_task_behind_a_lock_names_its_holder(engine: Engine) -> None:
    register(engine, resourceLock="${workflow.input.file}")
    engine.serve("work", takes_ms=lambda _work: 60_000)
    first = engine.start_task("work", {"file": "rows.csv"})
    second = engine.start_task("work", {"file": "rows.csv"})
    engine.run(0.5)
    (holder,) = engine.workflow(first).tasks

    assert ask(engine, second, "work").sentence == (
        f"waits for lock rows.csv held by task {holder.task_id} (work of workflow {first})"
    )


def test_a_task_is_found_by_its_id_and_by_workflow_and_reference(engine: Engine) -> None:
    started = retry_wait(engine)
    first, second = engine.workflow(started).tasks

    assert ask(engine, started, "work").task == second
    assert ask(engine, first.task_id).sentence == "FAILED: no"


def test_an_unknown_reference_names_those_that_exist(engine: Engine) -> None:
    with pytest.raises(NotFound, match=r"has no task other \(yet\); there are work"):
        ask(engine, queued(engine), "other")
