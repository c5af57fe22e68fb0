"""Row 37: pause and resume of a workflow, through the in-memory engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog

from broker_engine.errors import Conflict
from broker_engine.testing import Engine
from tests.support.looking import attempts, schedules, workflow


@pytest.fixture
def engine() -> Iterator[Engine]:
    with structlog.testing.capture_logs(), Engine() as engine:
        engine.run()
        engine.register_task({"name": "work", "pollTimeoutSeconds": 60})
        tasks = [{"name": "work", "taskReferenceName": name} for name in ("a", "b")]
        engine.register_workflow({"name": "film", "tasks": tasks})
        engine.run()
        yield engine


def test_row_37_a_scheduled_task_of_a_paused_workflow_can_be_polled_and_completed(engine: Engine) -> None:
    started = engine.start("film")
    engine.run()
    engine.pause(started)

    engine.serve("work")
    engine.run(1)

    done, held = attempts(engine, started)
    assert (done.reference, done.status) == ("a", "COMPLETED")
    assert (held.reference, held.status, held.waiting_for) == ("b", "SCHEDULED", "resume")
    assert [work.reference for work in schedules(engine)] == ["a"]
    assert workflow(engine, started).status == "PAUSED"

    engine.resume(started)
    engine.run(1)
    assert workflow(engine, started).status == "COMPLETED"


def test_row_37_task_clocks_stand_still_in_a_pause_and_go_on_after_it(engine: Engine) -> None:
    """D14: upstream freezes task timers, and a resume fires them all."""
    started = engine.start("film")
    engine.run(30)
    engine.pause(started)
    engine.run(3_600)

    engine.resume(started)
    engine.run(29)
    assert workflow(engine, started).status == "RUNNING"
    engine.run(2)

    assert attempts(engine, started)[0].status == "TIMED_OUT"


def test_row_37_a_running_workflow_cannot_be_resumed_and_a_second_pause_changes_nothing(engine: Engine) -> None:
    """Upstream answers a resume of a running workflow with 500; here it is a conflict with a sentence (D20)."""
    started = engine.start("film")
    with pytest.raises(Conflict, match="only a paused workflow can be resumed"):
        engine.resume(started)

    engine.pause(started)
    assert engine.pause(started) == "paused by user:test already"
