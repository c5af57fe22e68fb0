"""Signs of life of a running attempt: heartbeats, callbacks and extended leases (D4, D5). None of them uses up an
attempt.

A *callback* puts the task away for a while: it goes back to SCHEDULED, waits out its delay like a retry does, and is
handed out again under the next number. A *heartbeat* and an extended lease only restart the response clock.
"""

from __future__ import annotations

from typing import Any

import orjson

from broker_engine.decider import flow, holds
from broker_engine.decider.deadlines import DeadlineKind, next_deadline
from broker_engine.decider.draft import Draft, reply
from broker_engine.decider.identity import task_id as derive_task_id
from broker_engine.decider.moves import Cause
from broker_engine.model.commands import ExtendLease, ResetCallbacks, TaskProgressed, TaskStep
from broker_engine.model.decision import Delay
from broker_engine.model.state import TaskState, evolve
from broker_engine.model.status import IN_HAND, Phase, ReasonCode, WaitingFor


def progressed(draft: Draft, command: TaskProgressed, task: TaskState | str) -> str | None:
    """Apply a report of IN_PROGRESS. ``task``: what it is about, or why it belongs to the past."""
    problem = task if isinstance(task, str) else report_problem(task, command)
    if problem is not None or isinstance(task, str):
        if command.reply_to is not None:
            draft.outputs.append(reply(command, 200, command.task_id))
        return f"IN_PROGRESS with {len(command.output or b'')} bytes of output: {problem}"
    output = task.output
    if command.output is not None:
        output, refused = _merged(task.output, command.output, draft.context.max_payload_bytes)
        if refused is not None:
            code, reason = refused
            flow.refuse_output(draft, task, code, reason)
            draft.answer(200, command.task_id)
            return None
    if command.callback_after_ms > 0 and task.phase is Phase.CANCELING:  # it has stopped
        flow.end_canceled(draft, evolve(task, output=output, sequence=command.sequence, **_progress(command)))
    elif command.callback_after_ms > 0:
        _call_back(draft, task, command, output)
    else:
        # A gateway starts work for a worker that has yet to collect it: the first sign of life says who has it now.
        told = {"worker_id": command.worker_id or task.worker_id, **_progress(command)}
        keep_alive(draft, evolve(task, output=output, sequence=command.sequence, **told))
    draft.answer(200, command.task_id)
    return None


def extend_lease(draft: Draft, command: ExtendLease) -> str | None:
    """Restart the response clock and nothing else. On an ended or waiting attempt it does nothing."""
    task = draft.execution.tasks.get(command.reference)
    if task is None or not (task.task_id == command.task_id or _is_earlier_attempt(draft, task, command.task_id)):
        message = f"there is no task {command.task_id}"
        draft.answer(404, message)
        return message
    draft.answer(200, command.task_id)
    if task.task_id != command.task_id:
        return f"task {command.task_id} is not the latest attempt of {command.reference}"
    problem = _not_running(task)
    if problem is None and command.lease is not None and command.lease != task.lease:
        problem = f"lease {command.lease} is not the current one ({task.lease})"
    if problem is not None:
        return problem
    keep_alive(draft, task)
    return None


def reset_callbacks(draft: Draft, command: ResetCallbacks) -> str | None:
    """Hand out now what waits for a callback. A retry's back-off is no callback and goes on."""
    status = draft.workflow.status
    if status.is_terminal:
        message = f"the workflow is {status}: only a live workflow has callbacks to reset"
        draft.answer(409, message)
        return message
    waiting = [task for task in draft.execution.live_tasks() if waits_for_callback(task)]
    for task in waiting:
        flow.hand_out(draft, task, Cause.DELAY_OVER, ReasonCode.CALLBACKS_RESET)
    draft.answer(200, command.key)
    return None if waiting else "no task waits for a callback"


def waits_for_callback(task: TaskState) -> bool:
    """Whether the worker put it away for a while."""
    return task.phase is Phase.QUEUED and task.waiting_for is WaitingFor.DELAY


def report_problem(task: TaskState, command: TaskProgressed | TaskStep) -> str | None:
    """Why a report about a running attempt does not count."""
    return _not_running(task) or _not_its_report(task, command)


def _not_running(task: TaskState) -> str | None:
    if task.is_terminal:
        return f"the task is {task.status} already"
    return None if task.phase in IN_HAND else f"the task is {task.phase}, no worker runs it"


def _not_its_report(task: TaskState, command: TaskProgressed | TaskStep) -> str | None:
    if command.lease is None:
        return None  # by hand
    if command.hand_out != task.hand_out or command.lease != task.lease:
        return f"lease {command.lease} is not the current one ({task.lease})"
    return f"report {command.sequence} was applied already" if command.sequence <= task.sequence else None


def _is_earlier_attempt(draft: Draft, task: TaskState, task_id: str) -> bool:
    workflow = draft.workflow
    return task_id in (
        derive_task_id(
            workflow_id=workflow.workflow_id,
            incarnation=workflow.incarnation,
            run=workflow.run,
            reference=task.reference,
            iteration=task.iteration,
            attempt=attempt,
        )
        for attempt in range(task.attempt)
    )


def _merged(before: bytes | None, update: bytes, limit: int) -> tuple[bytes | None, tuple[ReasonCode, str] | None]:
    """The output with the keys of an update laid over it, or why that cannot be kept."""
    problem = flow.output_problem(update, limit)
    if problem is not None:
        return None, problem
    merged = orjson.dumps({**orjson.loads(before), **orjson.loads(update)}) if before else update
    return merged, flow.output_problem(merged, limit)


def keep_alive(draft: Draft, task: TaskState) -> None:
    """Restart the response clock. No transition: phase and status stay."""
    alive = evolve(task, heartbeat_at_ms=draft.now_ms, updated_at_ms=draft.now_ms)
    deadline = next_deadline(alive, draft.step(task).definition)
    kind, at_ms = (deadline.kind.value, deadline.at_ms) if deadline is not None else (None, None)
    draft.set_aside(evolve(alive, next_deadline=kind, next_deadline_at_ms=at_ms))


def _progress(command: TaskProgressed) -> dict[str, Any]:
    """What a heartbeat says of the work itself (fields of TaskState)."""
    told: dict[str, Any] = {}
    if command.checkpoint is not None:
        told["checkpoint"] = command.checkpoint
    if command.progress_done is not None:
        told |= {"progress_done": command.progress_done, "progress_total": command.progress_total}
    return told


def _call_back(draft: Draft, task: TaskState, command: TaskProgressed, output: bytes | None) -> None:
    due_at_ms = draft.now_ms + command.callback_after_ms
    alerted = ",".join(kind for kind in task.alerted.split(",") if kind and kind != DeadlineKind.POLL)
    is_held = holds.is_held(draft, task)
    pause: dict[str, Any] = {}
    if is_held:
        pause["paused_at_ms"] = draft.now_ms if task.paused_at_ms is None else task.paused_at_ms
    draft.move(
        task,
        Cause.PAUSED if is_held else Cause.PUT_AWAY,
        Phase.PAUSED if is_held else Phase.QUEUED,
        ReasonCode.CALLBACK,
        reason=command.reason,
        output=output,
        waiting_for=WaitingFor.RESUME if is_held else WaitingFor.DELAY,
        due_at_ms=due_at_ms,
        handed_out_at_ms=None,
        heartbeat_at_ms=None,
        lease=None,
        sequence=command.sequence,
        alerted=alerted,
        **pause,
        **_progress(command),
    )
    draft.outputs.append(
        Delay(reference=task.reference, task_id=task.task_id, hand_out=task.hand_out, due_at_ms=due_at_ms)
    )
