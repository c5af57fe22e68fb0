"""The ports on the cluster in memory. Each public method takes the cluster's lock once; callbacks and
listeners run outside of it, so that they may take locks of their own.
"""

# ruff: noqa: ARG002  the ports' time-outs, kept by name, mean nothing where nothing waits

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from broker_engine.errors import (
    Fenced,
    LogError,
    OutcomeUnknown,
    RecordTooLarge,
    Retriable,
    TransactionAborted,
    UnknownTopic,
)
from broker_engine.log.companions import own, together
from broker_engine.log.memory.cluster import Cluster, Crashed, Outgoing
from broker_engine.log.memory.groups import Membership
from broker_engine.log.memory.partitions import Outcome, Transaction, record_bytes
from broker_engine.log.ports import (
    BEGINNING,
    END,
    CommittedOffset,
    Delivery,
    Group,
    Headers,
    Isolation,
    Member,
    NewTopic,
    RebalanceListener,
    Record,
    TopicPartition,
)

if TYPE_CHECKING:
    from broker_engine.log.memory import MemoryLog

#: As confluent.CLIENT_MAX_BYTES: what a client refuses without asking the broker.
CLIENT_MAX_BYTES = 64 * 1024 * 1024


def _outgoing(topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers) -> Outgoing:
    copied = tuple((name, bytes(content)) for name, content in headers)
    if record_bytes(key, value, copied) > CLIENT_MAX_BYTES:
        raise RecordTooLarge
    return Outgoing(topic, partition, key, value, copied)


class MemoryWriter:
    """ports.Writer. Records are stored when sent, or on the next call after the broker is back."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._queue: list[tuple[Outgoing, Callable[[Delivery], None] | None]] = []
        self._reports: list[tuple[Callable[[Delivery], None], Delivery]] = []

    def send(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = (),
        on_delivery: Callable[[Delivery], None] | None = None,
    ) -> None:
        record = _outgoing(topic, partition, key, value, headers)
        with self._cluster.lock:
            self._queue.append((record, on_delivery))
            self._deliver()

    def poll(self, timeout: float = 0.0) -> int:
        with self._cluster.lock:
            self._deliver()
            reports, self._reports = self._reports, []
        for on_delivery, delivery in reports:
            on_delivery(delivery)
        return len(reports)

    def flush(self, timeout: float) -> int:
        self.poll()
        return len(self._queue)

    def close(self) -> None:
        self.flush(0.0)
        self._queue.clear()

    def _deliver(self) -> None:
        if self._cluster.is_down:
            return
        for record, on_delivery in self._queue:
            delivery = self._cluster.append(record, None)
            if on_delivery is not None:
                self._reports.append((on_delivery, delivery))
        self._queue.clear()


class MemoryTransactionalWriter:
    """ports.TransactionalWriter.

    Errors show where the real client shows them: a fenced writer or a refused record at the commit,
    not at ``send``.
    """

    def __init__(self, log: MemoryLog, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self._log = log
        self._cluster = log.cluster
        self._epoch: int | None = None
        self._is_open = False
        self._queue: list[Outgoing] = []
        self._failure: LogError | None = None

    def init(self, timeout: float = 30.0) -> None:
        with self._cluster.lock:
            self._cluster.check_reachable()
            self._epoch = self._cluster.register(self.transactional_id)

    def begin(
        self, offsets: Mapping[TopicPartition, CommittedOffset] | None = None, group: Group | None = None
    ) -> None:
        if self._epoch is None:
            raise Fenced("This writer is closed, or `init` was not called.")
        if self._is_open:
            raise LogError("A transaction is open already.")
        self._is_open, self._failure = True, None

    def send(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = (),
    ) -> None:
        record = _outgoing(topic, partition, key, value, headers)
        if not self._is_open:
            raise TransactionAborted("No transaction is open.")
        with self._cluster.lock:
            self._queue.append(record)
            self._deliver()

    def commit(
        self,
        offsets: Mapping[TopicPartition, CommittedOffset],
        group: Group,
        timeout: float = 60.0,
    ) -> None:
        with self._cluster.lock:
            transaction = self._prepare(offsets, group)
        if self._log.before_commit is not None:
            self._log.before_commit(self.transactional_id)
        with self._cluster.lock:
            if self.transactional_id in self._log.held:
                self._log.held.discard(self.transactional_id)
                raise Crashed(f"{self.transactional_id} before its commit")
            self._check_epoch()
            applied = self._log.take_unknown_outcome()
            if applied is not False and transaction is not None:
                self._cluster.finish(transaction, Outcome.COMMITTED)
            if applied is not None:
                raise OutcomeUnknown
            self._is_open = False
        if self._log.on_commit is not None:
            self._log.on_commit(self.transactional_id)

    def abort(self, timeout: float = 30.0) -> None:
        with self._cluster.lock:
            if self._cluster.is_down:
                raise Retriable("No broker answers.")
            self._check_epoch()
            self._drop()

    def close(self) -> None:
        self._epoch = None
        self._is_open = False

    def _prepare(self, offsets: Mapping[TopicPartition, CommittedOffset], group: Group) -> Transaction | None:
        """Everything of a commit before its point of no return; offsets are pending after it."""
        self._check_epoch()
        if not self._is_open:
            raise LogError("No transaction is open.")
        if self._cluster.is_down:
            raise TransactionAborted("No broker answers.")
        self._deliver()
        if self._failure is not None:
            raise TransactionAborted(str(self._failure)) from self._failure
        if offsets:
            # Only with offsets does the broker look at the membership: without, a zombie's commits.
            assert isinstance(group, Membership)
            try:
                self._cluster.group(group.group).check(group)
            except Fenced:
                self._drop()
                raise
            transaction = self._cluster.transaction(self.transactional_id)
            self._cluster.add_offsets(transaction, group.group, dict(offsets))
        return self._cluster.open.get(self.transactional_id)

    def _deliver(self) -> None:
        """Store what is queued, unless the broker is away or would refuse this writer."""
        cluster = self._cluster
        if cluster.is_down or cluster.epochs.get(self.transactional_id) != self._epoch:
            return
        for record in self._queue:
            if self._failure is None:
                transaction = cluster.transaction(self.transactional_id)
                self._failure = cluster.append(record, transaction).error
        self._queue.clear()

    def _drop(self) -> None:
        self._queue.clear()
        self._is_open = False
        if (transaction := self._cluster.open.get(self.transactional_id)) is not None:
            self._cluster.finish(transaction, Outcome.ABORTED)

    def _check_epoch(self) -> None:
        if self._epoch is None:
            raise Fenced("This writer is closed, or `init` was not called.")
        self._cluster.check_epoch(self.transactional_id, self._epoch)


class MemoryReader:
    """ports.Reader."""

    def __init__(self, log: MemoryLog, isolation: Isolation, headers: bool) -> None:
        self._log = log
        self._cluster = log.cluster
        self._isolation = isolation
        self._headers = headers
        self._positions: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self._turn = 0
        self._closed = False

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        with self._cluster.lock:
            self._positions = {tp: self._resolved(tp, at) for tp, at in positions.items()}
            self._paused.clear()

    def read(self, max_records: int, timeout: float) -> list[Record]:
        with self._cluster.changed:
            records = self._take(max_records)
            if not records and self._log.blocks and timeout > 0:
                self._cluster.changed.wait(timeout)
                records = self._take(max_records)
            return records

    def position(self, tp: TopicPartition) -> int:
        with self._cluster.lock:
            return self._positions[tp]

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        with self._cluster.lock:
            self._paused |= self._held().intersection(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        with self._cluster.lock:
            self._paused.difference_update(partitions)

    def seek(self, tp: TopicPartition, offset: int) -> None:
        with self._cluster.lock:
            if tp not in self._held():
                raise LogError(f"{tp} is not assigned to this reader.")
            self._positions[tp] = self._resolved(tp, offset)

    def rewind(self, tp: TopicPartition, records: int = 1) -> None:
        """Fault: the last records of a partition are delivered once more."""
        with self._cluster.lock:
            self._positions[tp] = self._cluster.partition(tp).back(self._positions[tp], records)

    def close(self) -> None:
        self._closed = True
        self._positions.clear()

    def _held(self) -> frozenset[TopicPartition]:
        return frozenset(self._positions)

    def _take(self, max_records: int) -> list[Record]:
        """Available records, one partition after another, beginning with another one each time."""
        if self._cluster.is_down or self._closed:
            return []
        records: list[Record] = []
        ready = sorted(self._held() - self._paused)
        self._turn += 1
        for index in range(len(ready)):
            tp = ready[(self._turn + index) % len(ready)]
            position = self._position_or_none(tp)
            limit = max_records - len(records)
            if position is None or limit == 0:
                continue
            partition = self._cluster.partition(tp)
            # Below the log start the real client resets to the earliest record.
            entries, after = partition.visible(max(position, partition.begin), limit, self._isolation)
            self._positions[tp] = after
            records += [
                Record(
                    tp.topic,
                    tp.partition,
                    e.offset,
                    e.timestamp_ms,
                    e.key,
                    e.value,
                    e.headers if self._headers else (),
                )
                for e in entries
            ]
        return records

    def _position_or_none(self, tp: TopicPartition) -> int | None:
        return self._positions[tp]

    def _resolved(self, tp: TopicPartition, offset: int) -> int:
        if offset == BEGINNING:
            return self._cluster.partition(tp).begin
        if offset == END:
            return self._cluster.partition(tp).end_for(self._isolation)
        return offset


class MemoryGroupReader(MemoryReader):
    """ports.GroupReader. Joins, gives back and takes partitions when it reads."""

    def __init__(self, log: MemoryLog, group: str, client_id: str, isolation: Isolation, headers: bool) -> None:
        super().__init__(log, isolation, headers)
        self._group_name = group
        self._client_id = client_id
        self._topics: tuple[str, ...] = ()
        self._listener: RebalanceListener | None = None
        self._companions: Sequence[str] = ()
        self._member = ""
        self._assigned: frozenset[TopicPartition] = frozenset()

    def subscribe(
        self,
        topic: str | tuple[str, ...],
        listener: RebalanceListener | None = None,
        companions: Sequence[str] = (),
    ) -> None:
        """As the port; a tuple of topics is for showing what the port forbids (`split_assignment`)."""
        topics = (topic,) if isinstance(topic, str) else topic
        with self._cluster.lock:
            self._topics, self._listener, self._companions = topics, listener, companions

    def read(self, max_records: int, timeout: float) -> list[Record]:
        self._follow_group()
        return super().read(max_records, timeout)

    def assignment(self) -> frozenset[TopicPartition]:
        return self._assigned

    def position(self, tp: TopicPartition) -> int:
        with self._cluster.lock:
            if tp in self._positions:
                return self._positions[tp]
            return self._cluster.start_of(self._group_name, tp)

    def group(self) -> Group:
        with self._cluster.lock:
            if not self._member:
                raise Fenced("This member is not in its group any more; rebuild from the log.")
            generation = self._cluster.group(self._group_name).generation
            return Membership(self._group_name, self._member, generation)

    def commit(self, offsets: Mapping[TopicPartition, CommittedOffset], *, asynchronous: bool = False) -> None:
        self.group()
        with self._cluster.lock:
            if self._cluster.is_down and not asynchronous:
                raise Retriable("No broker answers.")
            group = self._cluster.group(self._group_name)
            if self._member in group.members and not self._cluster.is_down:
                group.offsets |= offsets
            elif not asynchronous:
                raise Fenced("The member is unknown to its group (UNKNOWN_MEMBER_ID).")

    def close(self) -> None:
        if self._closed:
            return
        if self._member and self._assigned and self._listener is not None:
            self._listener.revoked(own(self._assigned, self._companions))
        with self._cluster.lock:
            self._leave()
        super().close()

    def expire(self) -> None:
        """Fault: this member's session ends without its knowing (see MemoryLog.expire_session)."""
        self._cluster.group(self._group_name).leave(self._member, self._cluster.counts())

    def _held(self) -> frozenset[TopicPartition]:
        return self._assigned

    def _position_or_none(self, tp: TopicPartition) -> int | None:
        if tp not in self._positions:
            try:
                self._positions[tp] = self._cluster.start_of(self._group_name, tp)
            except Retriable:  # pending offsets: the real client asks again until they are stable
                return None
        return self._positions[tp]

    def _follow_group(self) -> None:
        """Join, and bring the own assignment towards the group's; one listener call at a time."""
        if self._closed or not self._topics or self._cluster.is_down:
            return
        with self._cluster.lock:
            group = self._cluster.group(self._group_name)
            was_thrown_out = bool(self._member) and self._member not in group.members
            lost = own(self._assigned, self._companions) if was_thrown_out else []
            if was_thrown_out:
                self._forget(lost)
                self._member = ""
        if lost and self._listener is not None:
            self._listener.lost(lost)
        with self._cluster.lock:
            if not self._member:
                counts = self._cluster.counts()
                if any(topic not in counts for topic in self._topics):
                    raise UnknownTopic(f"{', '.join(self._topics)}: not all exist.")
                self._member = group.join(self._client_id, self._topics, counts)
            revoked = group.to_give_back(self._member)
        if revoked:
            if self._listener is not None:
                self._listener.revoked(revoked)
            with self._cluster.lock:
                group.give_back(revoked)
                self._forget(revoked)
        with self._cluster.lock:
            added = group.take(self._member)
            taken = together(added, self._companions)
            self._assigned |= frozenset(taken)
            if self._listener is not None:
                self._paused.update(taken)
        if added and self._listener is not None:
            self._listener.assigned(added)

    def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        given_up = together(own(partitions, self._companions), self._companions)
        for tp in given_up:
            self._positions.pop(tp, None)
            self._paused.discard(tp)
        self._assigned = self._assigned.difference(given_up)

    def _leave(self) -> None:
        if self._member:
            self._cluster.group(self._group_name).leave(self._member, self._cluster.counts())
        self._member = ""
        self._forget(list(self._assigned))


class MemoryAdmin:
    """ports.Admin."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def topics(self) -> dict[str, int]:
        with self._cluster.lock:
            self._cluster.check_reachable()
            return self._cluster.counts()

    def configs(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        with self._cluster.lock:
            self._cluster.check_reachable()
            found = {}
            for name in topics:
                if name not in self._cluster.topics:
                    raise UnknownTopic(f"{name} does not exist.")
                found[name] = dict(self._cluster.topics[name].config)
            return found

    def create(self, topics: Iterable[NewTopic]) -> None:
        with self._cluster.lock:
            self._cluster.check_reachable()
            for topic in topics:
                self._cluster.create(topic)

    def delete(self, topics: Iterable[str]) -> None:
        with self._cluster.lock:
            self._cluster.check_reachable()
            for name in topics:
                self._cluster.delete(name)

    def end_offsets(self, partitions: Iterable[TopicPartition], isolation: Isolation) -> dict[TopicPartition, int]:
        with self._cluster.lock:
            self._cluster.check_reachable()
            return {tp: self._cluster.partition(tp).end_for(isolation) for tp in partitions}

    def begin_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        with self._cluster.lock:
            self._cluster.check_reachable()
            return {tp: self._cluster.partition(tp).begin for tp in partitions}

    def committed(
        self, group: str, partitions: Iterable[TopicPartition], *, require_stable: bool
    ) -> dict[TopicPartition, CommittedOffset | None]:
        with self._cluster.lock:
            self._cluster.check_reachable()
            state = self._cluster.group(group)
            find = state.stable if require_stable else state.offsets.get
            return {tp: find(tp) for tp in partitions}

    def members(self, group: str) -> list[Member]:
        with self._cluster.lock:
            self._cluster.check_reachable()
            state = self._cluster.group(group)
            return [Member(m.client_id, tuple(state.owned(m.name))) for m in state.members.values()]

    def close(self) -> None:
        """Nothing is held."""
