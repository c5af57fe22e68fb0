"""Retry: what failed in a workflow that has ended is tried again; what was done stays done.

Every latest attempt that did not succeed gets a new first attempt in the next run (also those that were cancelled
because another one failed), with all of its retries, and goes on behind the steps that it had completed (B6).
"""

from __future__ import annotations

from collections.abc import Mapping

from broker_engine.decider import children
from broker_engine.decider.draft import Draft, Repeat
from broker_engine.decider.operations.again import run_again, take_up
from broker_engine.decider.operations.refusals import not_ended, refuse, tell_parent
from broker_engine.model.commands import ChildRunsAgain, Parent, RetryWorkflow
from broker_engine.model.decision import Send
from broker_engine.model.state import TaskState
from broker_engine.model.status import FACTS, ReasonCode, WorkflowStatus


def retry(draft: Draft, command: RetryWorkflow) -> str | None:
    """Try again what failed."""
    failed = failed_tasks(draft)
    problem = not_ended(draft, "retried") or (None if failed else _nothing_failed(draft))
    if problem is not None:
        if command.parent is not None and draft.workflow.status.is_terminal:
            draft.outputs.append(children.not_resumed(command, command.parent, problem))
        return refuse(draft, problem)
    if command.parent is not None:
        draft.change_workflow(parent_task_id=command.parent.task_id)
    take_up(draft, ReasonCode.WORKFLOW_RETRIED, f"retried by {command.operator}")
    targets = {}
    for row in failed:
        is_resumed = command.resume_children and children.is_child_step(draft.step(row)) and row.sub_workflow_id
        targets[row.reference] = _repeat(row, child=row.sub_workflow_id if is_resumed else None)
    run_again(draft, targets, ReasonCode.WORKFLOW_RETRIED, is_retry=True)
    _resume_children(draft, targets)
    if command.parent is None:
        tell_parent(draft)
    draft.answer(200, draft.workflow.workflow_id)
    return None


def child_runs_again(draft: Draft, command: ChildRunsAgain) -> str | None:
    """A sub-workflow runs again: a workflow that failed with it waits for it again."""
    row = draft.execution.tasks.get(command.reference)
    if row is None or row.sub_workflow_id != command.child_id:
        return f"{command.reference} has not started workflow {command.child_id} last"
    if not draft.workflow.status.is_terminal or FACTS[row.status].is_successful or not row.is_terminal:
        return f"the workflow is {draft.workflow.status} and does not wait for workflow {command.child_id}"
    if not_ended(draft, "retried") is not None:
        return not_ended(draft, "retried")
    take_up(draft, ReasonCode.CHILD_RUNS_AGAIN, f"sub-workflow {command.child_id} runs again by {command.operator}")
    targets = {
        failed.reference: _repeat(failed, child=command.child_id if failed.reference == row.reference else None)
        for failed in failed_tasks(draft)
    }
    run_again(draft, targets, ReasonCode.CHILD_RUNS_AGAIN, is_retry=True)
    tell_parent(draft)
    return None


def failed_tasks(draft: Draft) -> list[TaskState]:
    """The latest attempts that did not succeed, in the order in which they appeared."""
    rows = draft.execution.tasks.values()
    found = [row for row in rows if row.is_terminal and not FACTS[row.status].is_successful]
    return sorted(found, key=lambda row: row.seq)


def _nothing_failed(draft: Draft) -> str:
    if draft.workflow.status is WorkflowStatus.COMPLETED:
        return "the workflow is COMPLETED, nothing failed in it: rerun it from a task, or restart it"
    return "no task of the workflow failed: rerun it from a task, or restart it"


def _repeat(row: TaskState, *, child: str | None) -> Repeat:
    return Repeat(
        retried_task_id=row.task_id,
        steps=row.steps,
        checkpoint=row.checkpoint,
        definition=row.definition if row.task_type != "FORK_JOIN_DYNAMIC" else None,
        child=child,
        goes_on=True,
    )


def _resume_children(draft: Draft, targets: Mapping[str, Repeat]) -> None:
    """Have the sub-workflows that are waited for again go on."""
    for reference, repeat in targets.items():
        row = draft.execution.tasks.get(reference)
        if row is None or row.is_terminal or row.sub_workflow_id is None or repeat.child != row.sub_workflow_id:
            continue
        command = RetryWorkflow(
            key=row.sub_workflow_id,
            operator=draft.command.operator,
            resume_children=True,
            parent=Parent(row.workflow_id, row.reference, row.task_id),
        )
        draft.outputs.append(Send(command=command))
