"""Holding tasks and letting them go: what pauses of a task, its workflow and its queue have in common (B9, D14, D29).

A held task is in phase PAUSED and waits for ``resume``. What a paused workflow has handed out before stays out: it may
be started and completed; what a paused queue has handed out is taken back, unless it was started. A held task's
hand-out, if it had one, is void, and so is its slot. A delay (back-off, start delay, callback) is a promise of "not
before": it runs on, and when it is over the task is ready. The clocks of time-outs stand still from
``paused_at_ms`` on.
"""

from __future__ import annotations

from broker_engine.decider import controls, slots
from broker_engine.decider.deadlines import next_deadline, response_clock_ms
from broker_engine.decider.draft import Draft
from broker_engine.decider.moves import Cause
from broker_engine.model.decision import ControlKind
from broker_engine.model.state import TaskState, evolve
from broker_engine.model.status import STARTED, Phase, ReasonCode, WaitingFor, WorkflowStatus
from broker_engine.model.stops import Stop


def is_held(draft: Draft, task: TaskState) -> bool:
    """Whether a task that is about to be handed out has to wait for a resume."""
    return (
        draft.workflow.status is WorkflowStatus.PAUSED
        or task.paused_by is not None
        or queue_stop(draft, task) is not None
    )


def queue_stop(draft: Draft, task: TaskState) -> Stop | None:
    """The pause of the task's queue."""
    return draft.context.definitions.stop_of_queue(task.domain, task.task_type)


def hold_for_queue(draft: Draft, task: TaskState, stop: Stop) -> None:
    """Hold a task because its queue is paused."""
    hold(draft, task, ReasonCode.PAUSED, because(stop), by=None)


def because(stop: Stop) -> str:
    """Who has paused the queue, and why: the reason of a task that is held for it."""
    return f"the queue of {stop.about} is paused by {stop.operator}" + (f": {stop.reason}" if stop.reason else "")


def is_out(task: TaskState) -> bool:
    """Whether a worker has it or may take it now."""
    return task.phase in STARTED or (task.phase is Phase.QUEUED and task.waiting_for is WaitingFor.WORKER)


def as_held(draft: Draft, task: TaskState) -> TaskState:
    """A new attempt as it appears in a pause."""
    return evolve(task, phase=Phase.PAUSED, waiting_for=WaitingFor.RESUME, paused_at_ms=draft.now_ms)


def hold(draft: Draft, task: TaskState, code: ReasonCode, reason: str | None, *, by: str | None) -> None:
    """Hold a task that waits, or whose worker has stopped. ``by``: who paused this very task."""
    if task.phase is Phase.QUEUED and task.waiting_for is WaitingFor.WORKER:
        draft.outputs.append(controls.tell(task, ControlKind.PAUSE, reason))
    draft.move(
        task,
        Cause.PAUSED,
        Phase.PAUSED,
        code,
        reason=reason,
        waiting_for=WaitingFor.RESUME,
        # The hand-out that it waits a slot for is void as well: a grant on its way must not count for the next one.
        hand_out=slots.number(task),
        handed_out_at_ms=None,
        heartbeat_at_ms=None,
        lease=None,
        paused_by=by,
        paused_at_ms=task.paused_at_ms if task.paused_at_ms is not None else draft.now_ms,
    )


def stop_clocks(draft: Draft, task: TaskState) -> None:
    """The workflow of a task that is with a worker, or on its queue, is paused: its clocks stand still."""
    if task.paused_at_ms is None:
        _store(draft, evolve(task, paused_at_ms=draft.now_ms))


def go_on(task: TaskState, now_ms: int) -> TaskState:
    """The task with its clocks running again from where they stood."""
    if task.paused_at_ms is None:
        return task
    since_ms, paused_ms = task.paused_at_ms, task.paused_ms
    if task.started_at_ms is not None:
        paused_ms += now_ms - max(since_ms, task.started_at_ms)
    if task.is_in_engine:
        due_at_ms = None if task.due_at_ms is None else task.due_at_ms + now_ms - since_ms
        return evolve(task, paused_at_ms=None, paused_ms=paused_ms, due_at_ms=due_at_ms)
    if task.phase is Phase.QUEUED and task.handed_out_at_ms is not None:
        handed_out_at_ms = task.handed_out_at_ms + now_ms - max(since_ms, task.handed_out_at_ms)
        return evolve(task, paused_at_ms=None, paused_ms=paused_ms, handed_out_at_ms=handed_out_at_ms)
    if task.phase in STARTED:
        used_ms = max(task.paused_at_ms - response_clock_ms(task), 0)
        return evolve(task, paused_at_ms=None, paused_ms=paused_ms, heartbeat_at_ms=now_ms - used_ms)
    return evolve(task, paused_at_ms=None, paused_ms=paused_ms)


def start_clocks(draft: Draft, task: TaskState) -> None:
    """Its workflow is resumed."""
    if task.paused_at_ms is not None:
        _store(draft, go_on(task, draft.now_ms))


def _store(draft: Draft, task: TaskState) -> None:
    deadline = next_deadline(task, draft.step(task).definition)
    kind, at_ms = (deadline.kind.value, deadline.at_ms) if deadline is not None else (None, None)
    draft.set_aside(evolve(task, next_deadline=kind, next_deadline_at_ms=at_ms))
