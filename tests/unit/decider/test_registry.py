"""Registering definitions: checked, stamped, written and answered by one writer."""

from typing import Any

import orjson
import pytest

from broker_engine.decider.definition_tree import snapshot
from broker_engine.decider.definitions import parse_task_def
from broker_engine.decider.registry import DefinitionCommand, decide_definition, workflow_def_key
from broker_engine.model.commands import DeleteTaskDef, DeleteWorkflowDef, PutTaskDef, PutWorkflowDef
from broker_engine.model.decision import Answer, Decision, WriteDefinition
from tests.builders import START_MS, Definitions, a_context, asked

TASK = {"name": "encode", "ownerEmail": "team@example.com"}
FILM = {"name": "film", "tasks": [{"name": "encode", "taskReferenceName": "a"}]}


def put_task(document: Any = None, *, key: str = "encode", **fields: Any) -> PutTaskDef:
    return PutTaskDef(key=key, document=orjson.dumps(document or TASK), operator="user:ann", **asked(), **fields)


def put_workflow(document: Any = None, *, key: str = "film", **fields: Any) -> PutWorkflowDef:
    return PutWorkflowDef(key=key, document=orjson.dumps(document or FILM), operator="user:ann", **asked(), **fields)


def registered(*documents: dict[str, Any]) -> Definitions:
    known = Definitions()
    for document in documents:
        if "tasks" in document:
            workflow = snapshot(document, known.task_def)
            known.workflows[workflow.name, workflow.version] = workflow
        else:
            known.tasks[document["name"]] = parse_task_def(document).unwrap()
    return known


def told(command: DefinitionCommand, definitions: Definitions | None = None, **context: Any) -> Decision:
    return decide_definition(command, a_context(definitions=definitions or Definitions(), **context))


def written(decision: Decision) -> tuple[WriteDefinition, Any]:
    """The record to write and its document, parsed."""
    (write,) = (output for output in decision.outputs if isinstance(output, WriteDefinition))
    return write, None if write.document is None else orjson.loads(write.document)


def answer(decision: Decision) -> Answer:
    (found,) = (output for output in decision.outputs if isinstance(output, Answer))
    return found


# --- task definitions -----------------------------------------------------------------------------


def test_a_task_definition_is_stored_under_its_name() -> None:
    decision = told(put_task())

    write, document = written(decision)
    assert (write.kind, write.key) == ("task", "encode")
    assert document == {
        **TASK,
        "createTime": START_MS,
        "createdBy": "user:ann",
        "updateTime": None,
        "updatedBy": None,
    }
    assert answer(decision) == Answer(reply_to="gateway", command_id="c", status=200, message='{"warnings":[]}')
    assert (decision.execution, decision.ignored) == (None, None)


def test_what_is_stored_can_be_registered_again() -> None:
    _, document = written(told(put_task({**TASK, "unknown": {"kept": True}})))

    assert parse_task_def(document).unwrap().document["unknown"] == {"kept": True}
    assert answer(told(put_task(document))).status == 200


def test_a_put_over_an_existing_definition_creates_it_anew() -> None:
    """As Conductor's POST: silently, with new create stamps."""
    known = registered({**TASK, "retryCount": 9, "createTime": 1, "createdBy": "bob"})

    _, document = written(told(put_task({**TASK, "createTime": 2, "updatedBy": "eve"}), known))

    assert document == {**TASK, "createTime": START_MS, "createdBy": "user:ann", "updateTime": None, "updatedBy": None}


def test_an_update_keeps_who_created_it_and_when() -> None:
    known = registered({**TASK, "createTime": 1, "createdBy": "bob"})

    _, document = written(told(put_task({**TASK, "retryCount": 9}, is_update=True), known))

    assert document == {
        **TASK,
        "retryCount": 9,
        "createTime": 1,
        "createdBy": "bob",
        "updateTime": START_MS,
        "updatedBy": "user:ann",
    }


def test_an_update_needs_an_existing_definition() -> None:
    decision = told(put_task(is_update=True))

    assert answer(decision).status == 404
    assert "create it first" in answer(decision).message
    assert decision.outputs == (answer(decision),)
    assert decision.ignored is not None


def test_a_task_definition_is_removed() -> None:
    command = DeleteTaskDef(key="encode", **asked())

    write, document = written(told(command, registered(TASK)))
    assert (write.kind, write.key, document) == ("task", "encode", None)
    assert answer(told(command)).status == 404


def test_warnings_come_with_the_answer() -> None:
    message = orjson.loads(answer(told(put_task({"name": "encode", "retires": 3}))).message)

    assert [warning.split(":")[0] for warning in message["warnings"]] == ["retires", "ownerEmail"]


def test_a_refusal_lists_every_violation() -> None:
    decision = told(put_task({"name": "encode", "retryCount": -1, "retryLogic": "X"}))

    assert answer(decision).status == 400
    refusal = orjson.loads(answer(decision).message)
    assert refusal["validationErrors"] == [
        {"path": "retryCount", "message": "must be at least 0", "invalidValue": -1},
        {
            "path": "retryLogic",
            "message": "must be one of FIXED, LINEAR_BACKOFF, EXPONENTIAL_BACKOFF",
            "invalidValue": "X",
        },
    ]
    assert decision.outputs == (answer(decision),)


@pytest.mark.parametrize(
    "command",
    [
        PutTaskDef(key="encode", document=b"{", **asked()),
        PutTaskDef(key="encode", document=b"[]", **asked()),
        PutWorkflowDef(key="film", document=b'{"x": ' + b"[" * 900 + b"]" * 900 + b"}", **asked()),
        PutWorkflowDef(key="film", document=b"{}", **asked()),
        put_task(key="decode"),
        put_workflow(key="movie"),
    ],
    ids=["no JSON", "no object", "too deep", "empty", "another task's key", "another workflow's key"],
)
def test_what_cannot_be_stored_is_refused(command: DefinitionCommand) -> None:
    assert answer(told(command)).status == 400


@pytest.mark.parametrize("command", [put_task(), put_workflow()])
def test_a_definition_fits_into_a_record(command: DefinitionCommand) -> None:
    assert answer(told(command, max_payload_bytes=50)).status == 413


def test_nobody_is_answered_who_did_not_ask() -> None:
    assert told(PutTaskDef(key="encode", document=b"{")).outputs == ()
    assert len(told(PutTaskDef(key="encode", document=orjson.dumps(TASK))).outputs) == 1


# --- workflow definitions -------------------------------------------------------------------------


def test_a_workflow_definition_is_stored_under_name_and_version() -> None:
    write, document = written(told(put_workflow({**FILM, "version": 7})))

    assert (write.kind, write.key) == ("workflow", workflow_def_key("film", 7)) == ("workflow", "film:7")
    assert (document["version"], document["createTime"], document["createdBy"]) == (7, START_MS, "user:ann")


def test_a_workflow_definition_without_version_is_version_1() -> None:
    write, document = written(told(put_workflow()))

    assert (write.key, document["version"]) == ("film:1", 1)


def test_an_existing_version_is_a_conflict_unless_it_is_overwritten() -> None:
    known = registered(FILM)

    assert answer(told(put_workflow(), known)).status == 409
    assert "raise the version, or overwrite it" in answer(told(put_workflow(), known)).message
    assert answer(told(put_workflow(overwrite=True), known)).status == 200
    assert answer(told(put_workflow({**FILM, "version": 2}), known)).status == 200


def test_a_version_of_a_workflow_definition_is_removed() -> None:
    known = registered(FILM)

    write, document = written(told(DeleteWorkflowDef(key="film", version=1, **asked()), known))
    assert (write.kind, write.key, document) == ("workflow", "film:1", None)
    assert answer(told(DeleteWorkflowDef(key="film", version=2, **asked()), known)).status == 404
