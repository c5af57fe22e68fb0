"""Cron schedules in a whole engine: moments start workflows once each, whatever dies between them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import pytest
import structlog

from broker_engine.errors import TransactionAborted
from broker_engine.model.commands import PauseSchedule, PutSchedule, StartWorkflow
from broker_engine.testing import Engine
from broker_engine.topics import Topic
from broker_engine.wire.codecs import DEFINITION, WORKFLOW_STATE
from tests.support.crashing import crash
from tests.support.looking import commands


@pytest.fixture
def engine() -> Iterator[Engine]:
    with structlog.testing.capture_logs(), Engine() as engine:
        engine.run()
        engine.register_workflow(
            {"name": "report", "tasks": [{"name": "noop", "taskReferenceName": "n", "type": "NOOP"}]}
        )
        engine.run()
        yield engine


def schedule(engine: Engine, **fields: Any) -> None:
    document = {
        "name": "often",
        "cronExpression": "*/10 * * * * *",
        "startWorkflowRequest": {"name": "report"},
        **fields,
    }
    engine.ask(PutSchedule(key="often", document=orjson.dumps(document), overwrite=True, **engine.asked()))


def stored(engine: Engine) -> dict[str, Any]:
    value = engine.records(Topic.CRON)[-1].value
    document: dict[str, Any] = orjson.loads(DEFINITION.decode(value).document)
    return document


def started(engine: Engine) -> list[str]:
    """The ids of the schedule's workflows, in order; each start is a command of its own."""
    sent = [command.key for command, _ in commands(engine, StartWorkflow) if command.key.startswith("often-")]
    states = [WORKFLOW_STATE.decode(record.value) for record in engine.records(Topic.WORKFLOW_STATE) if record.value]
    ran = {state.workflow_id for state in states if state.status.is_terminal}
    assert ran >= {*sent}, "what was sent has run"
    return sorted(sent)


def test_every_moment_starts_one_workflow(engine: Engine) -> None:
    schedule(engine)

    engine.run(60)

    ids = started(engine)
    assert len(ids) == len({*ids}) == 6
    assert stored(engine)["lastWorkflowId"] == ids[-1]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_decider_that_dies_over_a_moment_starts_it_once(engine: Engine, moment: str) -> None:
    schedule(engine)
    engine.run(25)
    before = started(engine)
    engine.clock.advance(10_000)
    for loop in engine.tiers.values():
        loop.step()
    node = crash(engine, moment)
    node.start()

    engine.run(30)

    ids = started(engine)
    assert ids[: len(before)] == before
    assert len(ids) == len({*ids}) >= len(before) + 3


def test_a_moment_whose_transaction_is_aborted_is_decided_again(engine: Engine) -> None:
    schedule(engine)
    engine.log.commit_errors = [TransactionAborted()]

    engine.run(60)

    assert len(started(engine)) == 6


def test_another_decider_goes_on_with_the_schedule(engine: Engine) -> None:
    schedule(engine)
    engine.run(25)
    before = started(engine)
    (node,) = engine.nodes
    node.kill()
    node.bury()
    engine.nodes.append(engine.node("other"))

    engine.run(40)

    ids = started(engine)
    assert len(ids) == len({*ids}) > len(before)


def test_a_paused_schedule_stands_still(engine: Engine) -> None:
    schedule(engine)
    engine.run(25)
    count = len(started(engine))
    engine.ask(PauseSchedule(key="often", **engine.asked()))

    engine.run(60)

    assert len(started(engine)) == count


def test_a_workflow_that_cannot_start_is_told_about_and_the_schedule_goes_on(engine: Engine) -> None:
    schedule(engine, startWorkflowRequest={"name": "nowhere"})
    engine.run(25)

    assert "nowhere" in stored(engine)["lastError"]
    engine.register_workflow({"name": "nowhere", "tasks": [{"name": "n", "taskReferenceName": "n", "type": "NOOP"}]})
    engine.run(10)
    assert engine.workflow(stored(engine)["lastWorkflowId"]).status == "COMPLETED"
