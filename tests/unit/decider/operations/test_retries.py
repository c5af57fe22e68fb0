"""Retry: what failed runs again in the next run, with what follows it; what was done stays done."""

from __future__ import annotations

from typing import Any

import orjson

from broker_engine.model.commands import ChildRunsAgain, Parent, RetryWorkflow, SubWorkflowEnded
from broker_engine.model.decision import Send
from broker_engine.model.status import StepStatus, WorkflowStatus
from tests.support.trees import Tree, each, fork, loop, operator, simple, switch


def retry(tree: Tree, **fields: Any) -> Tree:
    return tree.operate(RetryWorkflow, **fields)


def live(tree: Tree) -> list[str]:
    return [task.reference for task in tree.execution_now.live_tasks()]


def test_the_failed_task_runs_again_with_a_new_id_and_the_workflow_goes_on_behind_it() -> None:
    tree = Tree(simple("a"), simple("b"), simple("c")).begin().done("a", {"n": 1}).fails("b")
    failed = tree.row("b")
    tree.later(60_000)

    retry(tree)

    again = tree.row("b")
    assert (tree.workflow.status, tree.workflow.run, tree.workflow.reason) == ("RUNNING", 1, None)
    assert again.task_id != failed.task_id
    assert (again.retried_task_id, again.attempt, again.run) == (failed.task_id, 0, 1)
    assert again.first_scheduled_at_ms == tree.now_ms, "its clocks begin anew"
    assert (tree.row("a").run, tree.row("a").output) == (0, b'{"n":1}'), "what was done is untouched"
    assert tree.done("b").done("c").workflow.status == "COMPLETED"
    assert tree.statuses == {"a": "COMPLETED", "b": "COMPLETED", "c": "COMPLETED"}


def test_a_task_has_all_of_its_retries_again() -> None:
    patient = {"name": "a", "retryCount": 1, "retryDelaySeconds": 0, "ownerEmail": "a@example.com"}
    tree = Tree(simple("a", taskDefinition=patient)).begin().fails("a").fails("a")
    assert tree.workflow.status == "FAILED"

    retry(tree)

    tree.fails("a")
    assert (tree.workflow.status, tree.row("a").attempt) == ("RUNNING", 1)
    assert tree.fails("a").workflow.status == "FAILED"


def test_a_workflow_is_retried_as_often_as_one_likes() -> None:
    tree = Tree(simple("a"), simple("b")).begin().done("a")
    for run in range(1, 4):
        tree.fails("b")
        retry(tree)
        assert tree.workflow.run == run

    assert tree.done("b").workflow.status == "COMPLETED"
    assert len({task.task_id for _, decision in tree.told for task in decision.changed_tasks}) == 5


def test_what_fails_in_a_loop_goes_on_in_its_round() -> None:
    tree = Tree(each("l", [1, 2, 3], [simple("a"), simple("b")]), simple("last")).begin()
    tree.done("a__1", {"n": 1}).done("b__1").done("a__2", {"n": 2}).fails("b__2")
    assert tree.statuses["l"] == "FAILED"

    retry(tree)

    assert live(tree) == ["l", "b__2"]
    assert tree.row("l").iteration == 2
    tree.done("b__2").done("a__3").done("b__3")
    output = tree.output("l")
    assert [output[number]["a"] for number in "123"] == [{"n": 1}, {"n": 2}, {}]
    assert tree.done("last").workflow.status == "COMPLETED"


def test_a_loop_whose_condition_cannot_be_told_asks_again_and_repeats_no_round() -> None:
    tree = Tree(loop("l", [simple("a")])).begin().done("a__1")
    tree.take("l").failed_terminally("no such name", of=tree.row("l"))
    assert tree.workflow.status == "FAILED"

    retry(tree)

    assert tree.waiting == ["l"]
    tree.done("l", {"result": True})
    assert tree.waiting == ["a__2"]


def test_a_fork_in_a_loop_is_joined_again() -> None:
    tree = Tree(each("l", [1, 2], fork("f", [simple("a")], [simple("b")]))).begin()
    tree.done("a__1").done("b__1").done("a__2").fails("b__2")

    retry(tree)

    assert live(tree) == ["l", "b__2", "f_join__2"]
    assert tree.done("b__2").workflow.status == "COMPLETED"


def test_a_task_in_a_case_leads_behind_the_switch() -> None:
    tree = Tree(switch("s", "x", {"x": [simple("a"), simple("b")]}), simple("last")).begin().fails("a")

    retry(tree)

    assert tree.done("a").done("b").waiting == ["last"]


def test_a_step_that_was_completed_is_not_done_again() -> None:
    tree = Tree(simple("a")).begin().take("a")
    tree.step("download", StepStatus.STARTED).step("download", StepStatus.COMPLETED, result=b'"file"')
    tree.failed("boom")

    retry(tree)

    assert [(step.name, step.result) for step in tree.row("a").steps] == [("download", b'"file"')]


def test_what_waits_for_dependencies_waits_again() -> None:
    tree = Tree(simple("a"), simple("b", dependsOn=["a"]), simple("c", dependsOn=["b"]), simple("x")).begin()
    tree.done("a").fails("b")

    retry(tree)

    assert sorted(live(tree)) == ["b", "c", "x"]
    assert tree.row("c").waiting_for == "dependencies"
    tree.done("x").done("b")
    assert tree.waiting == ["c"]
    assert tree.done("c").workflow.status == "COMPLETED"


def test_a_dynamic_fork_keeps_its_tasks() -> None:
    forked = [{"name": "t", "taskReferenceName": f"t{n}", "type": "SIMPLE"} for n in range(2)]
    tree = Tree(
        operator(
            "FORK_JOIN_DYNAMIC",
            "f",
            dynamicForkTasksParam="tasks",
            dynamicForkTasksInputParamName="inputs",
            inputParameters={"tasks": forked, "inputs": {}},
        ),
        operator("JOIN", "f_join", joinOn=[]),
    ).begin()
    tree.done("t0").fails_for_good("t1")

    retry(tree)

    assert tree.waiting == ["t1"]
    assert tree.done("t1").workflow.status == "COMPLETED"


# --- parents and children


def child_of(tree: Tree, reference: str = "child") -> str:
    child = tree.row(reference).sub_workflow_id
    assert child is not None
    return child


def ended(tree: Tree, child: str, status: WorkflowStatus, reference: str = "child") -> Tree:
    command = SubWorkflowEnded(
        key="w",
        operator=f"workflow:{child}",
        reference=reference,
        task_id=tree.row(reference).task_id,
        hand_out=0,
        status=status,
        output=b'{"n":7}',
        reason=None,
    )
    tree.send(command)
    return tree


SUB = operator("SUB_WORKFLOW", "child", subWorkflowParam={"name": "other"})


def test_a_failed_sub_workflow_is_started_anew() -> None:
    tree = Tree(SUB).begin()
    first = child_of(tree)
    ended(tree, first, WorkflowStatus.FAILED)

    retry(tree)

    (start,) = tree.starts
    assert start.key == child_of(tree) != first
    assert ended(tree, child_of(tree), WorkflowStatus.COMPLETED).workflow.status == "COMPLETED"


def test_or_it_goes_on_where_it_failed() -> None:
    tree = Tree(SUB).begin()
    child = child_of(tree)
    ended(tree, child, WorkflowStatus.FAILED)

    retry(tree, resume_children=True)

    assert tree.starts == []
    (sent,) = [out.command for out in tree.now(Send) if isinstance(out.command, RetryWorkflow)]
    assert (sent.key, sent.resume_children) == (child, True)
    assert sent.parent is not None
    assert sent.parent.task_id == tree.row("child").task_id
    assert ended(tree, child, WorkflowStatus.COMPLETED).output("child")["n"] == 7


def test_a_child_that_is_retried_by_itself_wakes_its_parent() -> None:
    tree = Tree(SUB, simple("last")).begin()
    child = child_of(tree)
    old = tree.row("child").task_id
    ended(tree, child, WorkflowStatus.FAILED)

    tree.operate(ChildRunsAgain, reference="child", child_id=child, command_id=None, reply_to=None)

    assert (tree.workflow.status, tree.workflow.run, tree.starts) == ("RUNNING", 1, [])
    command = SubWorkflowEnded(
        key="w",
        operator=f"workflow:{child}",
        reference="child",
        task_id=old,
        hand_out=0,
        status=WorkflowStatus.COMPLETED,
        output=b"{}",
    )
    assert tree.send(command) is tree
    assert tree.waiting == ["last"], "the child knows its parent's first task only"


def test_a_parent_that_has_gone_on_is_left_alone() -> None:
    tree = Tree({**SUB, "optional": True}, simple("last")).begin()
    child = child_of(tree)
    ended(tree, child, WorkflowStatus.FAILED)

    tree.operate(ChildRunsAgain, reference="child", child_id=child, command_id=None, reply_to=None)

    assert tree.workflow.run == 0
    assert "does not wait" in (tree.decision.ignored or "")


def test_a_child_tells_its_parent_that_it_runs_again() -> None:
    tree = Tree(simple("a"))
    tree.start(parent=Parent("p", "child", "task"))
    tree.fails("a")

    retry(tree)

    (told,) = [out.command for out in tree.now(Send) if isinstance(out.command, ChildRunsAgain)]
    assert (told.key, told.reference, told.child_id) == ("p", "child", "w")


def test_a_child_that_cannot_go_on_tells_the_parent_that_waits() -> None:
    tree = Tree(simple("a")).begin().done("a")
    tree.operate(RetryWorkflow, parent=Parent("p", "child", "task"), command_id=None, reply_to=None)

    (told,) = [out.command for out in tree.now(Send) if isinstance(out.command, SubWorkflowEnded)]
    assert (told.key, told.task_id, told.status) == ("p", "task", WorkflowStatus.FAILED)


def test_a_promise_that_has_passed_keeps_a_workflow_from_running_again() -> None:
    tree = Tree(simple("a"))
    tree.start(deadline_at_ms=tree.now_ms + 1_000)
    tree.later(1_001).deadline()

    status, message = retry(tree).answered

    assert (status, "deadlineAt has passed" in message) == (409, True)


def test_a_repeated_command_changes_nothing() -> None:
    tree = Tree(simple("a")).begin().fails("a")
    retry(tree, command_id="same")
    tree.fails("a")
    retry(tree, command_id="same")

    assert (tree.workflow.run, tree.workflow.status) == (1, "FAILED")
    assert orjson.loads(tree.workflow.output or b"{}") == {}
