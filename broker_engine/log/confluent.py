"""The log on a real cluster: the only file that imports confluent_kafka, and where its untyped
values end.

It knows Kafka's client and nothing of the engine: no topic name, no record format, no retry beyond
"the same call again". What Kafka's errors mean is said once, in ``translate``.

Client settings that matter are passed explicitly, with the measurement that chose them; a user's
own settings (security, addresses) may add to them but not change what the engine's promises rest
on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import structlog
from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
)
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic as KafkaNewTopic

from broker_engine.errors import (
    Fenced,
    LogError,
    OutcomeUnknown,
    RecordTooLarge,
    Retriable,
    TransactionAborted,
    UnknownTopic,
    Unreachable,
)
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

K = TypeVar("K")
V = TypeVar("V")

_log = structlog.get_logger(__name__)

#: How long one question to the cluster may take; an absent broker is noticed after this.
ADMIN_TIMEOUT = 10.0
#: How long ``send`` waits for room in the client's queue (it empties at tens of thousands of
#: records a second).
QUEUE_FULL_TIMEOUT = 30.0
#: How long ``seek`` waits for a partition that is still being started (about 10 ms when the cluster
#: is well).
SEEK_TIMEOUT = 10.0
#: Pause between repeats of a call that Kafka answers with "not now".
RETRY_PAUSE = 0.005
#: Far above any topic's limit, so that the broker decides; far below its
#: ``socket.request.max.bytes`` (100 MiB), at which it would close the connection without an answer.
CLIENT_MAX_BYTES = 64 * 1024 * 1024
#: A member that has not read for this long leaves its group; above the 60 s that a commit may take.
MAX_POLL_INTERVAL_MS = 120_000

_COMMON: Mapping[str, Any] = {
    # Reconnecting is cheap beside an outage's cost; the default rises to 10 s.
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 1_000,
    "socket.nagle.disable": True,
    # The client's own lines go unformatted to stderr; what matters of them arrives through
    # error_cb.
    "log_level": 2,
}
_PRODUCER: Mapping[str, Any] = {
    "enable.idempotence": True,
    "acks": "all",
    "compression.type": "lz4",
    "message.max.bytes": CLIENT_MAX_BYTES,
    "queue.buffering.max.messages": 200_000,
}
_CONSUMER: Mapping[str, Any] = {
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    "allow.auto.create.topics": False,
    # Below 10 ms nothing is gained and idle polling costs more CPU.
    "fetch.wait.max.ms": 10,
    # The default postpones the next fetch by a whole second whenever the local queue was full.
    "fetch.queue.backoff.ms": 10,
    # Tells where a partition ends beyond its last visible record; `read` swallows these events.
    "enable.partition.eof": True,
    "partition.assignment.strategy": "cooperative-sticky",
    "max.poll.interval.ms": MAX_POLL_INTERVAL_MS,
}

#: Kafka's error codes with one meaning wherever they appear. Not listed: the flags of the error
#: itself decide.
ANSWERS: Mapping[int, type[LogError]] = {
    KafkaError._FENCED: Fenced,
    KafkaError.PRODUCER_FENCED: Fenced,
    KafkaError.INVALID_PRODUCER_EPOCH: Fenced,
    KafkaError.UNKNOWN_MEMBER_ID: Fenced,
    KafkaError.FENCED_INSTANCE_ID: Fenced,
    KafkaError.FENCED_MEMBER_EPOCH: Fenced,
    KafkaError.MSG_SIZE_TOO_LARGE: RecordTooLarge,
    KafkaError.RECORD_LIST_TOO_LARGE: RecordTooLarge,
    KafkaError.UNKNOWN_TOPIC_OR_PART: UnknownTopic,
    KafkaError._UNKNOWN_TOPIC: UnknownTopic,
    KafkaError._UNKNOWN_PARTITION: UnknownTopic,
    KafkaError._NOENT: UnknownTopic,  # what a query for offsets says when no partition has a leader
    KafkaError._TRANSPORT: Unreachable,
    KafkaError._ALL_BROKERS_DOWN: Unreachable,
    KafkaError._RESOLVE: Unreachable,
    KafkaError._AUTHENTICATION: Unreachable,
    KafkaError._SSL: Unreachable,
    # A rebalance is under way: read (so that it can finish), and repeat if the partition is still
    # held.
    KafkaError.REBALANCE_IN_PROGRESS: Retriable,
    KafkaError.ILLEGAL_GENERATION: Retriable,
    KafkaError.STALE_MEMBER_EPOCH: Retriable,
    KafkaError.UNSTABLE_OFFSET_COMMIT: Retriable,
    KafkaError._TIMED_OUT: Retriable,
    KafkaError.REQUEST_TIMED_OUT: Retriable,
    KafkaError._WAIT_COORD: Retriable,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS: Retriable,
    KafkaError.COORDINATOR_NOT_AVAILABLE: Retriable,
    KafkaError.NOT_COORDINATOR: Retriable,
    KafkaError.NOT_LEADER_FOR_PARTITION: Retriable,
    KafkaError.LEADER_NOT_AVAILABLE: Retriable,
    KafkaError.OFFSET_NOT_AVAILABLE: Retriable,
    KafkaError.CONCURRENT_TRANSACTIONS: Retriable,
}
#: Refusals by access control: neither fencing (although some come as fatal) nor worth a repeat.
REFUSALS: Mapping[int, str] = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "Topic: Read, Write and Describe",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "Group: Read",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "TransactionalId: Write and Describe",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "Cluster: the operation that failed",
}


def translate(error: KafkaError) -> LogError:
    """What a Kafka error means to the engine: Kafka's three answers, and the few causes worth a
    class of their own.

    Order matters: a member thrown out of its group reports "abort the transaction", but nothing of
    it may be repeated by this process, so it is fencing first.
    """
    text = f"{error.str()} ({error.name()})"
    if error.code() in REFUSALS:
        return LogError(f"Kafka refused by access control: {text}. Grant {REFUSALS[error.code()]}.")
    answer = ANSWERS.get(error.code())
    if error.fatal() or answer is Fenced:
        return Fenced(f"{text}. Another process took over; drop the producer and rebuild from the log.")
    if error.txn_requires_abort():
        return TransactionAborted(text)
    if answer is Unreachable:
        return Unreachable(f"{text}. {Unreachable()}")
    if answer is not None:
        return answer(text)
    return Retriable(text) if error.retriable() else LogError(text)


class ConfluentLog:
    """A Kafka cluster, through librdkafka.

    Args:
        bootstrap: ``host:port`` list.
        conf: further librdkafka settings, for example of security.
    """

    def __init__(self, bootstrap: str, *, conf: Mapping[str, str] = {}) -> None:
        self._conf: dict[str, Any] = {"bootstrap.servers": bootstrap, **_COMMON, **conf}

    def admin(self) -> ConfluentAdmin:
        return ConfluentAdmin(self._conf)

    def writer(self, *, client_id: str, linger_ms: int = 0) -> ConfluentWriter:
        return ConfluentWriter(self._conf, client_id=client_id, linger_ms=linger_ms)

    def transactional_writer(
        self, transactional_id: str, *, transaction_timeout_ms: int = 60_000
    ) -> ConfluentTransactionalWriter:
        return ConfluentTransactionalWriter(self._conf, transactional_id, transaction_timeout_ms)

    def reader(self, *, isolation: Isolation = Isolation.COMMITTED, headers: bool = False) -> ConfluentReader:
        return ConfluentReader(self._conf, isolation, headers)

    def group_reader(
        self,
        group: str,
        *,
        client_id: str,
        isolation: Isolation = Isolation.COMMITTED,
        session_timeout_ms: int = 6_000,
        headers: bool = False,
    ) -> ConfluentGroupReader:
        conf = {
            **self._conf,
            "group.id": group,
            "client.id": client_id,
            "session.timeout.ms": session_timeout_ms,
            "heartbeat.interval.ms": session_timeout_ms // 4,
        }
        return ConfluentGroupReader(conf, isolation, headers)


class _Health:
    """One client's connection: an outage is logged once, a refused login is raised once per report.

    librdkafka reports both only through ``error_cb``, which runs inside the client's calls.
    """

    def __init__(self, client: str) -> None:
        self._client = client
        self._is_down = False
        self._refusal: KafkaError | None = None

    def on_error(self, error: KafkaError) -> None:
        if error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL):
            self._refusal = error
        elif error.code() == KafkaError._ALL_BROKERS_DOWN and not self._is_down:
            self._is_down = True
            _log.warning("log.broker_unreachable", client=self._client, reason=error.str())

    def answered(self) -> None:
        if self._is_down:
            self._is_down = False
            _log.info("log.broker_back", client=self._client)

    def check(self) -> None:
        """Raise Unreachable when the brokers refuse this client's login or certificate."""
        if self._refusal is not None:
            refusal, self._refusal = self._refusal, None
            raise Unreachable(
                f"The broker refuses the connection: {refusal.str()} ({refusal.name()}). "
                "Correct the security settings (user, password, mechanism, certificates)."
            )


def _made(client: Callable[[dict[str, Any]], V], *settings: Mapping[str, Any], health: _Health) -> V:
    """A client from settings, later ones first in rank."""
    conf: dict[str, Any] = {"error_cb": health.on_error}
    for part in settings:
        conf |= part
    try:
        return client(conf)
    except KafkaException as error:  # a misspelt setting, a missing certificate file
        raise translate(error.args[0]) from error


def _delivery(error: KafkaError | None, message: Message) -> Delivery:
    offset = message.offset()
    return Delivery(
        topic=message.topic() or "",
        partition=message.partition() or 0,
        offset=-1 if error or offset is None else offset,
        timestamp_ms=-1 if error else message.timestamp()[1],
        error=translate(error) if error else None,
    )


def _to_kafka(offsets: Mapping[TopicPartition, CommittedOffset]) -> list[KafkaPartition]:
    return [
        KafkaPartition(tp.topic, tp.partition, committed.offset, committed.metadata)
        for tp, committed in offsets.items()
    ]


class ConfluentWriter:
    """ports.Writer."""

    def __init__(self, conf: Mapping[str, Any], *, client_id: str, linger_ms: int) -> None:
        self._health = _Health(client_id)
        own = {"client.id": client_id, "linger.ms": linger_ms}
        self._producer = _made(Producer, conf, _PRODUCER, own, health=self._health)
        self._closed = False

    def send(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = (),
        on_delivery: Callable[[Delivery], None] | None = None,
    ) -> None:
        self._health.check()
        report: Callable[[KafkaError | None, Message], None] | None = None
        if on_delivery is not None:
            deliver = on_delivery

            def report(error: KafkaError | None, message: Message) -> None:
                if error is None:
                    self._health.answered()
                deliver(_delivery(error, message))

        _produce(self._producer, topic, partition, key, value, headers, report)

    def poll(self, timeout: float = 0.0) -> int:
        served = self._producer.poll(timeout)
        self._health.check()
        return served

    def flush(self, timeout: float) -> int:
        left = self._producer.flush(timeout)
        self._health.check()
        return left

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._producer.flush(5.0)


def _produce(
    producer: Producer,
    topic: str,
    partition: int,
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
    on_delivery: Callable[[KafkaError | None, Message], None] | None,
) -> None:
    """Queue one record, waiting for room. (``produce_batch`` would be faster, but it silently drops
    headers.)
    """
    options: dict[str, Any] = {"headers": list(headers)} if headers else {}
    if on_delivery is not None:
        options["on_delivery"] = on_delivery
    deadline: float | None = None
    while True:
        try:
            producer.produce(topic, value=value, key=key, partition=partition, **options)
        except BufferError:
            now = time.monotonic()
            deadline = deadline or now + QUEUE_FULL_TIMEOUT
            if now >= deadline:
                raise Retriable("The client's queue stayed full: the broker takes no records.") from None
            producer.poll(0.05)
        except KafkaException as error:
            raise translate(error.args[0]) from error
        else:
            return


class ConfluentTransactionalWriter:
    """ports.TransactionalWriter."""

    def __init__(self, conf: Mapping[str, Any], transactional_id: str, transaction_timeout_ms: int) -> None:
        self.transactional_id = transactional_id
        self._health = _Health(transactional_id)
        self._failed_delivery: LogError | None = None
        own = {
            "client.id": transactional_id,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": transaction_timeout_ms,
            "linger.ms": 0,
            # The first request of a transaction meets CONCURRENT_TRANSACTIONS while the last
            # commit's markers are written; the default back-off of 100 ms makes every transaction
            # 105 ms instead of 7.
            "retry.backoff.ms": 2,
            "retry.backoff.max.ms": 20,
            # How long a record for a topic that the cluster does not know holds up its transaction.
            "topic.metadata.propagation.max.ms": 5_000,
            "delivery.report.only.error": True,
            "on_delivery": self._on_failed_delivery,
        }

        def make() -> Producer:
            return _made(Producer, conf, _PRODUCER, own, health=self._health)

        self._make_producer: Callable[[], Producer] = make
        self._producer: Producer | None = self._make_producer()

    def init(self, timeout: float = 30.0) -> None:
        deadline = time.monotonic() + timeout
        while True:
            # Sliced: a refused login shows only in error_cb, which runs between the slices.
            try:
                self._insist(self._live.init_transactions, min(2.0, timeout))
            except Retriable as error:
                self._live.poll(0)
                self._health.check()
                if time.monotonic() >= deadline:
                    raise Unreachable(f"{error}. {Unreachable()}") from error
            else:
                self._health.answered()
                return

    def begin(self) -> None:
        self._failed_delivery = None
        try:
            self._live.begin_transaction()
        except KafkaException as error:
            raise translate(error.args[0]) from error

    def send(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = (),
    ) -> None:
        try:
            _produce(self._live, topic, partition, key, value, headers, None)
        except (RecordTooLarge, Fenced, TransactionAborted):
            raise
        except LogError as error:  # among them _STATE: an earlier record already failed
            raise TransactionAborted(str(self._failed_delivery or error)) from error

    def commit(
        self,
        offsets: Mapping[TopicPartition, CommittedOffset],
        group: Group,
        timeout: float = 60.0,
    ) -> None:
        deadline = time.monotonic() + timeout
        positions = _to_kafka(offsets)
        try:
            self._insist(lambda rest: self._live.send_offsets_to_transaction(positions, group, rest), timeout)
        except Fenced:
            self._free_partitions()
            raise
        except Retriable as error:
            raise TransactionAborted(str(error)) from error
        try:
            self._insist(self._live.commit_transaction, deadline - time.monotonic())
        except Retriable as error:
            raise OutcomeUnknown(f"{OutcomeUnknown()} ({error})") from error
        except TransactionAborted as error:
            cause = self._reason()
            raise TransactionAborted(f"{cause or error}") from (cause or error)
        self._health.answered()

    def abort(self, timeout: float = 30.0) -> None:
        self._insist(self._live.abort_transaction, timeout)
        if self._failed_delivery is not None:
            # The refused record left a hole in the client's sequence numbers, which would abort the next transaction
            # too (OUT_OF_ORDER_SEQUENCE_NUMBER): go on with a new client.
            self._producer = self._make_producer()
            self.init(timeout)

    def close(self) -> None:
        # Not Producer.close(): that aborts an open transaction, which after a commit of unknown
        # outcome is wrong.
        self._producer = None

    @property
    def _live(self) -> Producer:
        if self._producer is None:
            raise Fenced("This writer is closed.")
        return self._producer

    def _insist(self, call: Callable[[float], object], timeout: float) -> None:
        """Repeat a call while Kafka says it may be repeated; at the deadline its Retriable error
        goes out.
        """
        deadline = time.monotonic() + timeout
        while True:
            try:
                call(max(deadline - time.monotonic(), 0.1))
            except KafkaException as error:
                answer = translate(error.args[0])
                is_retriable = isinstance(answer, Retriable | Unreachable)
                if not is_retriable:
                    raise answer from error
                if time.monotonic() >= deadline:
                    raise Retriable(str(answer)) from error
                time.sleep(RETRY_PAUSE)
            else:
                return

    def _reason(self) -> LogError | None:
        """Why the transaction failed: the first record that was not taken."""
        self._live.poll(0)
        return self._failed_delivery

    def _free_partitions(self) -> None:
        """End the open transaction of a member that left its group, so that no reader waits for
        it.
        """
        try:
            self._live.abort_transaction(5.0)
        except KafkaException as error:
            _log.debug("log.abort_failed", id=self.transactional_id, reason=str(error.args[0]))

    def _on_failed_delivery(self, error: KafkaError | None, message: Message) -> None:
        # Purged records are a consequence of the abort, not its reason.
        purged = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
        if error is not None and self._failed_delivery is None and error.code() not in purged:
            answer = translate(error)
            place = f"record for {message.topic()}-{message.partition()}"
            self._failed_delivery = type(answer)(f"{place}: {answer}")


class ConfluentReader:
    """ports.Reader, and what a group's reader shares with it."""

    def __init__(self, conf: Mapping[str, Any], isolation: Isolation, headers: bool) -> None:
        name = str(conf.get("client.id", "reader"))
        self._health = _Health(name)
        self._isolation = isolation
        own = {
            "isolation.level": isolation.value,
            # Required by the client even without a group; nothing is ever committed under it.
            "group.id": conf.get("group.id", "broker-engine-no-group"),
        }
        self._consumer = _made(Consumer, conf, _CONSUMER, own, health=self._health)
        self._headers = headers
        self._closed = False
        self._assigned: frozenset[TopicPartition] = frozenset()
        self._paused: set[TopicPartition] = set()
        #: Where reading starts: the answer to `position` until a record was read.
        self._starts: dict[TopicPartition, int] = {}
        #: Where the partition ended when it was last read to its end.
        self._ends: dict[TopicPartition, int] = {}
        #: Set by rebalance callbacks: records taken in the same call may belong to partitions just
        #: given away.
        self._moved = False
        self._failure: LogError | None = None

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        self._starts = {tp: self._resolved(tp, at) for tp, at in positions.items()}
        self._ends.clear()
        self._paused.clear()
        self._assigned = frozenset(self._starts)
        try:
            self._consumer.assign([KafkaPartition(tp.topic, tp.partition, at) for tp, at in self._starts.items()])
        except KafkaException as error:
            raise translate(error.args[0]) from error

    def read(self, max_records: int, timeout: float) -> list[Record]:
        self._health.check()
        self._raise_failure()
        deadline = time.monotonic() + timeout
        try:
            while True:
                # consume(n, t) alone would wait for n records or t seconds, whichever is later to
                # come.
                first = self._consumer.poll(max(deadline - time.monotonic(), 0.0))
                if first is None:
                    return []
                messages = [first]
                if max_records > 1:
                    messages += self._consumer.consume(max_records - 1, 0)
                records = self._records(messages)
                if records:
                    return records
                self._raise_failure()
        except KafkaException as error:
            raise translate(error.args[0]) from error

    def position(self, tp: TopicPartition) -> int:
        where = self._consumer.position([KafkaPartition(tp.topic, tp.partition)])[0].offset
        if where < 0:  # nothing was read since the assignment or the last seek
            where = self._starts[tp] if tp in self._starts else self._committed_or_begin(tp)
        return int(max(where, self._ends.get(tp, 0)))

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        wanted = self._assigned.intersection(partitions) - self._paused
        if wanted:
            # Remembered, because the client forgets a position that no record has confirmed.
            for tp in wanted:
                self._starts[tp] = self.position(tp)
            self._paused |= wanted
            self._consumer.pause([KafkaPartition(*tp) for tp in wanted])

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in self._paused.intersection(partitions):
            where = self.position(tp)
            self._paused.discard(tp)
            self._consumer.resume([KafkaPartition(*tp)])
            # A resumed partition is otherwise fetched only when the broker thread next wakes: up to
            # 1 s (measured); with the seek after it, 2 ms.
            self.seek(tp, where)

    def seek(self, tp: TopicPartition, offset: int) -> None:
        offset = self._resolved(tp, offset)
        self._starts[tp] = offset
        self._ends.pop(tp, None)
        deadline = time.monotonic() + SEEK_TIMEOUT
        while True:
            try:
                self._consumer.seek(KafkaPartition(tp.topic, tp.partition, offset))
            except KafkaException as error:
                # _STATE: a new partition whose start (the query for its committed offset) is still
                # under way.
                starting = error.args[0].code() in (KafkaError._STATE, KafkaError._PREV_IN_PROGRESS)
                if not starting:
                    raise translate(error.args[0]) from error
                if time.monotonic() >= deadline:
                    raise Retriable(f"{tp} did not start within {SEEK_TIMEOUT} s") from error
                time.sleep(RETRY_PAUSE / 5)
            else:
                return

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._consumer.close()

    def _records(self, messages: Sequence[Message]) -> list[Record]:
        """The records among the messages; ends of partitions are noted, errors kept for the next
        call.
        """
        self._health.answered()
        records = []
        with_headers = self._headers
        for m in messages:
            error = m.error()
            if error is not None:
                self._note(error, m)
                continue
            headers = _headers(m) if with_headers else ()
            records.append(
                Record(
                    m.topic(),  # type: ignore[arg-type]  # never None on a record without error
                    m.partition(),  # type: ignore[arg-type]  # as above
                    m.offset(),  # type: ignore[arg-type]  # as above
                    m.timestamp()[1],
                    m.key(),
                    m.value(),
                    headers,
                )
            )
        if self._moved:
            self._moved = False
            held = self._assigned - self._paused
            records = [r for r in records if TopicPartition(r.topic, r.partition) in held]
        return records

    def _raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _note(self, error: KafkaError, message: Message) -> None:
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            tp = TopicPartition(message.topic() or "", message.partition() or 0)
            self._ends[tp] = message.offset() or 0
            return
        # Outages are the client's to retry; a member thrown out hears of it through `lost`; a
        # reader without a group needs no rights on one.
        harmless = {
            KafkaError._MAX_POLL_EXCEEDED,
            KafkaError._ALL_BROKERS_DOWN,
            KafkaError._TRANSPORT,
            KafkaError._TIMED_OUT,
        }
        if not isinstance(self, ConfluentGroupReader):
            harmless.add(KafkaError.GROUP_AUTHORIZATION_FAILED)
        if code not in harmless and not error.retriable():
            self._failure = translate(error)

    def _resolved(self, tp: TopicPartition, offset: int) -> int:
        """A real offset for BEGINNING and END (as this reader's isolation sees it)."""
        if offset not in (BEGINNING, END):
            return offset
        try:
            first, last = self._consumer.get_watermark_offsets(KafkaPartition(*tp), ADMIN_TIMEOUT)
        except KafkaException as error:
            raise translate(error.args[0]) from error
        return int(first if offset == BEGINNING else last)

    def _committed_or_begin(self, tp: TopicPartition) -> int:
        try:
            found = self._consumer.committed([KafkaPartition(*tp)], ADMIN_TIMEOUT)[0]
        except KafkaException as error:
            raise translate(error.args[0]) from error
        if found.error is not None:
            raise translate(found.error)
        start = int(found.offset) if found.offset >= 0 else self._resolved(tp, BEGINNING)
        self._starts[tp] = start
        return start


class ConfluentGroupReader(ConfluentReader):
    """ports.GroupReader."""

    _listener: RebalanceListener | None = None

    def subscribe(self, topic: str, listener: RebalanceListener | None = None) -> None:
        self._listener = listener

        def on_assign(consumer: Consumer, partitions: list[KafkaPartition]) -> None:
            added = _from_kafka(partitions)
            self._change(self._assigned.union(added), added)
            consumer.incremental_assign(partitions)
            if added and self._listener is not None:
                consumer.pause(partitions)
                self._paused.update(added)
                self._listener.assigned(added)

        def on_revoke(consumer: Consumer, partitions: list[KafkaPartition]) -> None:
            removed = _from_kafka(partitions)
            if removed and self._listener is not None:
                self._listener.revoked(removed)
            self._change(self._assigned.difference(removed), removed)
            consumer.incremental_unassign(partitions)

        def on_lost(consumer: Consumer, partitions: list[KafkaPartition]) -> None:
            removed = _from_kafka(partitions)
            self._change(self._assigned.difference(removed), removed)
            if removed and self._listener is not None:
                self._listener.lost(removed)
            consumer.incremental_unassign(partitions)

        try:
            self._consumer.subscribe([topic], on_assign=on_assign, on_revoke=on_revoke, on_lost=on_lost)
        except KafkaException as error:
            raise translate(error.args[0]) from error

    def close(self) -> None:
        # The client's own close may have left the group before it tells of the revocation; a release committed in
        # that call must come before.
        listener, self._listener = self._listener, None
        try:
            if not self._closed and self._assigned and listener is not None:
                listener.revoked(sorted(self._assigned))
        finally:
            super().close()

    def assignment(self) -> frozenset[TopicPartition]:
        return self._assigned

    def group(self) -> Group:
        # Without this check a member that has left would hand out a membership without a name, and
        # the broker takes offsets of nameless members unchecked: the fencing of the transaction
        # would be gone.
        if not self._consumer.memberid():
            raise Fenced("This member is not in its group any more; rebuild from the log.")
        membership: Group = self._consumer.consumer_group_metadata()
        return membership

    def commit(self, offsets: Mapping[TopicPartition, CommittedOffset], *, asynchronous: bool = False) -> None:
        self.group()
        positions = _to_kafka(offsets)
        try:
            if asynchronous:
                self._consumer.commit(offsets=positions, asynchronous=True)
                return
            committed = self._consumer.commit(offsets=positions, asynchronous=False)
        except KafkaException as error:
            raise translate(error.args[0]) from error
        for partition in committed or ():
            if partition.error is not None:
                raise translate(partition.error)

    def _change(self, assigned: frozenset[TopicPartition], changed: Sequence[TopicPartition]) -> None:
        """The assignment is now another one: nothing known of the changed partitions holds any
        longer.
        """
        self._assigned = assigned
        self._moved = True
        self._paused.difference_update(changed)
        for tp in changed:
            self._starts.pop(tp, None)
            self._ends.pop(tp, None)


def _headers(message: Message) -> tuple[tuple[str, bytes], ...]:
    found: Any = message.headers()  # declared as every form `produce` takes; read, it is this one
    return tuple((name, value or b"") for name, value in found or ())


def _from_kafka(partitions: Iterable[KafkaPartition]) -> list[TopicPartition]:
    return [TopicPartition(p.topic, p.partition) for p in partitions]


# The client declares no types for these two.
_LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]


class ConfluentAdmin:
    """ports.Admin. Keeps its client until closed: a collected one fails its pending answers, or
    never answers.
    """

    def __init__(self, conf: Mapping[str, Any]) -> None:
        self._health = _Health("admin")
        # The default of 100 ms is slept before each repeat, for example after "coordinator is
        # loading".
        own = {"client.id": "admin", "retry.backoff.ms": 10}
        self._client = _made(AdminClient, conf, own, health=self._health)

    def topics(self) -> dict[str, int]:
        found = self._bounded(lambda: self._client.list_topics(timeout=ADMIN_TIMEOUT))
        return {name: len(topic.partitions) for name, topic in found.topics.items()}

    def configs(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
        if not resources:
            return {}
        found = self._answers(lambda: self._client.describe_configs(resources, request_timeout=ADMIN_TIMEOUT))
        return {
            resource.name: {name: entry.value or "" for name, entry in entries.items()}
            for resource, entries in found.items()
        }

    def create(self, topics: Iterable[NewTopic]) -> None:
        wanted = [KafkaNewTopic(t.name, num_partitions=t.partitions, config=dict(t.config)) for t in topics]
        if wanted:
            self._answers(
                lambda: self._client.create_topics(wanted, request_timeout=ADMIN_TIMEOUT),
                ignore=KafkaError.TOPIC_ALREADY_EXISTS,
            )
            names = {t.topic for t in wanted}
            self._until(lambda: names <= self._ready_topics(), "the new topics to appear")

    def delete(self, topics: Iterable[str]) -> None:
        names = list(topics)
        if names:
            self._answers(
                lambda: self._client.delete_topics(names, request_timeout=ADMIN_TIMEOUT),
                ignore=KafkaError.UNKNOWN_TOPIC_OR_PART,
            )
            self._until(lambda: self._ready_topics().isdisjoint(names), "the deleted topics to go")

    def end_offsets(self, partitions: Iterable[TopicPartition], isolation: Isolation) -> dict[TopicPartition, int]:
        return self._offsets(partitions, _LATEST, isolation)

    def begin_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._offsets(partitions, _EARLIEST, Isolation.UNCOMMITTED)

    def committed(
        self, group: str, partitions: Iterable[TopicPartition], *, require_stable: bool
    ) -> dict[TopicPartition, CommittedOffset | None]:
        request = ConsumerGroupTopicPartitions(group, [KafkaPartition(*tp) for tp in partitions])
        if not request.topic_partitions:
            return {}
        found = self._answers(
            lambda: self._client.list_consumer_group_offsets(
                [request], require_stable=require_stable, request_timeout=ADMIN_TIMEOUT
            )
        )[group]
        offsets: dict[TopicPartition, CommittedOffset | None] = {}
        for p in found.topic_partitions:
            if p.error is not None:
                raise translate(p.error)
            known = p.offset != OFFSET_INVALID
            offsets[TopicPartition(p.topic, p.partition)] = (
                CommittedOffset(p.offset, p.metadata or "") if known else None
            )
        return offsets

    def members(self, group: str) -> list[Member]:
        found = self._answers(
            lambda: self._client.describe_consumer_groups([group], request_timeout=ADMIN_TIMEOUT),
            ignore=KafkaError.GROUP_ID_NOT_FOUND,
        )
        return [
            Member(
                member.client_id,
                tuple(_from_kafka(member.assignment.topic_partitions)) if member.assignment else (),
            )
            for description in found.values()
            for member in description.members
        ]

    def close(self) -> None:
        """Nothing to do: the client ends with this object, when no answer is pending."""

    def _offsets(
        self, partitions: Iterable[TopicPartition], spec: OffsetSpec, isolation: Isolation
    ) -> dict[TopicPartition, int]:
        wanted = {KafkaPartition(tp.topic, tp.partition): spec for tp in partitions}
        if not wanted:
            return {}
        level = {
            Isolation.COMMITTED: IsolationLevel.READ_COMMITTED,
            Isolation.UNCOMMITTED: IsolationLevel.READ_UNCOMMITTED,
        }[isolation]
        found = self._answers(
            lambda: self._client.list_offsets(wanted, isolation_level=level, request_timeout=ADMIN_TIMEOUT)
        )
        return {TopicPartition(p.topic, p.partition): int(at.offset) for p, at in found.items()}

    def _answers(self, ask: Callable[[], Mapping[K, Future[Any]]], *, ignore: int | None = None) -> dict[K, Any]:
        """All answers to one request; those with the error ``ignore`` are left out."""

        def collect() -> dict[K, Any]:
            answers = {}
            for key, future in ask().items():
                try:
                    answers[key] = future.result(ADMIN_TIMEOUT + 1.0)
                except KafkaException as error:
                    if error.args[0].code() != ignore:
                        raise
            return answers

        return self._bounded(collect)

    def _bounded(self, ask: Callable[[], V]) -> V:
        """Ask, and ask again while Kafka says so, for ADMIN_TIMEOUT in all."""
        deadline = time.monotonic() + ADMIN_TIMEOUT
        while True:
            try:
                answer = ask()
            except (KafkaException, TimeoutError) as error:
                self._client.poll(0)  # runs error_cb, the only place where a refused login shows
                self._health.check()
                meaning = translate(error.args[0]) if error.args else Retriable("no answer")
                if not isinstance(meaning, Retriable):
                    raise meaning from error
                if time.monotonic() >= deadline:
                    raise Unreachable(f"{meaning}. {Unreachable()}") from error
                time.sleep(RETRY_PAUSE)
            else:
                self._health.answered()
                return answer

    def _ready_topics(self) -> set[str]:
        """Topics whose partitions all have a leader."""
        found = self._bounded(lambda: self._client.list_topics(timeout=ADMIN_TIMEOUT))
        return {
            name
            for name, topic in found.topics.items()
            if topic.partitions and all(p.leader >= 0 for p in topic.partitions.values())
        }

    def _until(self, is_done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + ADMIN_TIMEOUT
        while not is_done():
            if time.monotonic() >= deadline:
                raise Retriable(f"Waited {ADMIN_TIMEOUT} s for {what}.")
            time.sleep(0.02)
