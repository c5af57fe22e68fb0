"""Why a task is where it is, in one sentence."""

from __future__ import annotations

from broker_engine.model.state import TaskState, WorkflowState
from broker_engine.model.status import Phase, WaitingFor
from broker_engine.worker.presence import LOST_MS


def explain(task: TaskState, last_poll_ms: int | None, now_ms: int) -> str:
    """What a task does or waits for.

    Args:
        last_poll_ms: when a worker of the task's queue was last heard of, None if never (epoch milliseconds, as
            ``now_ms``).
    """
    if task.is_terminal:
        return f"{task.status}: {task.reason}" if task.reason else f"{task.status}"
    if task.phase is Phase.CANCELING:
        asked_ms = task.cancel_requested_at_ms if task.cancel_requested_at_ms is not None else task.updated_at_ms
        return f"{_running(task, now_ms)}, {task.cancel_reason} {_seconds(now_ms - asked_ms)} ago"
    if task.phase is Phase.RUNNING:
        asked = f", asked to pause ({task.reason})" if task.paused_by else ""
        return f"{_running(task, now_ms)}{asked}"
    if task.phase is Phase.PAUSED:
        since = _seconds(now_ms - (task.paused_at_ms or now_ms))
        how = f"broker-engine task resume {task.workflow_id} {task.reference}"
        return f"{task.reason or 'paused'}, for {since}; resume with `{how}`"
    match task.waiting_for:
        case WaitingFor.DELAY:
            return f"{_delay(task)} in {_seconds((task.due_at_ms or now_ms) - now_ms)}"
        case WaitingFor.TOPIC:
            return f"waits for the topic of its queue {task.domain}/{task.task_type} to be made"
        case WaitingFor.WORKER:
            return _queued(task, last_poll_ms, now_ms)
        case WaitingFor.SLOT:
            return f"waits until the limits of task type {task.task_type} let it in"
        case WaitingFor.LOCK:
            return f"waits for {task.resource}, which another task works on"
        case None:
            return f"{task.phase}"
        case _:
            return f"waits for {task.waiting_for}"


def explain_held(task: TaskState, workflow: WorkflowState, now_ms: int) -> str:
    """What a task waits for that its workflow's pause holds."""
    since = _seconds(now_ms - (task.paused_at_ms or now_ms))
    how = f"broker-engine workflow resume {workflow.workflow_id}"
    return f"held for {since}: its workflow is {workflow.reason or 'paused'}; resume with `{how}`"


def _running(task: TaskState, now_ms: int) -> str:
    since_ms = task.started_at_ms if task.started_at_ms is not None else task.updated_at_ms
    text = f"running on worker {task.worker_id} for {_seconds(now_ms - since_ms)}"
    if task.next_deadline is None or task.next_deadline_at_ms is None:
        return text
    return f"{text}, {task.next_deadline} time-out in {_seconds(task.next_deadline_at_ms - now_ms)}"


def _delay(task: TaskState) -> str:
    names = {Phase.RETRY_WAIT: "retry", Phase.CREATED: "first hand-out", Phase.QUEUED: "callback"}
    return names.get(task.phase, "hand-out")


def _queued(task: TaskState, last_poll_ms: int | None, now_ms: int) -> str:
    """On its queue: the workers are absent, or busy."""
    queue = f"task type {task.task_type} in domain {task.domain}"
    if last_poll_ms is None:
        return f"no worker has polled {queue} yet"
    if now_ms - last_poll_ms > LOST_MS:
        return f"no worker has polled {queue} for {_seconds(now_ms - last_poll_ms)}"
    since_ms = task.handed_out_at_ms if task.handed_out_at_ms is not None else task.updated_at_ms
    return f"waits for a free worker of {queue} for {_seconds(now_ms - since_ms)}"


def _seconds(ms: int) -> str:
    seconds = max(ms, 0) / 1_000
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
