"""SUB_WORKFLOW, START_WORKFLOW and failure workflows: commands from one workflow to another."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from broker_engine.decider.decide import decide
from broker_engine.model.commands import (
    AnyCommand,
    IdempotencyStrategy,
    Parent,
    StartWorkflow,
    SubWorkflowEnded,
    TerminateWorkflow,
)
from broker_engine.model.decision import Send
from broker_engine.model.status import WorkflowStatus
from tests.builders import Definitions, Story
from tests.support.trees import Tree, each, fork, operator, simple, violations


def sub(reference: str = "s", *, name: Any = "child", inputs: dict[str, Any] | None = None, **fields: Any) -> Any:
    return operator("SUB_WORKFLOW", reference, subWorkflowParam={"name": name}, inputParameters=inputs or {}, **fields)


def sent(story: Story) -> list[AnyCommand]:
    return [output.command for output in story.decision.outputs if isinstance(output, Send)]


def ended(tree: Tree, reference: str, status: WorkflowStatus, output: Any = None, reason: str | None = None) -> Tree:
    """The child of a task has ended."""
    row = tree.row(reference)
    data = orjson.dumps(output or {})
    tree.send(
        SubWorkflowEnded(
            key="w",
            reference=reference,
            task_id=row.task_id,
            hand_out=0,
            status=status,
            output=data,
            reason=reason,
        )
    )
    return tree


# --- the parent's side


def test_a_child_is_started_with_what_it_inherits() -> None:
    tree = Tree(sub(inputs={"n": "${workflow.input.n}"}), simple("last"))
    tree.start(input=b'{"n": 3}', priority=7, correlation_id="c-1", task_to_domain=b'{"*": "eu"}', tenant="acme")

    row, (start,) = tree.row("s"), sent(tree)
    assert isinstance(start, StartWorkflow)
    assert (start.name, orjson.loads(start.input), start.strategy) == (
        "child",
        {"n": 3},
        IdempotencyStrategy.RETURN_EXISTING,
    )
    assert (start.priority, start.correlation_id, start.task_to_domain, start.tenant) == (
        7,
        "c-1",
        b'{"*": "eu"}',
        "acme",
    )
    assert start.parent == Parent("w", "s", row.task_id)
    assert (row.status, row.waiting_for, row.sub_workflow_id) == ("IN_PROGRESS", "workflow", start.key)
    assert tree.output("s") == {"subWorkflowId": start.key}


def test_workflow_input_is_the_child_s_whole_input() -> None:
    tree = Tree(sub(inputs={"workflowInput": {"a": 1}, "other": 2})).begin()

    (start,) = sent(tree)
    assert isinstance(start, StartWorkflow)
    assert orjson.loads(start.input) == {"a": 1}


def test_the_parameters_of_the_child_may_be_expressions() -> None:
    step = operator(
        "SUB_WORKFLOW",
        "s",
        subWorkflowParam={"name": "${workflow.input.which}", "version": 2, "priority": 9, "taskToDomain": {"*": "us"}},
    )
    tree = Tree(step).begin(which="other")

    (start,) = sent(tree)
    assert isinstance(start, StartWorkflow)
    assert (start.name, start.version, start.priority, start.task_to_domain) == ("other", 2, 9, b'{"*":"us"}')


def test_a_child_may_bring_its_definition() -> None:
    definition = {"name": "own", "tasks": [simple("x")]}
    tree = Tree(operator("SUB_WORKFLOW", "s", subWorkflowParam={"workflowDefinition": definition})).begin()

    (start,) = sent(tree)
    assert isinstance(start, StartWorkflow)
    assert (start.name, orjson.loads(start.definition or b"")) == ("own", definition)


def test_the_child_s_output_is_the_task_s() -> None:
    tree = Tree(sub(), simple("last", inputParameters={"n": "${s.output.n}"})).begin()

    ended(tree, "s", WorkflowStatus.COMPLETED, {"n": 5})

    assert tree.output("s") == {"subWorkflowId": tree.row("s").sub_workflow_id, "n": 5}
    assert (tree.statuses["s"], tree.input("last")) == ("COMPLETED", {"n": 5})


@pytest.mark.parametrize(
    ("child", "task", "workflow"),
    [
        (WorkflowStatus.FAILED, "FAILED", "FAILED"),
        (WorkflowStatus.TERMINATED, "CANCELED", "TERMINATED"),
        (WorkflowStatus.TIMED_OUT, "TIMED_OUT", "TIMED_OUT"),
    ],
)
def test_the_child_s_end_is_the_task_s(child: WorkflowStatus, task: str, workflow: str) -> None:
    tree = ended(Tree(sub()).begin(), "s", child, reason="no stock")

    assert (tree.statuses["s"], tree.workflow.status, tree.workflow.reason) == (task, workflow, "no stock")
    assert sent(tree) == [], "nobody is told of what it told itself"


def test_an_optional_child_that_fails_lets_the_flow_go_on() -> None:
    tree = ended(Tree(sub(optional=True), simple("last")).begin(), "s", WorkflowStatus.FAILED)

    assert (tree.statuses["s"], tree.waiting) == ("COMPLETED_WITH_ERRORS", ["last"])


def test_an_end_that_is_told_twice_changes_nothing() -> None:
    tree = ended(Tree(sub(), simple("last")).begin(), "s", WorkflowStatus.COMPLETED, {"n": 1})
    before = tree.execution

    ended(tree, "s", WorkflowStatus.FAILED)

    assert tree.execution == before
    assert tree.ignored == "the task is COMPLETED already"


def test_each_round_has_a_child_of_its_own() -> None:
    tree = Tree(each("l", [1, 2], [sub(inputs={"n": "${l.output.loopItem}"})])).begin()
    first = tree.row("s__1").sub_workflow_id

    ended(tree, "s__1", WorkflowStatus.COMPLETED)

    assert tree.row("s__2").sub_workflow_id not in (None, first)


@pytest.mark.parametrize("how", ["terminate", "cancel", "another branch fails", "time-out"])
def test_whatever_ends_the_task_terminates_its_child(how: str) -> None:
    limit = {"name": "s", "timeoutSeconds": 5, "responseTimeoutSeconds": 5}
    tree = Tree(*fork("f", [sub(taskDefinition=limit)], [simple("b")])).begin()
    child = tree.row("s").sub_workflow_id

    match how:
        case "terminate":
            tree.terminate("enough")
        case "cancel":
            tree.cancel("s")
        case "time-out":
            tree.next_deadline()
        case _:
            tree.fails("b")

    (command,) = sent(tree)
    assert isinstance(command, TerminateWorkflow)
    assert (command.key, tree.row("s").is_terminal) == (child, True)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"name": "${workflow.input.none}"}, "name must name a workflow, not None"),
        ({"name": "c", "version": "${workflow.input.bad}"}, "version must be a whole number from 1 on, not 'x'"),
        ({"name": "c", "priority": "${workflow.input.bad}"}, "priority must be 0 to 99, not 'x'"),
    ],
)
def test_parameters_that_make_no_sense_are_a_terminal_error(given: dict[str, Any], reason: str) -> None:
    tree = Tree(operator("SUB_WORKFLOW", "s", subWorkflowParam=given)).begin(bad="x")

    assert (tree.statuses["s"], tree.workflow.reason) == ("FAILED_WITH_TERMINAL_ERROR", f"subWorkflowParam: {reason}")
    assert sent(tree) == []


def test_start_workflow_starts_and_goes_on() -> None:
    request = {"name": "other", "version": 2, "input": {"n": 1}, "correlationId": "own"}
    tree = Tree(operator("START_WORKFLOW", "s", inputParameters={"startWorkflow": request}), simple("last")).begin()

    (start,) = sent(tree)
    assert isinstance(start, StartWorkflow)
    assert (start.name, start.version, orjson.loads(start.input), start.correlation_id, start.parent) == (
        "other",
        2,
        {"n": 1},
        "own",
        None,
    )
    assert (tree.output("s"), tree.waiting) == ({"workflowId": start.key}, ["last"])


def test_what_they_need_is_asked_for_by_path() -> None:
    assert violations(operator("SUB_WORKFLOW", "s")) == {"tasks[0].subWorkflowParam": "is required by SUB_WORKFLOW"}
    nameless = operator("SUB_WORKFLOW", "s", subWorkflowParam={"version": 1})
    assert violations(nameless) == {"tasks[0].subWorkflowParam.name": "is required by SUB_WORKFLOW"}
    assert violations(operator("START_WORKFLOW", "s")) == {
        "tasks[0].inputParameters.startWorkflow": "is required by START_WORKFLOW"
    }


# --- again

AGAIN = {"name": "s", "retryCount": 2, "retryDelaySeconds": 5, "retryLogic": "LINEAR_BACKOFF"}


def test_a_failed_child_is_followed_by_a_new_one_after_the_back_off() -> None:
    tree = Tree(sub(taskDefinition=AGAIN), simple("last", inputParameters={"n": "${s.output.n}"})).begin()
    first = tree.row("s")
    ended(tree, "s", WorkflowStatus.FAILED, reason="no stock")
    assert (tree.row("s").phase, tree.row("s").due_at_ms, sent(tree)) == ("RETRY_WAIT", tree.now_ms + 5_000, [])

    tree.later(5_000).delay_due(of=tree.row("s"))

    row, (start,) = tree.row("s"), sent(tree)
    assert isinstance(start, StartWorkflow)
    assert (row.attempt, row.phase, row.waiting_for, row.retried_task_id) == (1, "RUNNING", "workflow", first.task_id)
    assert start.key == row.sub_workflow_id == tree.output("s")["subWorkflowId"] != first.sub_workflow_id
    assert start.parent == Parent("w", "s", row.task_id)
    ended(tree, "s", WorkflowStatus.COMPLETED, {"n": 5})
    assert tree.input("last") == {"n": 5}


def test_a_child_without_a_delay_is_started_again_at_once() -> None:
    tree = Tree(sub(taskDefinition={**AGAIN, "retryDelaySeconds": 0})).begin()

    ended(tree, "s", WorkflowStatus.TIMED_OUT)

    assert (tree.row("s").attempt, tree.row("s").phase, len(sent(tree))) == (1, "RUNNING", 1)


def test_when_no_attempt_is_left_the_workflow_fails_with_its_child() -> None:
    tree = Tree(sub(taskDefinition={**AGAIN, "retryDelaySeconds": 0})).begin()

    for _ in range(3):
        ended(tree, "s", WorkflowStatus.FAILED, reason="no stock")

    assert (tree.row("s").attempt, tree.workflow.status, tree.workflow.reason) == (2, "FAILED", "no stock")


def test_a_child_that_was_terminated_is_not_started_again() -> None:
    tree = ended(Tree(sub(taskDefinition=AGAIN)).begin(), "s", WorkflowStatus.TERMINATED)

    assert (tree.row("s").attempt, tree.workflow.status) == (0, "TERMINATED")


def test_a_time_out_terminates_the_child_and_starts_another() -> None:
    limit = {**AGAIN, "timeoutSeconds": 9, "responseTimeoutSeconds": 9, "timeoutPolicy": "RETRY"}
    tree = Tree(sub(taskDefinition=limit)).begin()
    first = tree.row("s").sub_workflow_id

    tree.next_deadline()
    (command,) = sent(tree)
    assert isinstance(command, TerminateWorkflow)
    assert (command.key, tree.row("s").phase) == (first, "RETRY_WAIT")

    tree.later(5_000).delay_due(of=tree.row("s"))
    assert tree.row("s").sub_workflow_id not in (None, first)


def test_the_end_of_an_earlier_child_is_of_the_past() -> None:
    tree = Tree(sub(taskDefinition={**AGAIN, "retryDelaySeconds": 0})).begin()
    first = tree.row("s")
    ended(tree, "s", WorkflowStatus.FAILED)
    before = tree.execution

    about = {"key": "w", "reference": "s", "task_id": first.task_id, "hand_out": 0}
    tree.send(SubWorkflowEnded(**about, status=WorkflowStatus.COMPLETED))

    assert tree.execution == before


def test_a_pause_holds_the_next_child_until_it_is_resumed() -> None:
    tree = ended(Tree(sub(taskDefinition=AGAIN)).begin(), "s", WorkflowStatus.FAILED)
    tree.pause_workflow().later(5_000).delay_due(of=tree.row("s"))
    assert (tree.row("s").phase, sent(tree)) == ("PAUSED", [])

    tree.resume_workflow()

    assert (tree.row("s").phase, len(sent(tree))) == ("RUNNING", 1)


# --- the child's side


PARENT = Parent("p", "s", "task-of-p")


@pytest.mark.parametrize(
    ("end", "status"), [("completed", "COMPLETED"), ("failed_terminally", "FAILED"), ("terminate", "TERMINATED")]
)
def test_a_child_tells_its_parent_how_it_ended(end: str, status: str) -> None:
    child = Story("a").start(parent=PARENT).taken()

    if end == "completed":
        child.completed({"n": 1})
    else:
        getattr(child, end)("enough")

    (told,) = sent(child)
    assert isinstance(told, SubWorkflowEnded)
    assert (told.key, told.reference, told.task_id, told.status) == ("p", "s", "task-of-p", status)
    assert told.output == (b'{"n":1}' if end == "completed" else b"{}")
    assert told.reason == (None if end == "completed" else "enough")


def test_a_child_that_cannot_start_has_failed() -> None:
    story = Story("a")
    story.definitions = Definitions()

    story.start(name="nobody", parent=PARENT)

    (told,) = sent(story)
    assert isinstance(told, SubWorkflowEnded)
    assert (told.status, told.task_id) == ("FAILED", "task-of-p")
    assert "could not start: there is no workflow definition nobody" in (told.reason or "")


def test_a_start_that_comes_twice_starts_one_child_and_tells_nobody() -> None:
    story = Story("a").start(parent=PARENT, strategy=IdempotencyStrategy.RETURN_EXISTING)
    before = story.execution

    story.start(parent=PARENT, strategy=IdempotencyStrategy.RETURN_EXISTING)

    assert (story.execution, sent(story)) == (before, [])


def test_expressions_of_a_child_see_its_parent() -> None:
    step = simple("a", inputParameters={"p": "${workflow.parentWorkflowId}", "t": "${workflow.parentWorkflowTaskId}"})
    tree = Tree(step)
    tree.start(parent=PARENT)

    assert tree.input("a") == {"p": "p", "t": "task-of-p"}


# --- failure workflows


@pytest.mark.parametrize(
    ("limit", "text", "left_out", "kept"),
    [
        (10_000, "x", None, {"order", "failedWorkflow"}),
        (1_800, "x" * 500, "inputs and outputs in failedWorkflow.tasks", {"order", "failedWorkflow"}),
        (1_500, "x" * 500, "failedWorkflow.tasks", {"order", "failedWorkflow"}),
        (1_150, "x" * 500, "input, output and variables of failedWorkflow", {"order", "failedWorkflow"}),
        (600, "x" * 500, "the failed workflow's input", set()),
    ],
)
def test_what_makes_its_input_too_large_is_left_out_and_named(
    limit: int, text: str, left_out: str | None, kept: set[str]
) -> None:
    step = simple("a", inputParameters={"order": "${workflow.input.order}"})
    tree = Tree(step, failureWorkflow="clean-up").begin(order=text)
    tree.given(max_payload_bytes=limit)
    tree.fails("a", "no stock")

    (start,) = sent(tree)
    assert isinstance(start, StartWorkflow)
    given = orjson.loads(start.input)
    assert {"order", "failedWorkflow"} & set(given) == kept
    assert len(start.input) <= limit
    assert given["failureStatus"] == "FAILED"
    if left_out is None:
        assert given["reason"] == "no stock"
    else:
        assert left_out in given["reason"]


def refusal(tree: Tree, reason: str) -> Tree:
    """The failure workflow could not start."""
    (start,) = sent(tree)
    assert isinstance(start, StartWorkflow)
    child = decide(None, start, tree.context())
    (told,) = [out.command for out in child.outputs if isinstance(out, Send)]
    assert isinstance(told, SubWorkflowEnded)
    assert reason in (told.reason or "")
    tree.send(told)
    return tree


def test_a_refused_failure_workflow_shows_in_the_failed_one() -> None:
    tree = Tree(simple("a"), failureWorkflow="nobody").begin().fails("a", "no stock")

    refusal(tree, "there is no workflow definition nobody")

    assert (tree.workflow.reason or "").startswith(
        "no stock; failureWorkflow: the failure workflow could not start: there is no workflow definition nobody"
    )
    assert tree.codes() == ["FAILURE_WORKFLOW_REFUSED"]
    before = tree.execution
    command, _ = tree.told[-1]
    assert tree.send(command).execution == before, "told twice it changes nothing"


def test_a_failure_workflow_whose_id_is_taken_shows_too() -> None:
    tree = Tree(simple("a"), failureWorkflow="tree").begin().fails("a", "no stock")
    (start,) = sent(tree)
    assert isinstance(start, StartWorkflow)
    other = Tree(simple("a"))
    other.start(key=start.key)

    decision = decide(other.execution, start, other.context())

    (told,) = [out.command for out in decision.outputs if isinstance(out, Send)]
    assert isinstance(told, SubWorkflowEnded)
    assert "is taken by a workflow of somebody else's" in (told.reason or "")


def test_a_failure_workflow_is_no_child_of_the_failed_one() -> None:
    tree = Tree(simple("a"), failureWorkflow="tree").begin().fails("a", "no stock")
    (start,) = sent(tree)
    assert isinstance(start, StartWorkflow)

    decision = decide(None, start, tree.context())
    assert decision.execution is not None
    assert decision.execution.workflow.parent_task_id is None
    again = decide(decision.execution, start, tree.context())
    assert (again.execution, again.outputs) == (decision.execution, ()), "started once"


@pytest.mark.parametrize("status", ["FAILED", "TERMINATED", "COMPLETED"])
def test_a_terminate_task_starts_it_unless_it_completes(status: str) -> None:
    ends = operator("TERMINATE", "t", inputParameters={"terminationStatus": status})
    tree = Tree(ends, failureWorkflow="clean-up").begin()

    assert len(sent(tree)) == (status != "COMPLETED")


def test_a_termination_on_request_starts_none() -> None:
    tree = Tree(simple("a"), failureWorkflow="clean-up").begin()
    tree.terminate("enough")

    assert sent(tree) == []


def test_its_name_may_be_an_expression() -> None:
    tree = Tree(simple("a"), failureWorkflow="${workflow.input.handler}").begin(handler="mine").fails("a")

    (start,) = sent(tree)
    assert isinstance(start, StartWorkflow)
    assert start.name == "mine"
