"""Cancelling a task (B8): what waits ends at once; what runs is asked, and ends when its worker has stopped.

The request is part of the task's state, so it survives everything; the record for the worker only makes it quick. A
result that is on the log before its worker stopped wins. However else an attempt ends that was asked to stop, it ends
as CANCELED and is not retried (``flow._fail``).
"""

from __future__ import annotations

from broker_engine.decider import controls, flow, holds
from broker_engine.decider.deadlines import response_clock_ms
from broker_engine.decider.draft import Draft
from broker_engine.decider.moves import Cause
from broker_engine.model.commands import CancelTask, TaskRequest
from broker_engine.model.decision import ControlKind
from broker_engine.model.definitions import WorkflowDef
from broker_engine.model.state import TaskState
from broker_engine.model.status import STARTED, Phase, ReasonCode, TaskStatus


def cancel(draft: Draft, command: CancelTask) -> str | None:
    """End the task, or ask its worker to stop. Repeated or too late it changes nothing."""
    task = wanted(draft, command)
    if isinstance(task, str):
        return task
    if task.is_terminal or draft.workflow.status.is_terminal:
        return _ended_already(draft, task)
    if task.phase is Phase.CANCELING:
        draft.answer(200, f"{task.cancel_reason} already")
        return "the task was asked to stop already"
    why = f"asked to stop by {command.operator}" + (f": {command.reason}" if command.reason else "")
    if task.phase in STARTED and not task.is_in_engine:
        _ask(draft, task, why)
        draft.answer(200, f"worker {task.worker_id} was asked to stop; it does at the task's next safe point")
        return None
    if task.phase is Phase.QUEUED and task.hand_out:
        draft.outputs.append(controls.tell(task, ControlKind.CANCEL, why))
    ending = flow.Ending(Cause.CANCELED, Phase.CANCELED, TaskStatus.CANCELED, ReasonCode.CANCEL_REQUESTED)
    changes = {"waiting_for": None, "cancel_reason": why, "cancel_requested_at_ms": draft.now_ms, "due_at_ms": None}
    flow.end_badly(draft, task, ending, why, changes)
    draft.answer(200, "canceled")
    return None


def _ask(draft: Draft, task: TaskState, why: str) -> None:
    """The request is no sign of life: the clocks go on as they were, or again if a pause held them."""
    task = holds.go_on(task, draft.now_ms)
    draft.outputs.append(controls.tell(task, ControlKind.CANCEL, why))
    draft.move(
        task,
        Cause.CANCEL_ASKED,
        Phase.CANCELING,
        ReasonCode.CANCEL_REQUESTED,
        reason=why,
        heartbeat_at_ms=response_clock_ms(task),
        cancel_reason=why[:500],
        cancel_requested_at_ms=draft.now_ms,
        paused_by=None,
    )


def _ended_already(draft: Draft, task: TaskState) -> str:
    draft.answer(200, f"already {task.status}")
    return f"the task is {task.status} already"


def wanted(draft: Draft, command: TaskRequest) -> TaskState | str:
    """The task that a request is about; answered and the reason given when there is none to change."""
    workflow = draft.workflow
    task = draft.execution.tasks.get(command.reference)
    if task is None and workflow.status.is_terminal:  # of an ended workflow not every task is at hand
        ended = f"ended: the workflow is {workflow.status}"
        draft.answer(
            *((200, f"already {ended}") if isinstance(command, CancelTask) else (409, f"the task has {ended}"))
        )
        return f"the workflow is {workflow.status} already"
    if task is None:
        return _refuse(draft, 404, _no_task(draft, command.reference))
    if command.task_id is not None and command.task_id != task.task_id:
        message = f"task {command.task_id} is not the latest attempt of {command.reference}: that is {task.task_id}"
        return _refuse(draft, 409, message)
    return task


def _no_task(draft: Draft, reference: str) -> str:
    definition = draft.execution.definition
    if _is_in_loop(definition, reference):
        return f"task {reference} of workflow {draft.workflow.workflow_id} is in no round that is going on"
    if reference in definition.index:
        return f"task {reference} of workflow {draft.workflow.workflow_id} is not scheduled yet"
    known = ", ".join(list(definition.index)[:20])
    return f"workflow {draft.workflow.workflow_id} has no task {reference}; it has {known}"


def _is_in_loop(definition: WorkflowDef, reference: str) -> bool:
    try:
        return bool(definition.locate(reference)[1])
    except KeyError:
        return False


def _refuse(draft: Draft, status: int, message: str) -> str:
    draft.answer(status, message)
    return message
