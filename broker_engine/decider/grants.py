"""What the limiter says to the decider: a slot is granted, or nothing was heard of a grant.

Whatever is no longer wanted is given back at once, so no slot is lost to a late message.
"""

from __future__ import annotations

from broker_engine.decider import flow, slots
from broker_engine.decider.draft import Draft
from broker_engine.decider.moves import Cause
from broker_engine.model.commands import GrantExpired, SlotGranted
from broker_engine.model.limits import START_WITHIN_MS
from broker_engine.model.state import TaskState
from broker_engine.model.status import Phase, ReasonCode


def granted(draft: Draft, command: SlotGranted, task: TaskState | str) -> str | None:
    """Hand the task out. ``task``: what the grant is about, or why it belongs to the past."""
    if isinstance(task, str) or not _is_known(task, command):
        return _give_back(draft, command, task)
    if task.waiting_for not in slots.WAITS:
        return f"hand-out {command.hand_out} is out already"
    flow.grant(draft, task)
    return None


def expired(draft: Draft, command: GrantExpired, task: TaskState | str) -> str | None:
    """Answer the limiter: it was started, or it is void and the task asks anew, as old as it was."""
    if isinstance(task, str) or not _is_known(task, command):
        return _give_back(draft, command, task)
    if task.phase is not Phase.QUEUED:
        draft.outputs.append(slots.started(task, draft.now_ms))
        return "the task was started"
    if task.handed_out_at_ms is not None and draft.now_ms < task.handed_out_at_ms + START_WITHIN_MS:
        return "the hand-out may still be started"  # the grant was decided late (an outage): a worker counts on it
    draft.outputs.append(slots.released(task, draft.now_ms))
    flow.hand_out(draft, task, Cause.HANDED_OUT_AGAIN, ReasonCode.HANDED_OUT_AGAIN)
    return None


def _is_known(task: TaskState, command: SlotGranted | GrantExpired) -> bool:
    return task.holds_slot and slots.number(task) == command.hand_out


def _give_back(draft: Draft, command: SlotGranted | GrantExpired, task: TaskState | str) -> str:
    draft.outputs.append(slots.returned(command.task_id, command.hand_out))
    return task if isinstance(task, str) else f"hand-out {command.hand_out} wants no slot any more"
