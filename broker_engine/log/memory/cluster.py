"""The broker of the log in memory: topics, transactional ids, groups, and the switches for faults.

Single-threaded by nature and deterministic; one re-entrant lock lets threads share it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from broker_engine.errors import (
    Fenced,
    LogError,
    RecordTooLarge,
    Retriable,
    UnknownTopic,
    Unreachable,
)
from broker_engine.log.memory.groups import GroupState
from broker_engine.log.memory.partitions import (
    BROKER_DEFAULTS,
    Outcome,
    Partition,
    StoredTopic,
    Transaction,
    record_bytes,
)
from broker_engine.log.ports import CommittedOffset, Delivery, NewTopic, TopicPartition

Clock = Callable[[], int]


class Crashed(BaseException):
    """The process ended here. Not an Exception: nothing may handle it but the test that asked for it."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A record on its way to the broker."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


class Cluster:
    """What all clients of one log in memory share."""

    def __init__(self, clock: Clock, sender_clock: Clock) -> None:
        self.clock = clock
        self.sender_clock = sender_clock
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.topics: dict[str, StoredTopic] = {}
        self.groups: dict[str, GroupState] = {}
        self.epochs: dict[str, int] = {}
        self.open: dict[str, Transaction] = {}
        #: Ended transactions whose markers are still to be written (`lag_lso`).
        self.unmarked: list[Transaction] = []
        self.is_down = False
        self.lags = False
        self.offsets_lag = False
        self.splits = False

    # ------------------------------------------------------------------------------------ topics

    def create(self, topic: NewTopic) -> None:
        if topic.name in self.topics:
            return
        alike = topic.name.replace(".", "_")
        if any(name.replace(".", "_") == alike for name in self.topics):
            raise LogError(f"{topic.name} differs from an existing topic only by '.' and '_'.")
        config = {**BROKER_DEFAULTS, **topic.config}
        self.topics[topic.name] = StoredTopic([Partition() for _ in range(topic.partitions)], config)
        self.rebalance_all()

    def delete(self, name: str) -> None:
        if self.topics.pop(name, None) is not None:
            self.rebalance_all()

    def partition(self, tp: TopicPartition) -> Partition:
        topic = self.topics.get(tp.topic)
        if topic is None or not 0 <= tp.partition < len(topic.partitions):
            raise UnknownTopic(f"{tp.topic}-{tp.partition} does not exist.")
        return topic.partitions[tp.partition]

    def counts(self) -> dict[str, int]:
        return {name: len(topic.partitions) for name, topic in self.topics.items()}

    def check_reachable(self) -> None:
        if self.is_down:
            raise Unreachable

    def append(self, record: Outgoing, transaction: Transaction | None) -> Delivery:
        """Store one record as a broker would, or say why not."""
        tp = TopicPartition(record.topic, record.partition)
        try:
            partition = self.partition(tp)
            topic = self.topics[record.topic]
            size = record_bytes(record.key, record.value, record.headers)
            if size > topic.max_bytes:
                raise RecordTooLarge(f"{size} bytes, {record.topic} takes {topic.max_bytes}.")
            if topic.is_compacted and record.key is None:
                raise LogError(f"{record.topic} is compacted: a record needs a key.")
        except LogError as error:
            return Delivery(record.topic, record.partition, -1, -1, error)
        at_ms = self.clock() if topic.is_log_append_time else self.sender_clock()
        offset = partition.append(at_ms, record.key, record.value, record.headers, transaction)
        if transaction is not None and tp not in transaction.touched:
            transaction.touched.append(tp)
        self.changed.notify_all()
        return Delivery(record.topic, record.partition, offset, at_ms, None)

    # ------------------------------------------------------------------------------ transactions

    def register(self, transactional_id: str) -> int:
        """A new holder of the id: fences the earlier one and ends its open transaction."""
        if (unfinished := self.open.get(transactional_id)) is not None:
            self.finish(unfinished, Outcome.ABORTED)
        # Kafka completes an ended transaction before it lets the id in again.
        self.write_markers(only=transactional_id)
        self.epochs[transactional_id] = self.epochs.get(transactional_id, -1) + 1
        return self.epochs[transactional_id]

    def check_epoch(self, transactional_id: str, epoch: int) -> None:
        if self.epochs.get(transactional_id) != epoch:
            raise Fenced(f"Another process holds the transactional id {transactional_id}.")

    def transaction(self, transactional_id: str) -> Transaction:
        """The id's open transaction; one exists at the broker from the first record or offset on."""
        return self.open.setdefault(transactional_id, Transaction(transactional_id))

    def add_offsets(self, transaction: Transaction, group: str, offsets: dict[TopicPartition, CommittedOffset]) -> None:
        self.group(group).pending.setdefault(transaction, {}).update(offsets)
        transaction.offsets.setdefault(group, {}).update(offsets)

    def finish(self, transaction: Transaction, outcome: Outcome) -> None:
        """End a transaction. What it did becomes visible with its markers, which may come later."""
        transaction.outcome = outcome
        del self.open[transaction.transactional_id]
        if not self.offsets_lag:
            self._settle_offsets(transaction)
        self.unmarked.append(transaction)
        if not self.lags:
            self.write_markers()
        self.changed.notify_all()

    def write_markers(self, only: str | None = None) -> None:
        for transaction in list(self.unmarked):
            if only is None or transaction.transactional_id == only:
                self.unmarked.remove(transaction)
                self._settle_offsets(transaction)
                for tp in transaction.touched:
                    if tp.topic in self.topics:
                        self.partition(tp).mark(transaction, self.clock())
        self.changed.notify_all()

    def _settle_offsets(self, transaction: Transaction) -> None:
        for name, offsets in transaction.offsets.items():
            group = self.group(name)
            is_pending = group.pending.pop(transaction, None) is not None
            if is_pending and transaction.outcome is Outcome.COMMITTED:
                group.offsets |= offsets

    # ------------------------------------------------------------------------------------ groups

    def group(self, name: str) -> GroupState:
        group = self.groups.setdefault(name, GroupState(name))
        group.is_split = self.splits
        return group

    def rebalance_all(self) -> None:
        counts = self.counts()
        for group in self.groups.values():
            group.rebalance(counts)

    def start_of(self, group: str, tp: TopicPartition) -> int:
        """Where a member starts reading: the committed offset if it is stable, or the beginning."""
        if self.is_down:
            raise Retriable("No broker answers.")
        committed = self.group(group).stable(tp)
        return self.partition(tp).begin if committed is None else committed.offset
