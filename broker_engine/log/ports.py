"""What the engine needs of Kafka, and nothing more: the only abstract file.

Two implementations exist, ``confluent.py`` (a real cluster) and ``memory.py`` (the same rules in one process, with
switches for the races that were seen on real clusters). One contract suite runs on both, so that they cannot drift.

Everything blocks; the loops in ``runtime/`` own the threads. Times are milliseconds since the epoch unless a name
says otherwise; time-outs are seconds. Kafka's errors arrive as the classes of ``errors.LogError``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

from broker_engine.errors import LogError

#: Positions that ``assign`` and ``seek`` understand beside real offsets.
BEGINNING = -2
END = -1

Headers = Sequence[tuple[str, bytes]]


#: ``fetch_wait_ms`` of readers that read to an end, seek or pause. Below 10 ms nothing is gained.
PROMPT_MS = 10
#: ``fetch_wait_ms`` of readers that follow a topic: idle polling at PROMPT_MS costs the broker 2 % of a core each.
FOLLOW_MS = 100


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


class Record(NamedTuple):
    """A record as read. A tuple, not a dataclass: one is made for every record on the hot path."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


class Delivery(NamedTuple):
    """What became of one sent record: its place and (LogAppendTime) moment, or the error."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    error: LogError | None


class CommittedOffset(NamedTuple):
    """A group's committed position in a partition and the text stored with it."""

    offset: int
    metadata: str = ""


class Member(NamedTuple):
    """A current member of a consumer group."""

    client_id: str
    partitions: tuple[TopicPartition, ...]


class Isolation(StrEnum):
    """Which records a reader sees, and which end of a partition a query means.

    ``COMMITTED``: up to the last stable offset, without aborted records.
    ``UNCOMMITTED``: up to the high watermark.
    """

    COMMITTED = "read_committed"
    UNCOMMITTED = "read_uncommitted"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic to create."""

    name: str
    partitions: int
    config: Mapping[str, str] = field(default_factory=dict)


class Group(Protocol):
    """Opaque proof of group membership that a transaction carries with its offsets."""


class Writer(Protocol):
    """An idempotent producer. Not for records that must appear together: see TransactionalWriter."""

    def send(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = (),
        on_delivery: Callable[[Delivery], None] | None = None,
    ) -> None:
        """Queue a record. ``on_delivery`` is called from ``poll`` or ``flush`` in the caller's thread.

        A full local queue is waited for (bounded); a record over the client's limit raises RecordTooLarge.
        """

    def poll(self, timeout: float = 0.0) -> int:
        """Serve delivery callbacks for up to ``timeout`` seconds; returns how many were served."""

    def flush(self, timeout: float) -> int:
        """Wait until everything queued is delivered; returns how many records are still queued."""

    def close(self) -> None:
        """Flush briefly and release. Idempotent."""


class TransactionalWriter(Protocol):
    """A transactional producer of one process slot.

    Errors: ``TransactionAborted`` means call ``abort`` and read the input again; ``Fenced`` and ``OutcomeUnknown`` mean
    drop this writer (``close``) and rebuild. Retriable errors are retried inside, with the same call.
    """

    transactional_id: str

    def init(self, timeout: float = 30.0) -> None:
        """Register the id; fences an earlier holder and ends its open transaction."""

    def begin(
        self, offsets: Mapping[TopicPartition, CommittedOffset] | None = None, group: Group | None = None
    ) -> None:
        """Open a transaction.

        With ``offsets`` (and the group) they are sent before the records, and ``commit`` must be given the same ones.
        Right after another commit this saves 20 ms: the client waits that long when its first request is for a
        partition whose last marker is still being written, but only 2 ms when it is for offsets (measured).
        """

    def send(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> None:
        """Queue a record in the open transaction. Never send to a topic that is not known to exist: it stalls for
        15 s and the transaction aborts (measured)."""

    def commit(self, offsets: Mapping[TopicPartition, CommittedOffset], group: Group, timeout: float = 60.0) -> None:
        """Commit records and consumed offsets together. Every transaction must carry offsets: one without was seen to
        commit after its partition had moved to another process."""

    def abort(self, timeout: float = 30.0) -> None:
        """Drop everything sent since ``begin``."""

    def close(self) -> None:
        """Release without aborting or committing (the id's next ``init`` ends an open transaction). Idempotent."""


class Reader(Protocol):
    """A consumer with manually assigned partitions and no group."""

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Replace the assignment. Values are offsets, BEGINNING or END (END is resolved before this returns)."""

    def read(self, max_records: int, timeout: float) -> list[Record]:
        """At least one record if one comes within ``timeout``, and those already fetched up to ``max_records``.

        Polls one, then takes what is there: never waits for the batch to fill. Also serves group callbacks.
        """

    def position(self, tp: TopicPartition) -> int:
        """The next offset to be read, moved past aborted records and transaction markers already skipped; the catch-up
        test is ``position(tp) >= end``. Before the first read it is the assigned offset."""

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop delivering records of these partitions (assigned ones only; others are ignored)."""

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Deliver again."""

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Read on from this offset; records already fetched locally are dropped."""

    def close(self) -> None:
        """Leave the group, if any, and release. Idempotent."""


class RebalanceListener(Protocol):
    """Called from ``GroupReader.read`` in its thread. Must only flip state: slow work belongs in the loop."""

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """These partitions were added (cooperative: only the new ones). They start paused at their committed offset
        or the beginning; the loop seeks and resumes them when it is ready."""

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """These partitions are about to be handed over; commits still work during this call."""

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        """These partitions are gone already; nothing about them may be committed."""


class GroupReader(Reader, Protocol):
    """A member of a consumer group. Subscribes to ONE topic: with two, partition p of each went to different members
    (8 of 8). ``assign`` is not used on it."""

    def subscribe(self, topic: str, listener: RebalanceListener | None = None, companions: Sequence[str] = ()) -> None:
        """Join the group for this topic. With a listener, newly assigned partitions start paused; without one they
        start at the committed offset (or the beginning) at once.

        Partition p of each companion topic comes and goes with partition p of the topic; the listener hears of the
        topic's own partitions only.
        """

    def assignment(self) -> frozenset[TopicPartition]:
        """What this member holds now."""

    def group(self) -> Group:
        """Membership to pass to ``TransactionalWriter.commit``; take it anew for every transaction."""

    def commit(self, offsets: Mapping[TopicPartition, CommittedOffset], *, asynchronous: bool = False) -> None:
        """Commit positions without a transaction. Raises Fenced when this member is no longer in the group."""


class Admin(Protocol):
    """Cluster metadata and queries. Each call is bounded; an absent broker raises Unreachable."""

    def topics(self) -> dict[str, int]:
        """All topics with their partition counts, read fresh from the cluster."""

    def configs(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        """Topic configurations in force, by topic."""

    def create(self, topics: Iterable[NewTopic]) -> None:
        """Create those that do not exist yet; an existing topic is left as it is."""

    def delete(self, topics: Iterable[str]) -> None:
        """Delete; unknown names are ignored."""

    def end_offsets(self, partitions: Iterable[TopicPartition], isolation: Isolation) -> dict[TopicPartition, int]:
        """UNCOMMITTED: the high watermark; COMMITTED: the last stable offset, which lags a commit that has already
        returned (seen in 61 of 300). Asked of the broker each time, never cached."""

    def begin_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The log start offsets."""

    def committed(
        self, group: str, partitions: Iterable[TopicPartition], *, require_stable: bool
    ) -> dict[TopicPartition, CommittedOffset | None]:
        """A group's committed offsets. With ``require_stable`` pending transactional offsets raise Retriable; without,
        the last committed value (and its metadata) is answered at once."""

    def members(self, group: str) -> list[Member]:
        """The group's current members (empty for an unknown group)."""

    def close(self) -> None:
        """Release. Idempotent."""


class Log(Protocol):
    """A Kafka cluster as the engine sees it: a factory of the ports above."""

    def admin(self) -> Admin: ...

    def partition_of(self, key: str, partitions: int) -> int:
        """``topics.partition_of``, computed by the client's own code where it has some (25 times faster)."""

    def writer(self, *, client_id: str, linger_ms: int = 0) -> Writer: ...

    def transactional_writer(
        self, transactional_id: str, *, transaction_timeout_ms: int = 60_000
    ) -> TransactionalWriter:
        """``transaction_timeout_ms`` defaults to Kafka's own; ``init`` is not called yet."""

    def reader(
        self, *, isolation: Isolation = Isolation.COMMITTED, headers: bool = False, fetch_wait_ms: int = PROMPT_MS
    ) -> Reader:
        """``headers``: whether Record.headers is filled (it costs a call per record).

        ``fetch_wait_ms``: how long the broker may hold a request while there is nothing to read. New records end the
        wait; a seek, a resumed partition and the end of a partition wait for it. PROMPT_MS for who reads to an end,
        FOLLOW_MS for who stays.
        """

    def group_reader(
        self,
        group: str,
        *,
        client_id: str,
        isolation: Isolation = Isolation.COMMITTED,
        session_timeout_ms: int = 6_000,
        headers: bool = False,
        fetch_wait_ms: int = PROMPT_MS,
    ) -> GroupReader:
        """Classic protocol, cooperative-sticky, earliest; auto commit off."""
