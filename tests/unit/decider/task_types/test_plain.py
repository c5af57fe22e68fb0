"""SET_VARIABLE, TERMINATE, NOOP, and what is handed out to system workers."""

from __future__ import annotations

from typing import Any

import pytest

from broker_engine.decider.task_types import TASK_TYPES
from broker_engine.decider.task_types.plain import MAX_VARIABLES_BYTES
from broker_engine.worker.system import SYSTEM_TASKS
from tests.support.trees import Tree, fork, operator, simple, violations


def terminate(**data: Any) -> dict[str, Any]:
    return operator("TERMINATE", "t", inputParameters=data)


def test_variables_are_merged_and_seen_by_what_follows() -> None:
    first = operator("SET_VARIABLE", "v", inputParameters={"n": 1, "who": "${workflow.input.who}"})
    second = operator("SET_VARIABLE", "u", inputParameters={"n": 2})
    tree = Tree(first, second, simple("a", inputParameters={"v": "${workflow.variables}"})).begin(who="Ada")

    assert tree.input("a") == {"v": {"n": 2, "who": "Ada"}}


def test_variables_over_the_limit_fail_and_stay_as_they_were() -> None:
    step = operator("SET_VARIABLE", "v", inputParameters={"text": "${workflow.input.text}"})
    tree = Tree(step).begin(text="x" * MAX_VARIABLES_BYTES)

    assert (tree.statuses["v"], tree.workflow.variables) == ("FAILED_WITH_TERMINAL_ERROR", b"{}")
    assert f"the limit is {MAX_VARIABLES_BYTES}" in (tree.workflow.reason or "")


@pytest.mark.parametrize("status", ["COMPLETED", "FAILED", "TERMINATED"])
def test_a_terminate_ends_the_workflow_with_its_own_output_and_cancels_the_rest(status: str) -> None:
    ends = terminate(terminationStatus=status, terminationReason="enough", workflowOutput={"n": 1})
    tree = Tree(*fork("f", [simple("a"), ends], [simple("b")])).begin().done("a")

    assert tree.result == (status, {"n": 1})
    assert (tree.workflow.reason, tree.statuses["t"]) == ("enough", "COMPLETED")
    assert (tree.statuses["b"], tree.statuses["f_join"]) == ("CANCELED", "CANCELED")


def test_an_unknown_termination_status_is_refused_at_registration_and_fails_when_it_comes_from_an_expression() -> None:
    assert "tasks[0].inputParameters.terminationStatus" in violations(terminate(terminationStatus="PAUSED"))
    assert violations(terminate())["tasks[0].inputParameters.terminationStatus"] == "is required by TERMINATE"

    tree = Tree({**terminate(), "inputParameters": "${workflow.input}"}).begin(terminationStatus="PAUSED")
    assert (tree.statuses["t"], tree.workflow.status) == ("FAILED_WITH_TERMINAL_ERROR", "FAILED")


def test_a_noop_is_done_at_once() -> None:
    tree = Tree(operator("NOOP", "n"), operator("NOOP", "m")).begin()

    assert (tree.statuses, tree.workflow.status) == ({"n": "COMPLETED", "m": "COMPLETED"}, "COMPLETED")


def test_a_value_param_is_taken_in_the_decision_itself() -> None:
    data = {"evaluatorType": "value-param", "expression": "n", "n": 3}
    tree = Tree(operator("INLINE", "i", inputParameters=data), simple("a", inputParameters={"r": "${i.output.result}"}))

    assert tree.begin().input("a") == {"r": 3}


@pytest.mark.parametrize(
    ("kind", "data", "fields", "given"),
    [
        ("INLINE", {"expression": "$.n", "n": 1}, {}, {"expression": "$.n", "n": 1}),
        ("LAMBDA", {"n": 1}, {"scriptExpression": "return $.n"}, {"n": 1, "scriptExpression": "return $.n"}),
        ("JSON_JQ_TRANSFORM", {"queryExpression": ".n"}, {}, {"queryExpression": ".n"}),
        ("HTTP", {"uri": "http://h/"}, {}, {"uri": "http://h/"}),
        ("KAFKA_PUBLISH", {"kafka_request": {"topic": "t"}}, {}, {"kafka_request": {"topic": "t"}}),
        ("EVENT", {"n": 1}, {"sink": "kafka:t"}, {"n": 1, "sink": "kafka:t"}),
    ],
)
def test_what_may_loop_or_wait_is_handed_out_to_system_workers(
    kind: str, data: dict[str, Any], fields: dict[str, Any], given: dict[str, Any]
) -> None:
    tree = Tree(operator(kind, "x", inputParameters=data, **fields), simple("last")).begin()

    row = tree.row("x")
    assert (row.domain, row.task_type, tree.input("x")) == ("system", kind, given)
    assert kind in SYSTEM_TASKS, "somebody does it"
    assert tree.done("x", {"result": 1}).waiting == ["last"]


def test_a_definition_of_its_name_says_how_it_is_retried() -> None:
    """A13."""
    call = operator("HTTP", "x", inputParameters={"uri": "http://h/"})
    once = Tree(call).begin().fails("x")
    assert once.workflow.status == "FAILED"

    again = Tree({**call, "taskDefinition": {"name": "x", "retryCount": 1, "retryDelaySeconds": 0}}).begin().fails("x")
    assert (again.row("x").attempt, again.row("x").domain, again.waiting) == (1, "system", ["x"])


def test_the_domains_of_the_start_are_for_the_user_s_own_tasks() -> None:
    tree = Tree(operator("HTTP", "x", inputParameters={"uri": "http://h/"}), simple("a"))
    tree.start(input=b"{}", task_to_domain=b'{"*": "eu"}')
    tree.done("x")

    assert (tree.row("x").domain, tree.row("a").domain) == ("system", "eu")


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("INLINE", "inputParameters.expression"),
        ("LAMBDA", "inputParameters.scriptExpression"),
        ("JSON_JQ_TRANSFORM", "inputParameters.queryExpression"),
        ("HTTP", "inputParameters.uri"),
        ("KAFKA_PUBLISH", "inputParameters.kafka_request"),
        ("EVENT", "sink"),
    ],
)
def test_what_an_operator_needs_is_asked_for_by_path(kind: str, path: str) -> None:
    assert violations(operator(kind, "x"))[f"tasks[0].{path}"] == f"is required by {kind}"


def test_an_unknown_operator_is_refused_by_name() -> None:
    found = violations(operator("MAGIC", "x"))["tasks[0].type"]

    assert found.startswith("is not a task type of this release; supported: SIMPLE, SWITCH")
    assert "MAGIC" not in TASK_TYPES


def test_an_end_of_its_own_action_by_somebody_else_is_not_supported_yet() -> None:
    found = violations(operator("HTTP", "x", inputParameters={"uri": "http://h/"}, asyncComplete=True))

    assert "is not supported by this release" in found["tasks[0].asyncComplete"]
