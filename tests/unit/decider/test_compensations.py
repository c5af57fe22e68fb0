"""Compensation: what was completed is undone, the last first, when the workflow fails."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from broker_engine.model.commands import (
    RestartWorkflow,
    RetryWorkflow,
    StartWorkflow,
    SubWorkflowEnded,
    TerminateWorkflow,
)
from broker_engine.model.decision import Send
from broker_engine.model.status import WorkflowStatus
from tests.support.trees import Tree, each, fork, operator, simple, violations


def undoable(reference: str, **fields: Any) -> dict[str, Any]:
    return simple(reference, compensation={"task": f"un{reference}"}, **fields)


def undoing(tree: Tree) -> StartWorkflow:
    (start,) = [start for start in tree.starts if start.name == "tree.compensation"]
    return start


def undone(tree: Tree) -> list[str]:
    definition = orjson.loads(undoing(tree).definition or b"{}")
    return [step["name"] for step in definition["tasks"]]


def test_what_was_completed_is_undone_the_last_first() -> None:
    tree = Tree(undoable("pay", inputParameters={"amount": 5}), undoable("ship"), simple("note"), simple("last"))
    tree.begin().done("pay", {"receipt": 7}).later(1_000).done("ship").done("note").fails("last", "no stock")

    start = undoing(tree)
    assert undone(tree) == ["unship", "unpay"]
    assert tree.workflow.compensated_by == start.key
    given = orjson.loads(start.input)
    assert (given["workflowId"], given["reason"]) == ("w", "no stock")
    assert (given["compensates"][1]["input"], given["compensates"][1]["output"]) == ({"amount": 5}, {"receipt": 7})


def test_the_undoing_workflow_runs_and_gives_each_task_what_it_undoes() -> None:
    tree = Tree(undoable("pay", inputParameters={"text": "${workflow.input.text}"}), simple("last"))
    tree.begin(text="${not.an.expression}").done("pay", {"receipt": 7}).fails("last")
    start = undoing(tree)

    undo = Tree(*orjson.loads(start.definition or b"{}")["tasks"]).begin(**orjson.loads(start.input))

    assert undo.waiting == ["undo_1_pay"]
    assert undo.input("undo_1_pay") == {
        "input": {"text": "${not.an.expression}"},
        "output": {"receipt": 7},
        "taskId": tree.row("pay").task_id,
        "referenceTaskName": "pay",
        "workflowId": "w",
        "reason": "boom",
    }
    assert undo.done("undo_1_pay").workflow.status == "COMPLETED"


def test_what_has_not_completed_is_not_undone() -> None:
    tree = Tree(*fork("f", [undoable("a")], [undoable("b")], [undoable("c", optional=True)])).begin()
    tree.done("a").fails("c").fails("b")

    assert undone(tree) == ["una"], "b failed, c did not do its work"


def test_every_round_of_a_loop_is_undone() -> None:
    tree = Tree(each("l", [1, 2, 3], [undoable("a")]), simple("last")).begin()
    for number in (1, 2, 3):
        tree.later(10).done(f"a__{number}", {"n": number})
    tree.fails("last")

    given = orjson.loads(undoing(tree).input)["compensates"]
    assert [one["output"]["n"] for one in given] == [3, 2, 1]
    assert {*tree.restored().tasks} == {*tree.execution_now.tasks}


def test_tasks_of_a_dynamic_fork_are_undone() -> None:
    forked = [{"name": "t", "taskReferenceName": "t1", "type": "SIMPLE", "compensation": {"task": "unt"}}]
    tree = Tree(
        operator(
            "FORK_JOIN_DYNAMIC",
            "f",
            dynamicForkTasksParam="tasks",
            dynamicForkTasksInputParamName="inputs",
            inputParameters={"tasks": forked, "inputs": {}},
        ),
        operator("JOIN", "j", joinOn=[]),
        simple("last"),
    )
    tree.begin().done("t1").fails("last")

    assert undone(tree) == ["unt"]


def test_nothing_is_undone_where_nothing_can_be() -> None:
    assert Tree(simple("a"), simple("b")).begin().done("a").fails("b").starts == []
    assert Tree(undoable("a"), simple("b")).begin().done("a").done("b").starts == []
    assert Tree(undoable("a")).begin().fails("a").workflow.compensated_by is None


@pytest.mark.parametrize(("compensate", "expected"), [(False, []), (True, ["una"])])
def test_a_termination_undoes_when_it_is_asked_to(compensate: bool, expected: list[str]) -> None:
    tree = Tree(undoable("a"), simple("b")).begin().done("a").terminate(compensate=compensate)

    assert isinstance(tree, Tree)
    assert (undone(tree) if tree.starts else []) == expected


def test_a_child_that_ends_with_its_parent_undoes_too() -> None:
    sub = operator("SUB_WORKFLOW", "child", subWorkflowParam={"name": "other"})
    tree = Tree(*fork("f", [sub], [simple("a")])).begin().fails("a")

    (told,) = [out.command for out in tree.now(Send) if isinstance(out.command, TerminateWorkflow)]
    assert told.compensate


def test_what_was_undone_is_not_retried_but_restarted() -> None:
    tree = Tree(undoable("a"), simple("b")).begin().done("a").fails("b")
    first = tree.workflow.compensated_by

    status, message = tree.operate(RetryWorkflow).answered
    assert (status, f"undone by workflow {first}: restart it" in message) == (409, True)
    tree.operate(RestartWorkflow)
    assert (tree.workflow.status, tree.workflow.compensated_by) == ("RUNNING", None)
    tree.done("a").fails("b")
    assert tree.workflow.compensated_by not in (None, first)


def test_an_undoing_workflow_that_cannot_start_shows_in_the_failed_one() -> None:
    tree = Tree(undoable("a"), simple("b")).begin().done("a").fails("b", "no stock")
    refused = SubWorkflowEnded(
        key="w",
        operator=f"workflow:{tree.workflow.compensated_by}",
        reference="",
        task_id="",
        hand_out=0,
        status=WorkflowStatus.FAILED,
        reason="the compensation workflow could not start: starts are stopped",
    )

    tree.send(refused)

    assert "no stock; compensation: the compensation workflow could not start" in (tree.workflow.reason or "")


def test_what_is_too_large_is_left_out_and_said() -> None:
    tree = Tree(undoable("a"), undoable("b"), simple("c")).begin()
    tree.done("a", {"x": "y" * 300}).done("b", {"x": "y" * 300}).given(max_payload_bytes=700)
    tree.fails("c")

    given = orjson.loads(undoing(tree).input)
    assert [one["referenceTaskName"] for one in given["compensates"]] == ["b", "a"]
    assert "output" not in given["compensates"][0]
    assert len(given["leftOut"]) == 2


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({}, "tasks[0].compensation.task"),
        ({"task": 5}, "tasks[0].compensation.task"),
        ("undo", "tasks[0].compensation"),
        ({"task": "x" * 300}, "tasks[0].compensation.task"),
    ],
)
def test_a_compensation_that_names_no_task_is_a_violation(given: Any, path: str) -> None:
    assert list(violations(simple("a", compensation=given))) == [path]
