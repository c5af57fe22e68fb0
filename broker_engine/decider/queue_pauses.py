"""A queue is paused or resumed: the tasks that it concerns follow, each by a command of its own (B9).

The stop of the queue is in force for everything that is handed out from its moment on (``holds.is_held``). What was
waiting already is sent here by ``runtime/queue_pauses.py``, task by task. A task goes on when neither it, nor its
workflow, nor its queue is paused.
"""

from __future__ import annotations

from broker_engine.decider import flow, holds
from broker_engine.decider.draft import Draft
from broker_engine.decider.moves import Cause
from broker_engine.model.state import Execution, TaskState, evolve
from broker_engine.model.status import Phase, ReasonCode, WaitingFor, WorkflowStatus
from broker_engine.model.stops import Stop

#: What a task waits for on a queue, or to get onto it. A delay runs on: it is held when that is over.
_ON_QUEUE = frozenset({WaitingFor.WORKER, WaitingFor.TOPIC, WaitingFor.SLOT, WaitingFor.LOCK})


def disagrees(execution: Execution, task: TaskState, *, is_paused: bool) -> bool:
    """Whether a task waits on a paused queue, or is held for one that is not paused (any more)."""
    if is_paused:
        return task.phase is Phase.QUEUED and task.waiting_for in _ON_QUEUE
    return (
        task.phase is Phase.PAUSED and task.paused_by is None and execution.workflow.status is not WorkflowStatus.PAUSED
    )


def follow(draft: Draft, task: TaskState) -> str | None:
    """Hold the task or hand it out, as its queue is now."""
    stop = holds.queue_stop(draft, task)
    if not disagrees(draft.execution, task, is_paused=stop is not None):
        return "the task does not wait for its topic, nor does its phase disagree with its queue"
    if stop is not None:
        holds.hold_for_queue(draft, task, stop)
    else:
        let_go(draft, task)
    return None


def take_back(draft: Draft, task: TaskState) -> str | None:
    """Hold a task that a worker asks to start although its queue is paused; why, or None when it may start.

    A worker that runs a fresh hand-out without asking is not stopped: its start counts.
    """
    stop = holds.queue_stop(draft, task) if task.phase is Phase.QUEUED else None
    if stop is None:
        return None
    holds.hold_for_queue(draft, task, stop)
    return holds.because(stop)


def leave_held(draft: Draft, task: TaskState, stop: Stop) -> None:
    """Nothing but its queue holds the task any more."""
    draft.set_aside(evolve(task, paused_by=None, reason=holds.because(stop), updated_at_ms=draft.now_ms))


def let_go(draft: Draft, task: TaskState) -> None:
    """Put a held task back to where it was: on its queue, or into the rest of its delay."""
    ready = evolve(holds.go_on(task, draft.now_ms), paused_by=None, reason=None)
    if ready.due_at_ms is None or ready.due_at_ms <= draft.now_ms:
        flow.hand_out(draft, ready, Cause.RESUMED, ReasonCode.RESUMED)
        return
    phase = Phase.QUEUED if ready.hand_out else Phase.RETRY_WAIT if ready.attempt else Phase.CREATED
    draft.move(ready, Cause.RESUMED, phase, ReasonCode.RESUMED, waiting_for=WaitingFor.DELAY)
