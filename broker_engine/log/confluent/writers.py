"""Producers: one that is merely idempotent, and one with transactions."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from broker_engine.errors import (
    Fenced,
    LogError,
    OutcomeUnknown,
    RecordTooLarge,
    Retriable,
    TransactionAborted,
    Unreachable,
)
from broker_engine.log.confluent.client import (
    PRODUCER,
    QUEUE_FULL_TIMEOUT,
    RETRY_PAUSE,
    Health,
    made,
    to_kafka,
    translate,
)
from broker_engine.log.ports import CommittedOffset, Delivery, Group, Headers, TopicPartition

_log = structlog.get_logger(__name__)


def _delivery(error: KafkaError | None, message: Message) -> Delivery:
    offset = message.offset()
    return Delivery(
        topic=message.topic() or "",
        partition=message.partition() or 0,
        offset=-1 if error or offset is None else offset,
        timestamp_ms=-1 if error else message.timestamp()[1],
        error=translate(error) if error else None,
    )


class ConfluentWriter:
    """ports.Writer."""

    def __init__(self, conf: Mapping[str, Any], *, client_id: str, linger_ms: int) -> None:
        self._health = Health(client_id)
        own = {"client.id": client_id, "linger.ms": linger_ms}
        self._producer = made(Producer, conf, PRODUCER, own, health=self._health)
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
        self._health = Health(transactional_id)
        self._failed_delivery: LogError | None = None
        self._offsets_sent = False
        own = {
            "client.id": transactional_id,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": transaction_timeout_ms,
            # A commit sends what waits at once; until then records of a partition gather instead of going out as one
            # request each (a turn writes to some fifty partitions).
            "linger.ms": 5,
            # The first request of a transaction meets CONCURRENT_TRANSACTIONS while the last
            # commit's markers are written; the default back-off of 100 ms makes every transaction
            # 105 ms instead of 7.
            "retry.backoff.ms": 2,
            "retry.backoff.max.ms": 20,
            # The client waits this long for one answer, whatever time the caller gave it (the default is 60 s).
            "socket.timeout.ms": 15_000,
            # How long a record for a topic that the cluster does not know holds up its transaction.
            "topic.metadata.propagation.max.ms": 5_000,
            "delivery.report.only.error": True,
            "on_delivery": self._on_failed_delivery,
        }

        def make() -> Producer:
            return made(Producer, conf, PRODUCER, own, health=self._health)

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

    def begin(
        self, offsets: Mapping[TopicPartition, CommittedOffset] | None = None, group: Group | None = None
    ) -> None:
        self._failed_delivery = None
        self._offsets_sent = False
        try:
            self._live.begin_transaction()
        except KafkaException as error:
            raise translate(error.args[0]) from error
        if offsets is not None and group is not None:
            self._send_offsets(offsets, group, 60.0)

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
        if not self._offsets_sent:
            self._send_offsets(offsets, group, timeout)
        try:
            self._insist(self._live.commit_transaction, deadline - time.monotonic())
        except Retriable as error:
            raise OutcomeUnknown(f"{OutcomeUnknown()} ({error})") from error
        except TransactionAborted as error:
            cause = self._reason()
            raise TransactionAborted(f"{cause or error}") from (cause or error)
        self._health.answered()

    def _send_offsets(self, offsets: Mapping[TopicPartition, CommittedOffset], group: Group, timeout: float) -> None:
        positions = to_kafka(offsets)
        try:
            self._insist(lambda rest: self._live.send_offsets_to_transaction(positions, group, rest), timeout)
        except Fenced:
            self._free_partitions()
            raise
        except Retriable as error:
            raise TransactionAborted(str(error)) from error
        self._offsets_sent = True

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
