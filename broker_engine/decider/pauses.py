"""Pausing and resuming a task or a whole workflow (B9, D14, D29). What holding means is in ``holds.py``."""

from __future__ import annotations

from broker_engine.decider import cancels, controls, flow, holds, messages, queue_pauses, rounds
from broker_engine.decider.deadlines import response_clock_ms
from broker_engine.decider.draft import Draft
from broker_engine.decider.moves import Cause
from broker_engine.model.commands import (
    AttemptPaused,
    DelayDue,
    PauseTask,
    PauseWorkflow,
    ResumeTask,
    ResumeWorkflow,
)
from broker_engine.model.decision import ControlKind, Delay
from broker_engine.model.state import TaskState, evolve
from broker_engine.model.status import STARTED, Phase, ReasonCode, WaitingFor, WorkflowStatus

# --- a task


def pause_task(draft: Draft, command: PauseTask) -> str | None:
    """Hold a waiting task at once; ask the worker of a running one to stop at its next safe point."""
    task = cancels.wanted(draft, command)
    if isinstance(task, str):
        return task
    if task.is_terminal or draft.workflow.status.is_terminal:
        return _refuse(draft, f"task {task.reference} is {task.status}: only a live task can be paused")
    if task.phase is Phase.CANCELING:
        return _refuse(draft, f"task {task.reference} is about to end: {task.cancel_reason}")
    if task.paused_by is not None:
        draft.answer(200, f"paused by {task.paused_by} already")
        return f"the task is paused by {task.paused_by} already"
    why = _paused_by(command.operator, command.reason)
    if task.waiting_for is WaitingFor.DEPENDENCIES:
        return _refuse(draft, f"task {task.reference} has not begun, it {task.reason}: pause those, or the workflow")
    if task.is_in_engine:
        return _refuse(draft, f"task {task.reference} is a {task.task_type} that the engine runs: pause the workflow")
    if task.phase in STARTED:
        _ask(draft, task, command.operator, why)
        draft.answer(200, f"worker {task.worker_id} was asked to pause; it does at the task's next safe point")
        return None
    if task.phase is Phase.PAUSED:  # its workflow holds it already
        draft.set_aside(evolve(task, paused_by=command.operator, reason=why, updated_at_ms=draft.now_ms))
    else:
        holds.hold(draft, task, ReasonCode.PAUSED, why, by=command.operator)
    draft.answer(200, "paused")
    return None


def _ask(draft: Draft, task: TaskState, operator: str, why: str) -> None:
    draft.outputs.append(controls.tell(task, ControlKind.PAUSE, why))
    draft.move(
        task,
        Cause.PAUSE_ASKED,
        task.phase,
        ReasonCode.PAUSE_REQUESTED,
        reason=why,
        heartbeat_at_ms=response_clock_ms(task),  # a request is no sign of life
        paused_by=operator,
    )


def attempt_paused(draft: Draft, command: AttemptPaused, task: TaskState | str) -> str | None:
    """A worker has stopped at a safe point. ``task``: what it is about, or why it belongs to the past."""
    if isinstance(task, str):
        return f"paused: {task}"
    if task.lease != command.lease or command.hand_out != task.hand_out:
        return f"paused: lease {command.lease} is not the current one ({task.lease})"
    if command.sequence <= task.sequence:
        return f"report {command.sequence} was applied already"
    task = evolve(task, sequence=command.sequence)
    if task.phase is Phase.CANCELING:  # asked to stop meanwhile, and it has stopped
        flow.end_canceled(draft, task)
    elif task.paused_by is not None:
        holds.hold(draft, task, ReasonCode.PAUSED, task.reason, by=task.paused_by)
    elif draft.workflow.status is WorkflowStatus.PAUSED:
        holds.hold(draft, task, ReasonCode.PAUSED, None, by=None)
    elif (stop := holds.queue_stop(draft, task)) is not None:
        holds.hold_for_queue(draft, evolve(holds.go_on(task, draft.now_ms), reason=None), stop)
    else:  # resumed before it had stopped
        flow.hand_out(draft, evolve(holds.go_on(task, draft.now_ms), lease=None), Cause.PUT_AWAY, ReasonCode.RESUMED)
    return None


def resume_task(draft: Draft, command: ResumeTask) -> str | None:
    """Let a paused task go on: same attempt, next hand-out, after the last completed step."""
    task = cancels.wanted(draft, command)
    if isinstance(task, str):
        return task
    if task.is_terminal or draft.workflow.status.is_terminal:
        return _refuse(draft, f"task {task.reference} is {task.status}: only a paused task can be resumed")
    is_held_by_workflow = draft.workflow.status is WorkflowStatus.PAUSED
    if task.paused_by is None:
        if task.phase is Phase.PAUSED and is_held_by_workflow:
            return _refuse(draft, f"the workflow is {draft.workflow.reason or 'paused'}: resume the workflow")
        stop = holds.queue_stop(draft, task)
        if task.phase is Phase.PAUSED and stop is not None:
            return _refuse(draft, f"{holds.because(stop)}: resume the queue")
        return _refuse(draft, f"task {task.reference} is {task.phase}: only a paused task can be resumed")
    if task.phase in STARTED:
        _unask(draft, task)
        draft.answer(200, "resumed before it had stopped")
    elif is_held_by_workflow:
        draft.set_aside(evolve(task, paused_by=None, reason=None, updated_at_ms=draft.now_ms))
        draft.answer(200, f"the workflow is {draft.workflow.reason or 'paused'}: the task goes on with it")
    elif (stop := holds.queue_stop(draft, task)) is not None:
        queue_pauses.leave_held(draft, task, stop)
        draft.answer(200, f"{holds.because(stop)}: the task goes on with it")
    else:
        queue_pauses.let_go(draft, task)
        draft.answer(200, "resumed")
    return None


def _unask(draft: Draft, task: TaskState) -> None:
    """A worker that has stopped already says so, and the task is handed out again."""
    draft.outputs.append(controls.forget(task))
    draft.move(
        evolve(task, reason=None),
        Cause.RESUMED,
        task.phase,
        ReasonCode.RESUMED,
        heartbeat_at_ms=response_clock_ms(task),
        paused_by=None,
    )


def delay_over(draft: Draft, command: DelayDue, task: TaskState) -> str | None:
    """A delay fired while its task is held: remembered, so that the task is ready when it is resumed."""
    if task.due_at_ms is None:
        return f"the task is {task.phase}, it waits for no delay"
    rest_ms = task.due_at_ms - draft.now_ms
    if rest_ms <= 0:
        draft.set_aside(evolve(task, due_at_ms=None, delay_returned=False))
        return None
    if command.due_at_ms != task.due_at_ms:
        due_at_ms = task.due_at_ms
        draft.outputs.append(
            Delay(reference=task.reference, task_id=task.task_id, hand_out=task.hand_out, due_at_ms=due_at_ms)
        )
        return f"the delay is not over for another {rest_ms} ms and was sent again"
    draft.set_aside(evolve(task, delay_returned=True))  # the state waits for the rest
    return None


# --- a workflow


def pause_workflow(draft: Draft, command: PauseWorkflow) -> str | None:
    """Hold what waits; what was handed out may be done, with its clocks standing still."""
    status = draft.workflow.status
    if status.is_terminal:
        return _refuse(draft, f"the workflow is {status}: only a running workflow can be paused")
    if status is WorkflowStatus.PAUSED:
        draft.answer(200, f"{draft.workflow.reason or 'paused'} already")
        return "the workflow is paused already"
    why = _paused_by(command.operator, command.reason)
    draft.change_workflow(status=WorkflowStatus.PAUSED, paused_at_ms=draft.now_ms, reason=why[:500])
    draft.tell_workflow(WorkflowStatus.PAUSED, ReasonCode.PAUSED, why)
    for task in tuple(draft.execution.tasks.values()):
        if holds.is_out(task):
            holds.stop_clocks(draft, task)
        elif task.waiting_for is WaitingFor.DEPENDENCIES:
            continue  # what is ready is held
        elif not task.is_terminal and task.phase not in (Phase.PAUSED, Phase.CANCELING):
            holds.hold(draft, task, ReasonCode.PAUSED, f"the workflow is {why}", by=None)
    draft.answer(200, "paused")
    return None


def resume_workflow(draft: Draft, _command: ResumeWorkflow) -> str | None:
    """Let go what the workflow holds; a task that was paused by itself stays so."""
    status = draft.workflow.status
    if status is not WorkflowStatus.PAUSED:
        return _refuse(draft, f"the workflow is {status}: only a paused workflow can be resumed")
    draft.change_workflow(status=WorkflowStatus.RUNNING, paused_at_ms=None, reason=None)
    draft.tell_workflow(WorkflowStatus.RUNNING, ReasonCode.RESUMED)
    for task in tuple(draft.execution.tasks.values()):
        if holds.is_out(task):
            holds.start_clocks(draft, task)
            if task.waiting_for is WaitingFor.TURN:
                rounds.ask_for_turn(draft, task)
        elif task.phase is Phase.PAUSED and task.paused_by is None:
            stop = holds.queue_stop(draft, task)
            if stop is None:
                queue_pauses.let_go(draft, task)
            else:
                queue_pauses.leave_held(draft, task, stop)
    messages.deliver(draft)
    draft.answer(200, "resumed")
    return None


def _paused_by(operator: str, reason: str | None) -> str:
    return f"paused by {operator}" + (f": {reason}" if reason else "")


def _refuse(draft: Draft, message: str) -> str:
    draft.answer(409, message)
    return message
