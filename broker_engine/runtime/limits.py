"""The limiter inside a turn: its messages decided against the partition's limit state, in the same transaction.

One partition of a namespace has limit state: that of ``LIMIT_KEY``. As with executions, a turn's changes stand in its
overlay until they are committed. A message comes as a command, or at once from a partition that the same process
decides; it may overtake commands that are under way then, which the rules of the limits allow for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from broker_engine.decider.limits import LimitRules, LimitState, decide_limits, next_due_ms, restore
from broker_engine.log.ports import Record
from broker_engine.model.commands import AnyCommand, GrantExpired, SlotGranted
from broker_engine.model.slots import Entry, LimitCommand
from broker_engine.wire.codecs import LIMIT_ENTRY
from broker_engine.wire.limit_entries import from_record, to_record

#: While anything waits the limits are looked at this often: they follow the newest definition.
LOOK_EVERY_MS = 1_000


@dataclass(slots=True)
class Limits:
    """The limit state of a partition, and when it wants to be looked at without a message."""

    state: LimitState = field(default_factory=LimitState)
    due_ms: int | None = None
    #: The largest log time at which they were decided: messages come from every partition that is decided here.
    now_ms: int = 0


@dataclass(slots=True)
class LimitTurn:
    """The limit state while one turn changes it."""

    limits: Limits
    changed: dict[str, None] = field(default_factory=dict)

    def decide(self, command: LimitCommand, now_ms: int, rules: LimitRules) -> list[AnyCommand]:
        """Take in one message; what is to be told to the workflows."""
        now_ms = max(now_ms, self.limits.now_ms)
        decision = decide_limits(self.limits.state, command, now_ms, rules)
        self.limits = Limits(decision.state, now_ms=now_ms)
        self.changed.update(dict.fromkeys(decision.changed))
        return [
            kind(key=entry.workflow_id, reference=entry.reference, task_id=entry.task_id, hand_out=entry.hand_out)
            for kind, entries in ((SlotGranted, decision.grants), (GrantExpired, decision.expired))
            for entry in entries
        ]

    def finish(self, now_ms: int, rules: LimitRules) -> dict[str, bytes | None]:
        """The records of the turn, by key (None: gone), after which the state is complete."""
        state, now_ms = self.limits.state, max(now_ms, self.limits.now_ms)
        self.limits = Limits(state, due_moment_ms(state, now_ms, rules), now_ms)
        return {
            key: None if (entry := state.entries.get(key)) is None else LIMIT_ENTRY.encode(to_record(entry))
            for key in self.changed
        }


def due_moment_ms(state: LimitState, now_ms: int, rules: LimitRules) -> int | None:
    due_ms = next_due_ms(state, now_ms, rules)
    if not any(shelf.waiting for shelf in state.shelves.values()):
        return due_ms
    look_ms = now_ms + LOOK_EVERY_MS
    return look_ms if due_ms is None else min(due_ms, look_ms)


def keep_entries(entries: dict[str, Entry], records: list[Record]) -> None:
    """The last entry per key of a stretch of the limit state's topic."""
    for record in records:
        key = (record.key or b"").decode()
        if record.value is None:
            entries.pop(key, None)
        else:
            entries[key] = from_record(LIMIT_ENTRY.decode(record.value))


def restored(entries: Mapping[str, Entry]) -> Limits:
    """The limit state that consists of these; looked at as soon as there is any."""
    return Limits(restore(entries.values()), 0 if entries else None)
