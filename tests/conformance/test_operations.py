"""Conformance rows about operations on workflows, as values."""

from __future__ import annotations

from typing import Any

import pytest

from broker_engine.decider.definition_tree import from_snapshot
from broker_engine.model.commands import RerunWorkflow, RestartWorkflow, RetryWorkflow, SkipTask
from broker_engine.model.decision import Send
from broker_engine.model.status import WorkflowStatus
from tests.builders import Definitions, asked
from tests.support.trees import Tree, fork, simple


def retry(tree: Tree, **fields: Any) -> Tree:
    return tree.operate(RetryWorkflow, **fields)


def rerun(tree: Tree, reference: str, **fields: Any) -> Tree:
    return tree.operate(RerunWorkflow, task_id=tree.row(reference).task_id, **fields)


def restart(tree: Tree, **fields: Any) -> Tree:
    return tree.operate(RestartWorkflow, **fields)


def skip(tree: Tree, reference: str, **fields: Any) -> Tree:
    return tree.operate(SkipTask, reference=reference, **fields)


def live(tree: Tree) -> list[str]:
    return [task.reference for task in tree.execution_now.live_tasks()]


def test_row_32_failed_and_cancelled_branches_run_again_and_the_join_counts_the_completed_one() -> None:
    tree = Tree(*fork("f", [simple("a")], [simple("b")], [simple("c")]), simple("last")).begin()
    tree.done("a", {"n": 1}).fails("b")
    assert tree.statuses == {"f": "COMPLETED", "a": "COMPLETED", "b": "FAILED", "c": "CANCELED", "f_join": "FAILED"}

    retry(tree)

    assert live(tree) == ["b", "c", "f_join"]
    assert (tree.row("f_join").progress_done, tree.row("f_join").progress_total) == (1, 3)
    tree.done("b").done("c")
    assert tree.output("f_join") == {"a": {"n": 1}, "b": {}, "c": {}}
    assert tree.done("last").workflow.status == "COMPLETED"


@pytest.mark.parametrize("ending", ["running", "completed"])
def test_row_33_what_does_not_fit_is_a_conflict_with_a_remedy(ending: str) -> None:
    tree = Tree(simple("a")).begin()
    if ending == "completed":
        tree.done("a")
    before = tree.execution

    status, message = retry(tree).answered

    assert status == 409
    assert ("terminate it first" if ending == "running" else "rerun it from a task, or restart it") in message
    assert tree.workflow.status == (WorkflowStatus.RUNNING if before is None or ending == "running" else "COMPLETED")


def test_row_33_a_workflow_that_timed_out_runs_again_with_a_new_clock() -> None:
    tree = Tree(simple("a"), timeoutSeconds=100, timeoutPolicy="TIME_OUT_WF").begin()
    tree.later(101_000).deadline()
    assert tree.workflow.status == "TIMED_OUT"

    retry(tree)

    assert live(tree) == ["a"]
    tree.later(99_000).deadline()
    assert tree.workflow.status == "RUNNING"
    tree.later(2_000).deadline()
    assert tree.workflow.status == "TIMED_OUT"


def test_row_34_a_task_runs_again_with_another_input_and_what_followed_it_is_gone() -> None:
    tree = Tree(simple("a"), simple("b", inputParameters={"n": "${a.output.n}"}), simple("c")).begin()
    tree.done("a", {"n": 1}).done("b", {"n": 2}).done("c")
    first = tree.row("b")

    rerun(tree, "b", task_input=b'{"n":99}')

    again = tree.row("b")
    assert (tree.workflow.status, live(tree), tree.input("b")) == ("RUNNING", ["b"], {"n": 99})
    assert (again.retried_task_id, again.output, again.run) == (first.task_id, None, 1)
    assert "c" not in tree.execution_now.tasks
    assert tree.done("b", {"n": 3}).done("c").workflow.status == "COMPLETED"
    assert tree.row("c").run == 1


def test_row_34_a_running_workflow_is_a_conflict_and_an_unknown_task_bad_input() -> None:
    tree = Tree(simple("a")).begin()
    assert rerun(tree, "a").answered[0] == 409
    tree.done("a")

    status, message = tree.operate(RerunWorkflow, task_id="nobody").answered

    assert (status, "the id nobody" in message, tree.workflow.status) == (400, True, "COMPLETED")


def test_row_35_other_branches_keep_what_they_did_and_the_join_counts_again() -> None:
    tree = Tree(*fork("f", [simple("a1"), simple("a2")], [simple("b1"), simple("b2")]), simple("last")).begin()
    tree.done("a1").done("a2", {"n": 1}).done("b1").done("b2", {"n": 2}).done("last")

    rerun(tree, "b1")

    assert live(tree) == ["b1", "f_join"]
    assert (tree.row("f_join").progress_done, tree.row("f_join").progress_total) == (1, 2)
    assert tree.row("a2").run == 0
    tree.done("b1").done("b2", {"n": 3})
    assert tree.output("f_join") == {"a2": {"n": 1}, "b2": {"n": 3}}
    assert tree.done("last").workflow.status == "COMPLETED"


def test_row_36_it_runs_by_its_own_definition_or_by_the_newest() -> None:
    tree = Tree(simple("a")).begin().fails("a")
    newer = from_snapshot({"name": "tree", "version": 2, "tasks": [simple("b")]})
    tree.definitions = Definitions.of(tree.definition, newer)

    restart(tree)
    assert live(tree) == ["a"]
    tree.fails("a")
    tree.operate(RestartWorkflow, use_latest=True)

    assert (live(tree), tree.workflow.version) == (["b"], 2)


def test_row_36_a_workflow_that_is_not_restartable_and_has_completed_is_a_conflict() -> None:
    tree = Tree(simple("a"), restartable=False).begin().done("a")

    assert restart(tree).answered[0] == 409
    assert tree.workflow.status == WorkflowStatus.COMPLETED


def test_row_38_a_task_that_has_not_begun_is_jumped_over_when_it_is_reached() -> None:
    tree = Tree(simple("a"), simple("b"), simple("c", inputParameters={"n": "${b.output.n}"})).begin()

    assert skip(tree, "b", output=b'{"n":5}').answered[0] == 200
    tree.done("a")

    assert tree.statuses == {"a": "COMPLETED", "b": "SKIPPED", "c": "SCHEDULED"}
    assert tree.input("c") == {"n": 5}
    assert tree.done("c").workflow.status == "COMPLETED"


def test_row_38_a_task_that_is_there_is_a_conflict() -> None:
    tree = Tree(simple("a")).begin()

    status, message = skip(tree, "a").answered

    assert (status, message) == (409, "task a is SCHEDULED: only one that has not begun can be skipped")


def test_row_39_a_termination_cancels_starts_no_failure_workflow_and_is_harmless_twice() -> None:
    tree = Tree(simple("a"), simple("b"), failureWorkflow="tidy").begin()

    tree.terminate("enough", **asked("first"))

    assert (tree.workflow.status, tree.workflow.reason) == ("TERMINATED", "enough")
    assert (tree.statuses, tree.now(Send), tree.answered[0]) == ({"a": "CANCELED"}, [], 200)
    before = tree.workflow.ended_at_ms
    tree.later(5_000).terminate("again", **asked("second"))
    assert (tree.answered[0], tree.workflow.reason, tree.workflow.ended_at_ms) == (200, "enough", before)


def test_row_39_a_completed_workflow_cannot_be_terminated() -> None:
    tree = Tree(simple("a")).begin().done("a")

    tree.terminate(**asked("c9"))

    assert (tree.answered[0], tree.workflow.status) == (409, "COMPLETED")
