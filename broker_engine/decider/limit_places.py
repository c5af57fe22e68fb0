"""Where a task stands that waits for its limits: which one is full, how many come first, and who has what it wants.

For whoever asks why a task waits; the limiter itself decides by ``limits.py`` and never looks here.
"""

from __future__ import annotations

from typing import NamedTuple

from broker_engine.decider.limits import LimitRules, LimitState, rank
from broker_engine.model.slots import Entry, Need, Stage


class Standing(NamedTuple):
    """A waiting task's place."""

    #: The first limit that is full; None when the task only waits to be looked at.
    limit: Need | None
    #: 1: the next one. Counted among all that wait for the same limit.
    position: int
    #: What counts under the limit now, the oldest first.
    holders: tuple[Entry, ...] = ()
    #: Of a rate: when (log time, milliseconds) the next start leaves the window.
    opens_at_ms: int | None = None


def standing(state: LimitState, task_id: str, now_ms: int, rules: LimitRules) -> Standing | None:
    """Where a task stands; None when it does not wait for a slot."""
    hand_out = state.current.get(task_id)
    entry = None if hand_out is None else state.entries[f"{task_id}/{hand_out}"]
    if entry is None or entry.stage is not Stage.WAITING:
        return None
    for need in rules.needs(entry.line):
        holders = _holders(state, need, now_ms, rules)
        if len(holders) >= need.capacity:
            return Standing(need, _position(state, entry, need, rules), holders, _opens_at_ms(holders, need))
    return Standing(None, _position(state, entry, None, rules))


def _holders(state: LimitState, need: Need, now_ms: int, rules: LimitRules) -> tuple[Entry, ...]:
    counted = [e for e in state.entries.values() if _counts(e, need, now_ms) and _meets(e, need, rules)]
    return tuple(sorted(counted, key=lambda entry: (entry.started_at_ms or now_ms, entry.key)))


def _counts(entry: Entry, need: Need, now_ms: int) -> bool:
    """Whether an entry uses a limit up (the counting of limits.py, for one entry)."""
    if entry.stage is Stage.GRANTED:
        return True
    if need.window_ms:
        return entry.started_at_ms is not None and entry.started_at_ms > now_ms - need.window_ms
    return entry.stage is Stage.STARTED


def _position(state: LimitState, own: Entry, need: Need | None, rules: LimitRules) -> int:
    """Its place among the waiters for a limit, or (None) in its own line."""
    place = (rank(own), own.key)
    return 1 + sum(
        entry.stage is Stage.WAITING
        and (rank(entry), entry.key) < place
        and (entry.line == own.line if need is None else _meets(entry, need, rules))
        for entry in state.entries.values()
    )


def _meets(entry: Entry, need: Need, rules: LimitRules) -> bool:
    return any(other.key == need.key for other in rules.needs(entry.line))


def _opens_at_ms(holders: tuple[Entry, ...], need: Need) -> int | None:
    starts = sorted(entry.started_at_ms for entry in holders if entry.started_at_ms is not None)
    surplus = len(holders) - need.capacity
    if not need.window_ms or surplus >= len(starts):
        return None
    return starts[surplus] + need.window_ms
