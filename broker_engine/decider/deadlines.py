"""The clocks of a task: when each runs out, read from state alone.

``DEADLINES`` is the whole list, in the order in which they are looked at when several have passed (Conductor's order:
total, task, poll, response), followed by the two backstops that keep a task from waiting on a lost record, and by the
moment that a WAIT waits for (of a loop that waits for its turn: another backstop).
Clocks (D3): poll runs from the hand-out, task from the first start of the attempt, response from the last sign of life,
total from the first attempt's scheduling over all attempts. In a pause all but the total clock stand still (D29).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import NamedTuple

from broker_engine.model.definitions import TaskDef, TimeoutPolicy
from broker_engine.model.limits import HAND_OUT_LIFETIME_MS
from broker_engine.model.state import Execution, TaskState
from broker_engine.model.status import IN_HAND, Phase, ReasonCode, WaitingFor

#: A delay record that is this late is taken for lost, and the wait ends without it.
DELAY_GRACE_MS = 60_000
#: How long a task waits for its queue's topic before it is looked at again.
TOPIC_GRACE_MS = 60_000
#: How often a task that waits for its slot asks the limiter again (which changes nothing unless the request was lost).
SLOT_GRACE_MS = 60_000
#: Phases in which a task may wait out a delay: back-off, start delay, callback.
WAITING_PHASES = frozenset({Phase.RETRY_WAIT, Phase.CREATED, Phase.QUEUED})


class DeadlineKind(StrEnum):
    TOTAL = "total"
    TASK = "task"
    POLL = "poll"
    RESPONSE = "response"
    DELAY = "delay"
    HAND_OUT = "hand-out"
    WAIT = "wait"


class Deadline(NamedTuple):
    at_ms: int
    kind: DeadlineKind


def _total(task: TaskState, definition: TaskDef) -> int | None:
    seconds = definition.total_timeout_seconds
    if task.waiting_for is WaitingFor.DEPENDENCIES:  # it has not begun
        return None
    return task.first_scheduled_at_ms + seconds * 1_000 if seconds > 0 else None


def _task(task: TaskState, definition: TaskDef) -> int | None:
    seconds = definition.timeout_seconds
    if seconds <= 0 or task.started_at_ms is None or task.paused_at_ms is not None:
        return None
    return task.started_at_ms + seconds * 1_000 + task.paused_ms


def _poll(task: TaskState, definition: TaskDef) -> int | None:
    seconds = definition.poll_timeout_seconds
    if seconds <= 0 or task.phase is not Phase.QUEUED or task.handed_out_at_ms is None or task.paused_at_ms is not None:
        return None
    return task.handed_out_at_ms + seconds * 1_000


def _response(task: TaskState, definition: TaskDef) -> int | None:
    seconds = definition.response_timeout_seconds
    if seconds <= 0 or task.paused_at_ms is not None or task.phase not in IN_HAND or task.lease is None:
        return None
    return response_clock_ms(task) + seconds * 1_000


def response_clock_ms(task: TaskState) -> int:
    """The last sign of life of a task that a worker has."""
    return task.updated_at_ms if task.heartbeat_at_ms is None else task.heartbeat_at_ms


def _delay(task: TaskState, _definition: TaskDef) -> int | None:
    if task.due_at_ms is None or task.phase not in WAITING_PHASES:
        return None
    return task.due_at_ms + (0 if task.delay_returned else DELAY_GRACE_MS)


def _hand_out(task: TaskState, _definition: TaskDef) -> int | None:
    if task.phase is not Phase.QUEUED or task.paused_at_ms is not None:
        return None
    if task.waiting_for is WaitingFor.TOPIC:
        return task.updated_at_ms + TOPIC_GRACE_MS
    if task.waiting_for is WaitingFor.SLOT or task.waiting_for is WaitingFor.LOCK:
        return task.updated_at_ms + SLOT_GRACE_MS
    return None if task.handed_out_at_ms is None else task.handed_out_at_ms + HAND_OUT_LIFETIME_MS


def _wait(task: TaskState, _definition: TaskDef) -> int | None:
    if task.phase is not Phase.RUNNING or task.waiting_for is None or task.paused_at_ms is not None:
        return None
    if task.waiting_for is WaitingFor.TURN:
        return task.updated_at_ms + DELAY_GRACE_MS
    return task.due_at_ms if task.waiting_for is WaitingFor.TIME else None


DEADLINES: Mapping[DeadlineKind, Callable[[TaskState, TaskDef], int | None]] = {
    DeadlineKind.TOTAL: _total,
    DeadlineKind.TASK: _task,
    DeadlineKind.POLL: _poll,
    DeadlineKind.RESPONSE: _response,
    DeadlineKind.DELAY: _delay,
    DeadlineKind.HAND_OUT: _hand_out,
    DeadlineKind.WAIT: _wait,
}

#: The reason code of each time-out (the backstops time nothing out).
TIMEOUT_CODES: Mapping[DeadlineKind, ReasonCode] = {
    DeadlineKind.TOTAL: ReasonCode.TOTAL_TIMEOUT,
    DeadlineKind.TASK: ReasonCode.TASK_TIMEOUT,
    DeadlineKind.POLL: ReasonCode.POLL_TIMEOUT,
    DeadlineKind.RESPONSE: ReasonCode.RESPONSE_TIMEOUT,
}


def next_deadline(task: TaskState, definition: TaskDef) -> Deadline | None:
    """The earliest clock of a task that has not run out or alerted yet; None for an ended task."""
    if task.ended_at_ms is not None:
        return None
    earliest: Deadline | None = None
    for kind, moment in DEADLINES.items():
        at_ms = moment(task, definition)
        if at_ms is None or (earliest is not None and at_ms >= earliest.at_ms):
            continue
        if not (task.alerted and kind in task.alerted.split(",")):
            earliest = Deadline(at_ms, kind)
    return earliest


def passed_deadline(task: TaskState, definition: TaskDef, now_ms: int) -> Deadline | None:
    """The first clock, in the table's order, that has run out at ``now_ms``."""
    if task.ended_at_ms is not None:
        return None
    for kind, moment in DEADLINES.items():
        at_ms = moment(task, definition)
        if at_ms is not None and at_ms <= now_ms and kind not in task.alerted.split(","):
            return Deadline(at_ms, kind)
    return None


def workflow_timeout_ms(execution: Execution) -> int | None:
    """When the workflow's own time-out is due; a moment promised to outsiders, so nothing shifts it (D29)."""
    workflow, seconds = execution.workflow, execution.definition.timeout_seconds
    if seconds <= 0 or workflow.status.is_terminal:
        return None
    if workflow.timeout_alerted and execution.definition.timeout_policy is not TimeoutPolicy.TIME_OUT_WF:
        return None
    return (workflow.began_at_ms or workflow.created_at_ms) + seconds * 1_000


def workflow_deadline_ms(execution: Execution) -> int | None:
    """The earlier of the workflow's time-out and the deadline it was started with (B10)."""
    timeout_ms, promised_ms = workflow_timeout_ms(execution), execution.workflow.deadline_at_ms
    if promised_ms is None or execution.workflow.status.is_terminal:
        return timeout_ms
    return promised_ms if timeout_ms is None else min(timeout_ms, promised_ms)


def earliest_deadline_ms(execution: Execution) -> int | None:
    """The earliest moment at which this workflow wants to be looked at without a command."""
    if execution.workflow.quarantine is not None:
        return None
    earliest = workflow_deadline_ms(execution)
    for task in execution.live_tasks():
        at_ms = task.next_deadline_at_ms
        if at_ms is not None and (earliest is None or at_ms < earliest):
            earliest = at_ms
    return earliest
