"""Schemas of inputs and outputs (D17): enforced when the definition says so, and only then."""

from typing import Any

import pytest

from broker_engine.decider.definition_tree import parse_workflow_def
from broker_engine.decider.definitions import parse_task_def
from broker_engine.decider.payload_schemas import payload_problem
from broker_engine.model.status import ReasonCode, TaskStatus, WorkflowStatus
from tests.builders import Story, a_step, asked

AMOUNT = {"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]}
SCHEMA_DEF = {"name": "payment", "version": 1, "type": "JSON", "data": AMOUNT}
GIVEN = {"amount": "${workflow.input.amount}"}


def paying(**fields: Any) -> Story:
    return Story(a_step("a", input_parameters=GIVEN, **fields), "b")


@pytest.mark.parametrize("schema", [AMOUNT, SCHEMA_DEF], ids=["bare", "SchemaDef"])
def test_an_input_that_breaks_it_ends_the_task_before_any_worker_sees_it(schema: dict[str, Any]) -> None:
    story = paying(input_schema=schema, enforce_schema=True).start(input=b'{"amount": "ten"}')

    assert not story.schedules
    assert (story["a"].status, story["a"].reason_code) == (
        TaskStatus.FAILED_WITH_TERMINAL_ERROR,
        ReasonCode.SCHEMA_VIOLATION,
    )
    assert "inputSchema at /amount" in (story["a"].reason or "")
    assert story.workflow.status is WorkflowStatus.FAILED


def test_an_input_that_keeps_it_goes_to_its_queue() -> None:
    story = paying(input_schema=AMOUNT, enforce_schema=True).start(input=b'{"amount": 10}')

    assert len(story.schedules) == 1


def test_an_output_that_breaks_it_is_a_terminal_error() -> None:
    story = paying(output_schema=AMOUNT, enforce_schema=True).start().taken().completed({"amount": 1.5})

    assert (story["a"].status, story["a"].reason_code) == (
        TaskStatus.FAILED_WITH_TERMINAL_ERROR,
        ReasonCode.SCHEMA_VIOLATION,
    )
    assert "outputSchema at /amount" in (story["a"].reason or "")
    assert story["a"].output is None


def test_a_missing_output_is_an_empty_one() -> None:
    story = paying(output_schema=AMOUNT, enforce_schema=True).start().taken().completed()

    assert "'amount' is a required property" in (story["a"].reason or "")


def test_without_enforce_schema_both_are_only_documentation() -> None:
    story = paying(input_schema=AMOUNT, output_schema=AMOUNT).start().taken().completed({"amount": "ten"})

    assert story["a"].status is TaskStatus.COMPLETED


def test_a_retry_keeps_its_input_and_is_not_checked_into_a_loop() -> None:
    story = paying(input_schema=AMOUNT, enforce_schema=True).start(input=b'{"amount": 10}')

    story.taken().failed()

    assert story.task.attempt == 1


def test_a_start_that_breaks_the_workflows_schema_is_refused_with_its_path() -> None:
    story = Story("a", input_schema=AMOUNT, enforce_schema=True).start(input=b'{"amount": null}', **asked())

    assert story.execution is None
    assert story.answer.status == 400
    assert "inputSchema at /amount" in story.answer.message


def test_references_to_other_documents_are_not_fetched() -> None:
    problem = payload_problem({"$ref": "http://127.0.0.1:1/schema.json"}, b"{}")

    assert problem is not None
    assert "is not part of it" in problem


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"type": "no such type"}, "inputSchema/type"),
        ({"type": "JSON", "data": {"type": 1}}, "inputSchema.data/type"),
        ({"type": "JSON", "name": "x"}, "inputSchema.data"),
        ({"type": "JSON", "data": "x"}, "inputSchema.data"),
        ({"type": "AVRO", "data": {}}, "inputSchema.type"),
    ],
)
@pytest.mark.parametrize("parse", [parse_task_def, parse_workflow_def])
def test_a_schema_that_cannot_be_enforced_is_refused_at_registration(
    schema: dict[str, Any], path: str, parse: Any
) -> None:
    document = {"name": "pay", "tasks": [{"name": "pay", "taskReferenceName": "a"}]}
    if parse is parse_task_def:
        del document["tasks"]
    parsed = parse({**document, "inputSchema": schema, "enforceSchema": True})

    assert [violation.path for violation in parsed.violations] == [path]


def test_a_schema_of_another_kind_may_stand_as_documentation() -> None:
    assert not parse_task_def({"name": "pay", "inputSchema": {"type": "AVRO", "name": "x"}}).violations
