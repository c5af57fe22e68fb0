"""What all clients of a real cluster share: their settings, and what Kafka's errors mean.

Settings that matter are passed explicitly, with the measurement that chose them; a user's own
settings (security, addresses) may add to them but not change what the engine's promises rest on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import structlog
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from broker_engine.errors import (
    Fenced,
    LogError,
    RecordTooLarge,
    Retriable,
    TransactionAborted,
    UnknownTopic,
    Unreachable,
)
from broker_engine.log.ports import CommittedOffset, TopicPartition

V = TypeVar("V")

_log = structlog.get_logger(__name__)

#: How long one question to the cluster may take; an absent broker is noticed after this.
ADMIN_TIMEOUT = 10.0
#: One attempt of it: after this a refused login is noticed.
ADMIN_ATTEMPT = 5.0
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

COMMON: Mapping[str, Any] = {
    # Reconnecting is cheap beside an outage's cost; the default rises to 10 s.
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 1_000,
    "socket.nagle.disable": True,
    # The client's own lines go unformatted to stderr; what matters of them arrives through
    # error_cb.
    "log_level": 2,
}
PRODUCER: Mapping[str, Any] = {
    "enable.idempotence": True,
    "acks": "all",
    "compression.type": "lz4",
    "message.max.bytes": CLIENT_MAX_BYTES,
    "queue.buffering.max.messages": 200_000,
}
CONSUMER: Mapping[str, Any] = {
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    "allow.auto.create.topics": False,
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
    # The client or the broker has not heard of the newest leader yet: for a moment after a broker has come back.
    KafkaError.UNKNOWN_LEADER_EPOCH: Retriable,
    KafkaError.FENCED_LEADER_EPOCH: Retriable,
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


class Health:
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


def made(client: Callable[[dict[str, Any]], V], *settings: Mapping[str, Any], health: Health) -> V:
    """A client from settings, later ones first in rank."""
    conf: dict[str, Any] = {"error_cb": health.on_error}
    for part in settings:
        conf |= part
    try:
        return client(conf)
    except KafkaException as error:  # a misspelt setting, a missing certificate file
        raise translate(error.args[0]) from error


def to_kafka(offsets: Mapping[TopicPartition, CommittedOffset]) -> list[KafkaPartition]:
    return [
        KafkaPartition(tp.topic, tp.partition, committed.offset, committed.metadata)
        for tp, committed in offsets.items()
    ]


def from_kafka(partitions: Iterable[KafkaPartition]) -> list[TopicPartition]:
    return [TopicPartition(p.topic, p.partition) for p in partitions]
