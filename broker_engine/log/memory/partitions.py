"""Partitions, topics and transactions of the log in memory: what a broker keeps on disk.

Offsets have gaps as on a real broker: transaction markers take one, compaction removes some. Nothing
here knows a client, a group or a lock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from broker_engine.log.ports import CommittedOffset, Isolation, TopicPartition

#: A broker's answer for what a topic does not configure itself (Kafka 4).
BROKER_DEFAULTS: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "delete.retention.ms": "86400000",
    "max.compaction.lag.ms": "9223372036854775807",
    "max.message.bytes": "1048588",
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.ms": "604800000",
}
#: What a batch of one record adds to its key, value and headers, roughly.
BATCH_OVERHEAD = 70


class Outcome(StrEnum):
    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(eq=False, slots=True)
class Transaction:
    """One transaction: where it wrote, and the group offsets it carries."""

    transactional_id: str
    outcome: Outcome = Outcome.OPEN
    touched: list[TopicPartition] = field(default_factory=list)
    offsets: dict[str, dict[TopicPartition, CommittedOffset]] = field(default_factory=dict)


class Entry(NamedTuple):
    """A record or, with ``is_marker``, the end of a transaction in this partition."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    transaction: Transaction | None
    is_marker: bool = False


def _offset_of(entry: Entry) -> int:
    return entry.offset


class Partition:
    """A partition's records in offset order, and which transactions are undecided in it."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.begin = 0
        self.end = 0
        #: First offset of each transaction without a marker here yet.
        self.undecided: dict[Transaction, int] = {}

    def append(
        self,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: tuple[tuple[str, bytes], ...],
        transaction: Transaction | None,
    ) -> int:
        offset = self.end
        self.entries.append(Entry(offset, timestamp_ms, key, value, headers, transaction))
        self.end += 1
        if transaction is not None:
            self.undecided.setdefault(transaction, offset)
        return offset

    def mark(self, transaction: Transaction, timestamp_ms: int) -> None:
        """Write the marker that ends a transaction here."""
        if self.undecided.pop(transaction, None) is not None:
            marker = Entry(self.end, timestamp_ms, None, None, (), transaction, is_marker=True)
            self.entries.append(marker)
            self.end += 1

    def end_for(self, isolation: Isolation) -> int:
        """The high watermark, or for COMMITTED the last stable offset."""
        if isolation is Isolation.UNCOMMITTED or not self.undecided:
            return self.end
        return min(self.undecided.values())

    def visible(self, position: int, limit: int, isolation: Isolation) -> tuple[list[Entry], int]:
        """Up to ``limit`` records from ``position``, and the position after them.

        The position moves past markers, aborted records and gaps, as a reader's does.
        """
        end = self.end_for(isolation)
        found: list[Entry] = []
        for index in range(bisect_left(self.entries, position, key=_offset_of), len(self.entries)):
            entry = self.entries[index]
            if entry.offset >= end:
                break
            if self._is_visible(entry, isolation):
                if len(found) == limit:
                    return found, found[-1].offset + 1
                found.append(entry)
        return found, max(position, end)

    def _is_visible(self, entry: Entry, isolation: Isolation) -> bool:
        if entry.is_marker:
            return False
        if isolation is Isolation.UNCOMMITTED or entry.transaction is None:
            return True
        return entry.transaction.outcome is Outcome.COMMITTED

    def back(self, position: int, records: int) -> int:
        """The position ``records`` committed records earlier."""
        earlier = [e for e in self.entries if e.offset < position]
        seen = [e.offset for e in earlier if self._is_visible(e, Isolation.COMMITTED)]
        return seen[-records:][0] if seen and records else position

    def compact(self, *, remove_tombstones: bool) -> None:
        """Keep the last record of each key; nothing at or above the last stable offset is touched."""
        stable = self.end_for(Isolation.COMMITTED)
        clean = [e for e in self.entries if e.offset < stable and self._is_visible(e, Isolation.COMMITTED)]
        last = {e.key: e.offset for e in clean}
        kept = [e for e in clean if last[e.key] == e.offset and not (remove_tombstones and e.value is None)]
        self.entries = kept + [e for e in self.entries if e.offset >= stable]

    def truncate(self, offset: int) -> None:
        """Delete what retention deletes: everything below ``offset``."""
        self.begin = max(self.begin, min(offset, self.end))
        self.entries = [e for e in self.entries if e.offset >= self.begin]


@dataclass(eq=False)
class StoredTopic:
    """A topic with its configuration in force."""

    partitions: list[Partition]
    config: dict[str, str]

    @property
    def is_log_append_time(self) -> bool:
        return self.config["message.timestamp.type"] == "LogAppendTime"

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.config["cleanup.policy"]

    @property
    def max_bytes(self) -> int:
        return int(self.config["max.message.bytes"])


def record_bytes(key: bytes | None, value: bytes | None, headers: tuple[tuple[str, bytes], ...]) -> int:
    """About what a batch of this one record measures, uncompressed."""
    extra = sum(len(name) + len(content) for name, content in headers)
    return len(key or b"") + len(value or b"") + extra + BATCH_OVERHEAD
