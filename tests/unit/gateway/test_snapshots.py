"""Each attempt is shown with the step of its definition, wherever that stands."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from broker_engine.decider.definitions import parse_task_def
from broker_engine.gateway.documents import workflow_document
from tests.support.trees import Tree, each, fork, operator, simple, switch


def shown(tree: Tree) -> dict[str, dict[str, Any]]:
    """The tasks as the API gives them, by reference."""
    rows = list(tree.execution.tasks.values())
    snapshot = orjson.dumps(tree.execution.definition.document)
    document = workflow_document(tree.workflow, rows, snapshot)
    return {task["referenceTaskName"]: task for task in document["tasks"]}


def a_step(**fields: Any) -> dict[str, Any]:
    step = simple("work", **fields)
    step["taskDefinition"]["responseTimeoutSeconds"] = 17
    return step


DYNAMIC = operator("DYNAMIC", "work", dynamicTaskNameParam="w", inputParameters={"w": "encode"})
FORKED = [
    operator(
        "FORK_JOIN_DYNAMIC",
        "fork",
        dynamicForkTasksParam="tasks",
        dynamicForkTasksInputParamName="inputs",
        inputParameters={"tasks": [a_step()], "inputs": {"work": {}}},
    ),
    operator("JOIN", "joined"),
]


@pytest.mark.parametrize(
    ("steps", "reference"),
    [
        ([a_step()], "work"),
        ([switch("s", "a", {"a": [a_step()]})], "work"),
        ([switch("s", "z", {"a": [simple("other")]}, [a_step()])], "work"),
        (fork("f", [a_step()], [simple("other")]), "work"),
        ([each("l", [1, 2], [a_step()])], "work__1"),
        ([each("l", [1, 2], [each("m", [1], [a_step()])])], "work__1__1"),
        ([each("l", [1], fork("f", [switch("s", "a", {"a": [a_step()]})], [simple("other")], join_on=["other"]))],
         "work__1"),
        (FORKED, "work"),
        ([each("l", [1], FORKED)], "work__1"),
        ([DYNAMIC], "work"),
        ([each("l", [1], [DYNAMIC])], "work__1"),
    ],
    ids=[
        "top",
        "case",
        "default case",
        "branch",
        "loop",
        "loop in loop",
        "case in branch in loop",
        "dynamic fork",
        "dynamic fork in loop",
        "dynamic",
        "dynamic in loop",
    ],
)  # fmt: skip
def test_a_task_is_shown_with_its_step_and_the_definition_in_force(steps: list[Any], reference: str) -> None:
    tree = Tree(*steps)
    tree.definitions.tasks["encode"] = parse_task_def({"name": "encode", "responseTimeoutSeconds": 17}).unwrap()
    tree.begin()

    task = shown(tree)[reference]

    assert task["workflowTask"]["taskReferenceName"] == "work"
    assert task["taskDefinition"]["responseTimeoutSeconds"] == 17
    assert task["responseTimeoutSeconds"] == 17


def test_a_workflow_whose_definition_is_gone_is_shown_without_steps() -> None:
    tree = Tree(a_step()).begin()

    document = workflow_document(tree.workflow, list(tree.execution.tasks.values()))

    assert "workflowDefinition" not in document
    assert "workflowTask" not in document["tasks"][0]
