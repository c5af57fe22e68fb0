"""Conformance rows about trees of tasks, told as values through the decider."""

from __future__ import annotations

import orjson

from tests.support.trees import Tree, fork, simple


def test_row_21_a_permissive_branch_that_fails_lets_the_others_end_before_the_join_fails() -> None:
    tree = Tree(*fork("f", [simple("a", permissive=True)], [simple("b")])).begin().fails("a", "no stock")

    assert (tree.workflow.status, tree.waiting) == ("RUNNING", ["b"])
    tree.done("b")

    assert (tree.statuses["f_join"], tree.workflow.status) == ("FAILED", "FAILED")
    assert "a FAILED: no stock" in (tree.workflow.reason or "")


def test_row_31_a_failed_branch_fails_the_join_cancels_the_others_and_ends_the_workflow() -> None:
    tree = Tree(*fork("f", [simple("a")], [simple("b")])).begin().take("b").fails("a", "no stock")

    assert tree.statuses == {"f": "COMPLETED", "a": "FAILED", "b": "CANCELED", "f_join": "FAILED"}
    assert (tree.workflow.status, tree.workflow.reason) == ("FAILED", "no stock")
    assert tree.row("f_join").reason == "a FAILED: no stock"


def test_row_40_a_failed_workflow_starts_its_failure_workflow() -> None:
    tree = Tree(simple("a"), failureWorkflow="clean-up", failureWorkflowVersion=3)
    tree.start(input=b'{"order": 7}', correlation_id="c", task_to_domain=b'{"*": "eu"}')
    tree.fails("a", "no stock")

    (start,) = tree.starts
    assert (start.name, start.version, start.correlation_id, start.task_to_domain) == (
        "clean-up",
        3,
        "c",
        b'{"*": "eu"}',
    )
    given = orjson.loads(start.input)
    failed = given.pop("failedWorkflow")
    assert given == {
        "order": 7,
        "workflowId": "w",
        "reason": "no stock",
        "failureStatus": "FAILED",
        "failureTaskId": tree.row("a").task_id,
    }
    assert tree.result == ("FAILED", {"conductor.failure_workflow": start.key})
    assert (failed["workflowId"], failed["status"], failed["reasonForIncompletion"]) == ("w", "FAILED", "no stock")
    assert [(task["referenceTaskName"], task["status"]) for task in failed["tasks"]] == [("a", "FAILED")]
