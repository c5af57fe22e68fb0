"""A decision that raises: its workflow stands still and says why, everything else goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from broker_engine.decider import decide as rules
from broker_engine.errors import BrokerEngineError, InvariantViolation
from broker_engine.model.commands import AnyCommand, TaskStarted, TerminateWorkflow
from broker_engine.runtime import turn
from broker_engine.runtime.processor import MAX_QUARANTINED_PER_MINUTE
from broker_engine.testing import Engine
from broker_engine.topics import Topic
from tests.support.looking import aborted, dead_letters, last, name_in, names_in, schedules, workflow


class Fault:
    """Makes the decisions about some workflows raise."""

    def __init__(self) -> None:
        self.ids: set[str] = set()
        self.kinds: tuple[type[AnyCommand], ...] = (TaskStarted,)

    def decide(self, execution: Any, command: Any, context: Any) -> Any:
        if command.key in self.ids and isinstance(command, self.kinds):
            raise InvariantViolation("a rule was broken")
        return rules.decide(execution, command, context)


@pytest.fixture
def fault(monkeypatch: pytest.MonkeyPatch) -> Fault:
    fault = Fault()
    monkeypatch.setattr(turn, "decide", fault.decide)
    return fault


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine() as engine:
        engine.run()
        engine.register_task({"name": "work", "responseTimeoutSeconds": 10, "timeoutSeconds": 0})
        engine.run()
        yield engine


BAD, GOOD = names_in(0, 2)


def test_a_faulty_decision_keeps_only_its_workflow_still(engine: Engine, fault: Fault) -> None:
    """Uncaught it would end the process, and the next one, at the same record."""
    fault.ids.add(BAD)
    engine.serve("work")
    engine.submit_task("work", workflow_id=BAD)
    engine.submit_task("work", workflow_id=GOOD)
    engine.run()

    assert workflow(engine, BAD).quarantine == "InvariantViolation: a rule was broken"
    assert workflow(engine, BAD).status == "RUNNING"
    assert workflow(engine, GOOD).status == "COMPLETED"
    assert aborted(engine) == 0


def test_this_and_every_later_command_goes_to_the_dead_letters(engine: Engine, fault: Fault) -> None:
    """Decided on a state that the faulty command has not changed, they would make history wrong for good."""
    fault.ids.add(BAD)
    engine.serve("work")
    engine.start_task("work", workflow_id=BAD)
    engine.send(TerminateWorkflow(key=BAD))
    engine.run()

    reasons = [letter["reason"] for letter in dead_letters(engine)]
    assert [reason.partition(":")[0] for reason in reasons] == ["the decision failed"] + ["workflow in quarantine"] * 2
    assert workflow(engine, BAD).status == "RUNNING"


def test_a_quarantined_workflows_clocks_stand_still(engine: Engine, fault: Fault) -> None:
    engine.register_task({"name": "waits", "pollTimeoutSeconds": 10, "timeoutPolicy": "RETRY"})
    fault.ids.add(BAD)
    fault.kinds = (TerminateWorkflow,)
    engine.start_task("waits", workflow_id=BAD)
    engine.send(TerminateWorkflow(key=BAD))
    engine.run(60)

    assert workflow(engine, BAD).quarantine
    assert [task.phase for task in engine.workflow(BAD).tasks] == ["QUEUED"]


def test_a_quarantine_outlives_its_process(engine: Engine, fault: Fault) -> None:
    fault.ids.add(BAD)
    engine.serve("work")
    engine.start_task("work", workflow_id=BAD)
    engine.run()
    (node,) = engine.nodes
    node.kill()
    node.bury()
    node.start()
    engine.send(TerminateWorkflow(key=BAD))
    engine.run()

    assert workflow(engine, BAD).quarantine
    assert "workflow in quarantine" in dead_letters(engine)[-1]["reason"]


def test_released_and_with_its_commands_back_it_goes_on(engine: Engine, fault: Fault) -> None:
    """The remedy: the release was mended, the workflow is released, its dead letters are appended in order."""
    fault.ids.add(BAD)
    engine.serve("work")
    engine.start_task("work", workflow_id=BAD)
    engine.run()
    fault.ids.clear()
    letters = engine.records(Topic.DEAD_LETTERS)

    engine.release(BAD)
    for letter in letters:
        engine.send_bytes(letter.key, letter.value, partition=0)
    engine.run()
    # The worker's lease was the offset of its first start: the appended one is a start of its own, so the report under
    # the old lease is ignored and the response time-out hands the task out again.
    engine.run(80)

    assert workflow(engine, BAD).quarantine is None
    assert workflow(engine, BAD).status == "COMPLETED"


def test_a_faulty_deadline_quarantines_too(engine: Engine, fault: Fault) -> None:
    from broker_engine.model.commands import DeadlineReached
    from broker_engine.testing import Behaviour

    fault.kinds = (DeadlineReached,)
    fault.ids.add(BAD)
    engine.serve("work", behaves=lambda _work: Behaviour.DIES_RUNNING)
    engine.start_task("work", workflow_id=BAD)
    engine.run(15)

    assert workflow(engine, BAD).quarantine
    assert dead_letters(engine) == []  # the record that let the deadline pass was not at fault


def test_a_bad_release_stops_the_process_with_a_sentence(engine: Engine, fault: Fault) -> None:
    """Many at once are not bad workflows: going on would put every workflow aside."""
    for name in names_in(0, MAX_QUARANTINED_PER_MINUTE + 1, "many"):
        fault.ids.add(name)
        engine.submit_task("work", workflow_id=name)
    engine.serve("work")

    with pytest.raises(BrokerEngineError, match="this release is faulty"):
        engine.run()


def test_some_a_minute_stop_nothing(engine: Engine, fault: Fault) -> None:
    for name in names_in(0, MAX_QUARANTINED_PER_MINUTE, "many"):
        fault.ids.add(name)
        engine.submit_task("work", workflow_id=name)
    engine.serve("work")
    engine.run()

    assert len(schedules(engine)) == MAX_QUARANTINED_PER_MINUTE
    assert engine.start_task("work", workflow_id=name_in(0, "healthy"))
    engine.run()
    assert last(engine, name_in(0, "healthy")).status == "COMPLETED"
