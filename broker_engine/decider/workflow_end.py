"""How a workflow ends: with its tasks, by a failure, or from outside; and whom it tells."""

from __future__ import annotations

from collections.abc import Mapping

from broker_engine.decider import compensations, controls, failures
from broker_engine.decider.documents import workflow_output
from broker_engine.decider.draft import MAX_REASON, Draft
from broker_engine.decider.moves import Cause
from broker_engine.model.commands import SubWorkflowEnded, TerminateWorkflow
from broker_engine.model.decision import ControlKind, Send
from broker_engine.model.definitions import iterations
from broker_engine.model.state import TaskState
from broker_engine.model.status import (
    FACTS,
    STARTED,
    Phase,
    ReasonCode,
    TaskStatus,
    WaitingFor,
    WorkflowStatus,
)

#: How a workflow ends whose task ended so for good (Conductor's DeciderService.retry).
WORKFLOW_ENDS: Mapping[TaskStatus, WorkflowStatus] = {
    TaskStatus.FAILED: WorkflowStatus.FAILED,
    TaskStatus.FAILED_WITH_TERMINAL_ERROR: WorkflowStatus.FAILED,
    TaskStatus.TIMED_OUT: WorkflowStatus.TIMED_OUT,
    TaskStatus.CANCELED: WorkflowStatus.TERMINATED,
}


def complete(draft: Draft) -> None:
    """End the workflow, whose tasks have all ended."""
    tasks = draft.execution.tasks
    failed = [
        task
        for task in tasks.values()
        if not FACTS[task.status].is_successful and draft.step(task).permissive and not draft.step(task).optional
    ]
    if failed:
        failed.sort(key=lambda task: task.seq)
        reason = "; ".join(f"{task.reference} {task.status}: {task.reason or 'no reason given'}" for task in failed)
        end_by_failure(draft, failed[0], ReasonCode.RETRIES_EXHAUSTED, reason, WorkflowStatus.FAILED)
    else:
        last = max(tasks.values(), key=lambda task: task.seq)
        finish(draft, WorkflowStatus.COMPLETED, ReasonCode.ALL_TASKS_DONE, None, last=last)


def end_by_failure(
    draft: Draft,
    task: TaskState,
    code: ReasonCode,
    reason: str | None = None,
    status: WorkflowStatus | None = None,
) -> None:
    _fail_around(draft, task)
    reason = reason or task.reason or f"task {task.reference} ended {task.status}"
    finish(draft, status or WORKFLOW_ENDS[task.status], code, reason, last=task, failed=task)


def _fail_around(draft: Draft, task: TaskState) -> None:
    """The JOINs that wait for a failed task fail with it, and so do the loops around it."""
    execution = draft.execution
    node, suffix = execution.definition.locate(task.reference)
    around = execution.definition.joins_of(node, suffix)
    around += [
        loop + "".join(f"__{number}" for number in iterations(suffix)[:depth]) for depth, loop in enumerate(node.loops)
    ]
    is_canceled = task.status is TaskStatus.CANCELED
    for row in [execution.tasks[reference] for reference in around if reference in (execution.live or ())]:
        if row.waiting_for is WaitingFor.DEPENDENCIES:
            continue  # it has not begun: canceled with the rest
        reason = f"{task.reference} {task.status}: {task.reason or 'no reason given'}"
        if is_canceled:
            cause, phase, status = Cause.CANCELED_BY_WORKER, Phase.CANCELED, TaskStatus.CANCELED
        else:
            cause, phase, status = Cause.FAILED, Phase.FAILED, TaskStatus.FAILED
        draft.move(row, cause, phase, ReasonCode.JOINED, status=status, reason=reason, waiting_for=None)


def end_workflow(draft: Draft, status: WorkflowStatus, code: ReasonCode, reason: str) -> None:
    """End a live workflow from outside its tasks (request or time-out)."""
    finish(draft, status, code, reason, last=None)


def finish(
    draft: Draft,
    status: WorkflowStatus,
    code: ReasonCode,
    reason: str | None,
    *,
    last: TaskState | None,
    failed: TaskState | None = None,
    given: bytes | None = None,
) -> None:
    """End the workflow. ``given``: its output, if a TERMINATE gave one."""
    draft.ended.clear()
    draft.compensates = _is_undone(draft, status)
    for task in draft.execution.live_tasks():
        if task.phase in STARTED and not task.is_in_engine:
            draft.outputs.append(controls.tell(task, ControlKind.CANCEL, reason))
        draft.move(
            task,
            Cause.WORKFLOW_ENDS,
            Phase.CANCELED,
            code if code is ReasonCode.CANCEL_REQUESTED else ReasonCode.WORKFLOW_ENDED,
            reason=reason,
            waiting_for=None,
        )
    output = given or workflow_output(draft.execution, last, draft.context.environment)
    if len(output) > draft.context.max_payload_bytes:
        if status is WorkflowStatus.COMPLETED:  # any other end keeps its own reason
            status, code = WorkflowStatus.FAILED, ReasonCode.PAYLOAD_TOO_LARGE
            reason = f"the workflow output has {len(output)} bytes, the limit is {draft.context.max_payload_bytes}"
        output = b"{}"
    output = failures.start(draft, status, code, reason, failed, output)
    _tell_parent(draft, status, reason, output)
    if _is_undone(draft, status):
        draft.change_workflow(compensated_by=compensations.start(draft, reason))
    draft.change_workflow(
        status=status,
        output=output,
        messages=(),
        ended_at_ms=draft.now_ms,
        reason_code=code,
        reason=reason[:MAX_REASON] if reason else None,
        failed_task_id=failed.task_id if failed else None,
        failed_reference=failed.reference if failed else None,
    )
    draft.tell_workflow(status, code, reason)


def _is_undone(draft: Draft, status: WorkflowStatus) -> bool:
    """Whether what was completed is undone: when the engine ends a workflow, or somebody asks for it."""
    command = draft.command
    if isinstance(command, TerminateWorkflow):
        return command.compensate
    return status in (WorkflowStatus.FAILED, WorkflowStatus.TIMED_OUT)


def _tell_parent(draft: Draft, status: WorkflowStatus, reason: str | None, output: bytes) -> None:
    workflow = draft.workflow
    if workflow.parent_task_id is None or workflow.parent_workflow_id is None:
        return
    told = SubWorkflowEnded(
        key=workflow.parent_workflow_id,
        operator=f"workflow:{workflow.workflow_id}",
        reference=workflow.parent_reference or "",
        task_id=workflow.parent_task_id,
        hand_out=0,
        status=status,
        output=output,
        reason=reason[:MAX_REASON] if reason else None,
    )
    draft.outputs.append(Send(command=told))
