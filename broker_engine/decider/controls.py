"""What the worker of an attempt is told: stop, pause, or that it has nothing to do there any more.

At most one record per attempt and request; one more (with nothing in it) when the attempt that was asked has ended, so
that the topic holds only what still matters.
"""

from __future__ import annotations

from broker_engine.model.decision import ControlKind, TellWorker
from broker_engine.model.state import TaskState
from broker_engine.model.status import IN_HAND, STARTED, Phase


def tell(task: TaskState, kind: ControlKind, reason: str | None) -> TellWorker:
    return TellWorker(
        task_id=task.task_id, domain=task.domain, hand_out=task.hand_out, kind=kind, reason=(reason or "")[:500]
    )


def forget(task: TaskState) -> TellWorker:
    return TellWorker(task_id=task.task_id, domain=task.domain, hand_out=task.hand_out, kind=None)


def is_over(before: TaskState, after: TaskState) -> bool:
    """Whether what the worker was told ends with this move."""
    was_asked = before.phase is Phase.CANCELING or (before.phase in STARTED and before.paused_by is not None)
    return was_asked and after.phase not in IN_HAND
