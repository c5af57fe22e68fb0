"""The limiter: one function from (state, command, log time, rules) to a new state and what is to be handed out.

All limits that a task meets are checked and taken together, in one place (decisions/0009-limits.md): nothing is held
while the rest is waited for, so nothing can deadlock. Whoever fits goes first by rank; ``rank`` lets priority
count as a head start in age, so the order never changes while tasks wait and nobody starves.

The rate counts *starts*: a grant that has not started counts as used until it starts or is given back, and a start
counts for one window from its own log time. However long a record lies between grant and start, no sliding window
holds more starts than allowed.

The limiter never takes a slot back by itself: it asks the decider about grants that did not start in time.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import NamedTuple, assert_never

from immutables import Map

from broker_engine.model.caps import NO_CAPS, Caps
from broker_engine.model.definitions import LimitScope, TaskDef
from broker_engine.model.limits import START_WITHIN_MS
from broker_engine.model.slots import (
    Entry,
    LimitCommand,
    LimitTick,
    Line,
    Need,
    ReleaseSlot,
    RequestSlot,
    SlotStarted,
    Stage,
)
from broker_engine.model.status import WaitingFor

#: One level of priority is worth this much age: priority 99 overtakes whatever came in the last 99 minutes, no more.
AGING_MS = 60_000
#: The decider is asked about a grant this long after it: the time to start, and some for the way there and back.
ASK_AFTER_MS = START_WITHIN_MS + 1_000
#: How often the decider is asked again about a grant of which nothing was heard.
ASK_EVERY_MS = 10_000
#: Whoever waited this long for several limits gets each of them kept free as it frees (one waiter at a time).
PATIENCE_MS = 30_000


class LimitRules(NamedTuple):
    """The limits in force: the newest task definitions and the settings, looked up by the shell."""

    task_def: Callable[[str], TaskDef | None]
    caps: Caps = NO_CAPS
    start_within_ms: int = ASK_AFTER_MS

    def needs(self, line: Line) -> tuple[Need, ...]:
        """The limits that a line meets, in the fixed order lock, tenant, domain, global, type, rate."""
        definition, caps = self.task_def(line.task_type), self.caps
        tenant_cap, domain_cap = caps.of_tenant(line.tenant), caps.domains.get(line.domain, 0)
        if definition is None:
            return _needs(line, tenant_cap, domain_cap, caps.everything, 0, 0, 0, LimitScope.TYPE)
        return _needs(
            line,
            tenant_cap,
            domain_cap,
            caps.everything,
            definition.concurrent_exec_limit,
            definition.rate_limit_per_frequency,
            definition.rate_limit_frequency_in_seconds * 1_000,
            definition.limit_scope,
        )


@lru_cache(maxsize=16_384)  # every command asks for every line in use
def _needs(
    line: Line,
    tenant_cap: int,
    domain_cap: int,
    global_cap: int,
    concurrent: int,
    rate: int,
    window_ms: int,
    limit_scope: LimitScope,
) -> tuple[Need, ...]:
    scope = line.task_type
    if limit_scope is LimitScope.TYPE_AND_DOMAIN:
        scope = f"{line.task_type} in {line.domain}"
    needs: list[Need] = []
    if line.resource is not None:
        needs.append(Need(f"lock {line.resource}", 1, WaitingFor.LOCK))
    if tenant_cap > 0:
        needs.append(Need(f"tenant {line.tenant}", tenant_cap, WaitingFor.SLOT))
    if domain_cap > 0:
        needs.append(Need(f"domain {line.domain}", domain_cap, WaitingFor.SLOT))
    if global_cap > 0:
        needs.append(Need("all tasks", global_cap, WaitingFor.SLOT))
    if concurrent > 0:
        needs.append(Need(f"type {scope}", concurrent, WaitingFor.SLOT))
    if rate > 0 and window_ms > 0:
        needs.append(Need(f"rate {scope}", rate, WaitingFor.SLOT, window_ms))
    return tuple(needs)


class Shelf(NamedTuple):
    """The entries of one line, as they are counted."""

    #: (rank, key), the next one first.
    waiting: tuple[tuple[int, str], ...] = ()
    granted: frozenset[str] = frozenset()
    started: frozenset[str] = frozenset()
    #: (start, key) of everything started or spent, the oldest first.
    starts: tuple[tuple[int, str], ...] = ()


class LimitState(NamedTuple):
    """All entries, and what is derived from them (``restore`` derives it anew)."""

    entries: Map[str, Entry] = Map()
    #: The hand-out of each task that waits for a slot or has one.
    current: Map[str, int] = Map()
    shelves: Map[Line, Shelf] = Map()


class LimitDecision(NamedTuple):
    """The answer to one command. ``changed`` names the entries to be stored, or removed where the state has none."""

    state: LimitState
    #: To be handed out now.
    grants: tuple[Entry, ...] = ()
    #: Grants that were not started in time: the decider is asked about them.
    expired: tuple[Entry, ...] = ()
    changed: tuple[str, ...] = ()


def restore(entries: Iterable[Entry]) -> LimitState:
    """The state that consists of these entries."""
    draft = _Draft(LimitState())
    for entry in entries:
        draft.put(entry)
    return draft.state


def rank(entry: Entry) -> int:
    """Smaller goes first: the moment of asking, earlier by a head start for priority."""
    return entry.asked_at_ms - entry.priority * AGING_MS


def decide_limits(state: LimitState, command: LimitCommand, now_ms: int, rules: LimitRules) -> LimitDecision:
    """The next state and what is to be handed out because of one command.

    Late and repeated commands change nothing: a request counts once per hand-out, a release only for the hand-out that
    it names. Every command lets the next waiters in, under the limits of this moment.
    """
    draft = _Draft(state)
    match command:
        case RequestSlot():
            _request(draft, command, now_ms)
        case SlotStarted():
            _started(draft, command)
        case ReleaseSlot():
            _release(draft, command)
        case LimitTick():
            pass
        case _:
            assert_never(command)
    needs = {line: rules.needs(line) for line in draft.state.shelves}
    _forget_spent(draft, needs, now_ms)
    grants = _admit(draft, needs, now_ms, rules)
    expired = _ask(draft, now_ms)
    return LimitDecision(draft.state, tuple(grants), tuple(expired), tuple(draft.changed))


def _request(draft: _Draft, command: RequestSlot, now_ms: int) -> None:
    hand_out = draft.state.current.get(command.task_id)
    if hand_out is not None and hand_out >= command.hand_out:
        return
    if f"{command.task_id}/{command.hand_out}" in draft.state.entries:
        return  # asked, started and given back already
    if hand_out is not None:
        # Usually given back before. A grant that was not: its start and end are under way, and the start counts.
        _release(draft, ReleaseSlot(command.task_id, hand_out, now_ms))
    draft.put(Entry(Stage.WAITING, **command._asdict())._replace(asked_at_ms=min(command.asked_at_ms, now_ms)))


def _started(draft: _Draft, command: SlotStarted) -> None:
    entry = draft.state.entries.get(f"{command.task_id}/{command.hand_out}")
    if entry is not None and entry.stage is Stage.GRANTED:
        draft.put(entry._replace(stage=Stage.STARTED, started_at_ms=command.started_at_ms, ask_at_ms=None))


def _release(draft: _Draft, command: ReleaseSlot) -> None:
    entry = draft.state.entries.get(f"{command.task_id}/{command.hand_out}")
    if entry is None:
        return
    if entry.stage is Stage.GRANTED and command.started_at_ms is not None:
        entry = entry._replace(stage=Stage.STARTED, started_at_ms=command.started_at_ms, ask_at_ms=None)
    if entry.stage is Stage.STARTED:
        draft.put(entry._replace(stage=Stage.SPENT))
    elif entry.stage is not Stage.SPENT:
        draft.remove(entry)


def _window_ms(needs: Iterable[Need]) -> int:
    return max((need.window_ms for need in needs), default=0)


def _forget_spent(draft: _Draft, needs: dict[Line, tuple[Need, ...]], now_ms: int) -> None:
    """Remove what was given back and no longer counts for a rate."""
    for line, shelf in draft.state.shelves.items():
        if not shelf.starts:
            continue
        for _, key in shelf.starts[: _first_within(shelf, _window_ms(needs[line]), now_ms)]:
            entry = draft.state.entries[key]
            if entry.stage is Stage.SPENT:
                draft.remove(entry)


def _first_within(shelf: Shelf, window_ms: int, now_ms: int) -> int:
    """Index of the first start inside the window (now - window, now]; without a window no start counts."""
    if not window_ms:
        return len(shelf.starts)
    return bisect_right(shelf.starts, now_ms - window_ms, key=lambda start: start[0])


def _used(state: LimitState, needs: dict[Line, tuple[Need, ...]], now_ms: int) -> dict[str, int]:
    """What counts under each limit."""
    used: dict[str, int] = {}
    for line, shelf in state.shelves.items():
        if not shelf.granted and not shelf.starts:
            continue
        for need in needs[line]:
            count = len(shelf.granted)
            if need.window_ms:
                count += len(shelf.starts) - _first_within(shelf, need.window_ms, now_ms)
            else:
                count += len(shelf.started)
            used[need.key] = used.get(need.key, 0) + count
    return used


def _admit(draft: _Draft, needs: dict[Line, tuple[Need, ...]], now_ms: int, rules: LimitRules) -> list[Entry]:
    """Grant every waiter that fits, by rank. A full line does not stop the others."""
    heads = [(*shelf.waiting[0], line) for line, shelf in draft.state.shelves.items() if shelf.waiting]
    if not heads:
        return []
    # Ranks and keys are unique together, so lines (which cannot be compared) are never looked at.
    heapq.heapify(heads)
    used = _used(draft.state, needs, now_ms)
    grants: list[Entry] = []
    has_kept = False
    while heads:
        _, key, line = heapq.heappop(heads)
        entry = draft.state.entries[key]
        free = [need for need in needs[line] if used.get(need.key, 0) < need.capacity]
        fits = len(free) == len(needs[line])
        if fits or (not has_kept and now_ms - entry.asked_at_ms >= PATIENCE_MS):
            for need in free:
                used[need.key] = used.get(need.key, 0) + 1
        if not fits:
            has_kept = has_kept or now_ms - entry.asked_at_ms >= PATIENCE_MS
            continue
        before_ms = now_ms + rules.start_within_ms
        granted = entry._replace(stage=Stage.GRANTED, start_before_ms=before_ms, ask_at_ms=before_ms)
        draft.put(granted)
        grants.append(granted)
        waiting = draft.state.shelves[line].waiting
        if waiting:
            heapq.heappush(heads, (*waiting[0], line))
    return grants


def _ask(draft: _Draft, now_ms: int) -> list[Entry]:
    """The grants of which nothing was heard in time; their slots stay taken until the decider says otherwise."""
    due = []
    for shelf in draft.state.shelves.values():
        for key in sorted(shelf.granted):
            entry = draft.state.entries[key]
            if entry.ask_at_ms is not None and entry.ask_at_ms <= now_ms:
                asked = entry._replace(ask_at_ms=now_ms + ASK_EVERY_MS)
                draft.put(asked)
                due.append(asked)
    return due


def next_due_ms(state: LimitState, now_ms: int, rules: LimitRules) -> int | None:
    """The next moment at which a tick does something: a window opens for a waiter, or a grant is asked about."""
    needs = {line: rules.needs(line) for line in state.shelves}
    moments = [
        ask_at_ms
        for shelf in state.shelves.values()
        for key in shelf.granted
        if (ask_at_ms := state.entries[key].ask_at_ms) is not None
    ]
    wanted = {
        need for line, shelf in state.shelves.items() if shelf.waiting for need in needs[line] if need.window_ms > 0
    }
    used = _used(state, needs, now_ms)
    for need in wanted:
        surplus = used.get(need.key, 0) - need.capacity  # so many starts more than one must leave the window
        starts = sorted(
            start
            for line, shelf in state.shelves.items()
            if need in needs[line]
            for start, _ in shelf.starts[_first_within(shelf, need.window_ms, now_ms) :]
        )
        if 0 <= surplus < len(starts):
            moments.append(starts[surplus] + need.window_ms)
    return min(moments, default=None)


def usage(state: LimitState, now_ms: int, rules: LimitRules) -> dict[str, tuple[Need, int]]:
    """What each limit that anybody meets counts, by its key."""
    needs = {line: rules.needs(line) for line in state.shelves}
    used = _used(state, needs, now_ms)
    return {need.key: (need, used.get(need.key, 0)) for met in needs.values() for need in met}


class _Draft:
    """The state while it is being changed; keeps what is derived in step with the entries."""

    def __init__(self, state: LimitState) -> None:
        self.state = state
        #: In the order of the first change.
        self.changed: dict[str, None] = {}

    def put(self, entry: Entry) -> None:
        entries, current, shelves = self.state
        before = entries.get(entry.key)
        shelf = _with(_without(shelves.get(entry.line, Shelf()), before), entry)
        if entry.stage is not Stage.SPENT:
            current = current.set(entry.task_id, entry.hand_out)
        elif current.get(entry.task_id) == entry.hand_out:
            current = current.delete(entry.task_id)
        self.state = LimitState(entries.set(entry.key, entry), current, shelves.set(entry.line, shelf))
        self.changed[entry.key] = None

    def remove(self, entry: Entry) -> None:
        entries, current, shelves = self.state
        shelf = _without(shelves[entry.line], entry)
        if current.get(entry.task_id) == entry.hand_out:
            current = current.delete(entry.task_id)
        shelves = shelves.delete(entry.line) if shelf == Shelf() else shelves.set(entry.line, shelf)
        self.state = LimitState(entries.delete(entry.key), current, shelves)
        self.changed[entry.key] = None


def _without(shelf: Shelf, entry: Entry | None) -> Shelf:
    if entry is None:
        return shelf
    key = entry.key
    return Shelf(
        waiting=tuple(place for place in shelf.waiting if place[1] != key)
        if entry.stage is Stage.WAITING
        else shelf.waiting,
        granted=shelf.granted - {key},
        started=shelf.started - {key},
        starts=tuple(start for start in shelf.starts if start[1] != key)
        if entry.started_at_ms is not None
        else shelf.starts,
    )


def _with(shelf: Shelf, entry: Entry) -> Shelf:
    key = entry.key
    match entry.stage:
        case Stage.WAITING:
            waiting = list(shelf.waiting)
            insort(waiting, (rank(entry), key))
            return shelf._replace(waiting=tuple(waiting))
        case Stage.GRANTED:
            return shelf._replace(granted=shelf.granted | {key})
        case Stage.STARTED | Stage.SPENT:
            assert entry.started_at_ms is not None, "a started slot has its moment"
            starts = list(shelf.starts)
            insort(starts, (entry.started_at_ms, key))
            started = shelf.started | {key} if entry.stage is Stage.STARTED else shelf.started
            return shelf._replace(started=started, starts=tuple(starts))
        case _:
            assert_never(entry.stage)
