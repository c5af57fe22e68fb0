"""Kafka's rules in one process, with switches for the races that were seen on real clusters.

``MemoryLog`` implements the ports without a broker, deterministically: for tests, for the simulation,
and for trying the engine out. Nothing is stored. Time comes from the given clock, and ``read`` never
sleeps unless ``blocks`` is set. The contract suite runs on this and on the real one alike; what only
this one can do are the faults:

* ``lag_lso``, ``lag_offsets``: what was committed becomes visible later than the commit returned
  (seen 61 of 300 times).
* ``split_assignment``: two topics in one subscription land on different members (8 of 8).
* a zombie's transaction commits when it carries no offsets, and is fenced when it does (always so).
* ``make_next_commit_unknown``: the next commit does not answer, having happened or not.
* ``hold_transaction``, ``expire_transactions``, ``expire_session``: a process died or hangs.
* ``before_commit``, ``on_commit``: crash points, by raising ``Crashed``.
* ``MemoryReader.rewind``: records are delivered twice. ``broker_down``: no broker answers.
* ``compact``, ``truncate``: the cleaner runs now.
"""

# ruff: noqa: ARG002  the ports' arguments, kept by name, mean nothing where nothing waits

from __future__ import annotations

from collections.abc import Callable

from broker_engine.log.memory.clients import (
    MemoryAdmin,
    MemoryGroupReader,
    MemoryReader,
    MemoryTransactionalWriter,
    MemoryWriter,
)
from broker_engine.log.memory.cluster import Clock, Cluster, Crashed
from broker_engine.log.memory.partitions import Outcome
from broker_engine.log.ports import PROMPT_MS, Isolation, TopicPartition
from broker_engine.topics import partition_of

__all__ = [
    "Crashed",
    "MemoryAdmin",
    "MemoryGroupReader",
    "MemoryLog",
    "MemoryReader",
    "MemoryTransactionalWriter",
    "MemoryWriter",
]


class MemoryLog:
    """ports.Log in memory.

    Args:
        clock: the broker's time in milliseconds: LogAppendTime.
        sender_clock: the senders' time, for topics with CreateTime; the same clock unless given.
        blocks: whether ``read`` waits in real time for records, for use by threads.
    """

    def __init__(self, clock: Clock, *, sender_clock: Clock | None = None, blocks: bool = False) -> None:
        self.cluster = Cluster(clock, sender_clock or clock)
        self.blocks = blocks
        #: Called with the transactional id when offsets are pending and nothing is committed yet.
        self.before_commit: Callable[[str], None] | None = None
        #: Called with the transactional id when the commit has happened and was not answered yet.
        self.on_commit: Callable[[str], None] | None = None
        #: Transactional ids whose process dies at its next commit.
        self.held: set[str] = set()
        self._unknown_outcome: bool | None = None

    # ------------------------------------------------------------------------------------- ports

    def partition_of(self, key: str, partitions: int) -> int:
        return partition_of(key, partitions)

    def admin(self) -> MemoryAdmin:
        return MemoryAdmin(self.cluster)

    def writer(self, *, client_id: str, linger_ms: int = 0) -> MemoryWriter:
        return MemoryWriter(self.cluster)

    def transactional_writer(
        self, transactional_id: str, *, transaction_timeout_ms: int = 60_000
    ) -> MemoryTransactionalWriter:
        return MemoryTransactionalWriter(self, transactional_id)

    def reader(
        self, *, isolation: Isolation = Isolation.COMMITTED, headers: bool = False, fetch_wait_ms: int = PROMPT_MS
    ) -> MemoryReader:
        return MemoryReader(self, isolation, headers)

    def group_reader(
        self,
        group: str,
        *,
        client_id: str,
        isolation: Isolation = Isolation.COMMITTED,
        session_timeout_ms: int = 6_000,
        headers: bool = False,
        fetch_wait_ms: int = PROMPT_MS,
    ) -> MemoryGroupReader:
        return MemoryGroupReader(self, group, client_id, isolation, headers)

    # ------------------------------------------------------------------------------------ faults

    @property
    def broker_down(self) -> bool:
        """No broker answers: reads are empty, sends are queued, questions raise Unreachable."""
        return self.cluster.is_down

    @broker_down.setter
    def broker_down(self, is_down: bool) -> None:
        with self.cluster.lock:
            self.cluster.is_down = is_down
            self.cluster.changed.notify_all()

    @property
    def lag_offsets(self) -> bool:
        """With ``lag_lso``: the offsets of those commits are pending until then, too. Both orders happen
        on a real cluster; without this switch the offsets come first, which hurts more."""
        return self.cluster.offsets_lag

    @lag_offsets.setter
    def lag_offsets(self, lag: bool) -> None:
        self.cluster.offsets_lag = lag

    @property
    def lag_lso(self) -> bool:
        """Commits return before their records are visible; ``False`` or ``settle_lso`` reveals."""
        return self.cluster.lags

    @lag_lso.setter
    def lag_lso(self, lags: bool) -> None:
        self.cluster.lags = lags
        if not lags:
            self.settle_lso()

    def settle_lso(self) -> None:
        """Write the markers of all ended transactions; later commits lag again."""
        with self.cluster.lock:
            self.cluster.write_markers()

    @property
    def split_assignment(self) -> bool:
        """Partition p of two topics in one subscription goes to different members."""
        return self.cluster.splits

    @split_assignment.setter
    def split_assignment(self, splits: bool) -> None:
        with self.cluster.lock:
            self.cluster.splits = splits
            for group in self.cluster.groups.values():
                group.is_split = splits
            self.cluster.rebalance_all()

    def make_next_commit_unknown(self, *, applied: bool) -> None:
        """The next commit raises OutcomeUnknown, having happened or not."""
        self._unknown_outcome = applied

    def take_unknown_outcome(self) -> bool | None:
        outcome, self._unknown_outcome = self._unknown_outcome, None
        return outcome

    def hold_transaction(self, transactional_id: str) -> None:
        """The next commit of this id raises Crashed; its transaction stays open, its offsets pending,
        until the id's next ``init`` or ``expire_transactions``."""
        self.held.add(transactional_id)

    def expire_transactions(self) -> None:
        """The coordinator's time-out: every open transaction is aborted and its writer fenced."""
        with self.cluster.lock:
            for transaction in list(self.cluster.open.values()):
                self.cluster.finish(transaction, Outcome.ABORTED)
                self.cluster.epochs[transaction.transactional_id] += 1

    def expire_session(self, reader: MemoryGroupReader) -> None:
        """The member's heartbeats stopped: the group goes on without it. It hears of it (``lost``)
        when it reads again; until then it is a zombie."""
        with self.cluster.lock:
            reader.expire()

    def compact(self, topic: str, *, remove_tombstones: bool = False) -> None:
        """Run the cleaner over a topic now."""
        with self.cluster.lock:
            for partition in self.cluster.topics[topic].partitions:
                partition.compact(remove_tombstones=remove_tombstones)

    def truncate(self, topic: str, partition: int, offset: int) -> None:
        """Let retention delete everything below an offset."""
        with self.cluster.lock:
            self.cluster.partition(TopicPartition(topic, partition)).truncate(offset)
