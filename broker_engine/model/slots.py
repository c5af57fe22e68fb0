"""What the limiter's rules are about: requests for a slot, who has one, and what is to be written.

A *slot* is the permission to hand one attempt out. ``Entry`` is all that is kept of one: there is a record per entry,
and every count is derived from the entries, so a count cannot leak.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from broker_engine.model.status import WaitingFor


class Line(NamedTuple):
    """What decides which limits a task meets; tasks of one line wait behind each other."""

    task_type: str
    domain: str
    tenant: str | None = None
    #: The resolved value of ``resourceLock``.
    resource: str | None = None


class Need(NamedTuple):
    """One limit that a line meets: at most ``capacity`` of everything that counts under ``key``."""

    key: str
    capacity: int
    #: What a task that meets the limit is said to wait for.
    kind: WaitingFor
    #: Length of the sliding window of a rate limit; 0 for a limit on what is in progress.
    window_ms: int = 0


class Stage(StrEnum):
    """How far a request has come."""

    WAITING = "WAITING"
    #: Handed out, and not known to be started.
    GRANTED = "GRANTED"
    STARTED = "STARTED"
    #: Given back; its start still counts for the rate.
    SPENT = "SPENT"


class Entry(NamedTuple):
    """One hand-out that asked for a slot."""

    stage: Stage
    task_id: str
    hand_out: int
    workflow_id: str
    reference: str
    line: Line
    #: 0 to 99, higher first.
    priority: int
    #: When the attempt first asked; a hand-out that was voided keeps its age.
    asked_at_ms: int
    start_before_ms: int | None = None
    started_at_ms: int | None = None
    #: When the decider is next asked what became of the grant.
    ask_at_ms: int | None = None

    @property
    def key(self) -> str:
        return f"{self.task_id}/{self.hand_out}"


class RequestSlot(NamedTuple):
    """A hand-out waits for its limits. A request replaces an earlier hand-out of its task."""

    task_id: str
    hand_out: int
    workflow_id: str
    reference: str
    line: Line
    priority: int
    asked_at_ms: int


class SlotStarted(NamedTuple):
    """A worker's start was accepted; ``started_at_ms`` is the LogAppendTime of its TaskStarted."""

    task_id: str
    hand_out: int
    started_at_ms: int


class ReleaseSlot(NamedTuple):
    """The hand-out has ended, however it ended. ``started_at_ms``: a worker had it, and had started it by then."""

    task_id: str
    hand_out: int
    started_at_ms: int | None = None


class LimitTick(NamedTuple):
    """Nothing but its log time: opens windows, takes in changed definitions, asks about old grants."""


#: What a decider tells the limiter.
SlotMessage = RequestSlot | SlotStarted | ReleaseSlot
LimitCommand = SlotMessage | LimitTick
