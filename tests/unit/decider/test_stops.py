"""Stops: new workflows are refused by definition, by tenant, or altogether; what runs goes on."""

import pytest

from broker_engine.decider.registry import decide_definition
from broker_engine.model.commands import AllowStarts, StopStarts
from broker_engine.model.decision import Answer, WriteDefinition
from broker_engine.model.status import WorkflowStatus
from broker_engine.model.stops import Stop, read_stop, stop_key
from tests.builders import START_MS, Story, a_context, asked

BY_DEFINITION = stop_key(workflow="film")
BY_TENANT = stop_key(tenant="acme")
EVERYTHING = stop_key()


def stopped(key: str) -> Story:
    story = Story("a")
    story.definitions.stops[key] = Stop(key, "user:ann", START_MS, "the shop is closed")
    return story


@pytest.mark.parametrize(
    ("key", "about"), [(BY_DEFINITION, "workflow film"), (BY_TENANT, "tenant acme"), (EVERYTHING, "all workflows")]
)
def test_a_start_is_refused_with_who_what_and_why(key: str, about: str) -> None:
    story = stopped(key).start(tenant="acme", **asked())

    assert story.execution is None
    assert story.answer.status == 409
    assert story.answer.message == f"user:ann has stopped {about} from starting: the shop is closed"


@pytest.mark.parametrize("key", [stop_key(workflow="other"), stop_key(tenant="other")])
def test_others_start(key: str) -> None:
    assert stopped(key).start(tenant="acme").workflow.status is WorkflowStatus.RUNNING
    assert stopped(key).start().workflow.status is WorkflowStatus.RUNNING


def test_what_runs_goes_on_with_its_retries() -> None:
    story = Story("a", "b").start()
    story.definitions.stops[EVERYTHING] = Stop(EVERYTHING, "user:ann", START_MS)

    story.fail_once().taken().completed().taken().completed()

    assert story.workflow.status is WorkflowStatus.COMPLETED


def test_a_tenant_cannot_be_named_into_another_stop() -> None:
    """A tenant called ``film`` is not the definition ``film``."""
    assert stopped(BY_DEFINITION).start(name="film", tenant="film").execution is None
    assert stopped(stop_key(tenant="film")).start(name="film").execution is not None


def test_a_stop_is_stored_with_who_and_when() -> None:
    command = StopStarts(key=BY_TENANT, reason="unpaid", operator="user:bob", **asked())
    decision = decide_definition(command, a_context(START_MS))

    write, answer = decision.outputs
    assert isinstance(write, WriteDefinition)
    assert isinstance(answer, Answer)
    assert (write.kind, write.key, answer.status) == ("stop", BY_TENANT, 200)
    assert read_stop(write.key, write.document or b"") == Stop(BY_TENANT, "user:bob", START_MS, "unpaid")


def test_allowing_what_is_not_stopped_is_not_found() -> None:
    decision = decide_definition(AllowStarts(key=EVERYTHING, **asked()), a_context(START_MS))

    (answer,) = decision.outputs
    assert isinstance(answer, Answer)
    assert answer.status == 404


def test_an_endless_reason_is_refused() -> None:
    decision = decide_definition(StopStarts(key=EVERYTHING, reason="x" * 3_000, **asked()), a_context(START_MS))

    (answer,) = decision.outputs
    assert isinstance(answer, Answer)
    assert answer.status == 400
