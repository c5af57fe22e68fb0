"""KAFKA_PUBLISH and EVENT: a record on a topic of this cluster, or of another one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import orjson

from broker_engine.errors import LogError
from broker_engine.log.ports import Admin, Delivery, Log, Writer
from broker_engine.topics import murmur2
from broker_engine.worker.context import TaskContext
from broker_engine.worker.outcomes import TaskFailed, TaskFailedForGood

#: How long the brokers may take to acknowledge a record (Conductor's requestTimeoutMs).
DEFAULT_TIMEOUT_MS = 10_000
MAX_TIMEOUT_MS = 10 * 60 * 1_000
#: Clusters that a worker keeps connections to.
MAX_CLUSTERS = 16
#: Key serializers by the end of their Java class's name.
SERIALIZERS: Mapping[str, Callable[[Any], bytes]] = {
    "StringSerializer": lambda key: str(key).encode(),
    "LongSerializer": lambda key: int(key).to_bytes(8, "big", signed=True),
    "IntegerSerializer": lambda key: int(key).to_bytes(4, "big", signed=True),
}


class _Cluster:
    """A producer and what it knows of the topics."""

    def __init__(self, log: Log, client_id: str) -> None:
        self.log = log
        self._admin: Admin = log.admin()
        self._writer: Writer = log.writer(client_id=client_id)
        self._partitions: dict[str, int] = {}
        #: Records without a key go round the partitions.
        self._keyless = count()
        self._lock = threading.Lock()

    def partition(self, topic: str, key: bytes | None) -> int:
        partitions = self._partitions.get(topic)
        if not partitions:
            self._partitions = self._admin.topics()
            partitions = self._partitions.get(topic)
        if not partitions:
            raise TaskFailed(f"there is no topic {topic} on this cluster: create it first", code="UNKNOWN_TOPIC")
        number = next(self._keyless) if key is None else murmur2(key) & 0x7FFF_FFFF  # as Java's client does
        return number % partitions

    def send(
        self, topic: str, key: bytes | None, value: bytes, headers: list[tuple[str, bytes]], timeout_ms: int
    ) -> Delivery:
        """Send one record and wait for the brokers' answer."""
        partition = self.partition(topic, key)
        found: list[Delivery] = []
        with self._lock:
            self._writer.send(topic, partition, key, value, headers, on_delivery=found.append)
            self._writer.flush(timeout_ms / 1_000)
        if not found:
            raise TaskFailed(f"the brokers did not acknowledge the record within {timeout_ms} ms", code="KAFKA_TIMEOUT")
        delivery = found[0]
        if delivery.error is not None:
            raise TaskFailed(f"the record was not written to {topic}: {delivery.error}", code="KAFKA_ERROR")
        return delivery

    def close(self) -> None:
        self._writer.close()
        self._admin.close()


class Publishing:
    """What one system worker publishes with.

    Args:
        log: the engine's own cluster, used where the input names none.
        connect: makes the log of another cluster from its bootstrap servers.
        client_id: names the producer to the brokers.
    """

    def __init__(self, log: Log, connect: Callable[[str], Log], *, client_id: str) -> None:
        self._own, self._connect, self._client_id = log, connect, client_id
        self._clusters: dict[str | None, _Cluster] = {}
        self._lock = threading.Lock()

    def kafka_publish(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Write ``kafka_request.value`` to ``kafka_request.topic``.

        Args:
            data: ``kafka_request`` with ``topic``, ``value`` (written as JSON), and optionally ``bootStrapServers``
                (this cluster), ``key``, ``keySerializer`` (String, Long or Integer), ``headers``,
                ``requestTimeoutMs``.

        Returns:
            Where the record is: ``topic``, ``partition``, ``offset``, ``timestamp``.

        Raises:
            TaskFailedForGood: KAFKA_REQUEST, a field is missing or wrong.
            TaskFailed: UNKNOWN_TOPIC, KAFKA_TIMEOUT, KAFKA_ERROR.
        """
        request = data.get("kafka_request", data)
        if not isinstance(request, Mapping):
            raise TaskFailedForGood("kafka_request must be an object", code="KAFKA_REQUEST")
        topic = request.get("topic")
        if not isinstance(topic, str) or not topic:
            raise TaskFailedForGood("kafka_request.topic is missing: name the topic", code="KAFKA_REQUEST")
        if request.get("value") is None:
            raise TaskFailedForGood("kafka_request.value is missing: give what is to be written", code="KAFKA_REQUEST")
        headers = request.get("headers") or {}
        if not isinstance(headers, Mapping):
            raise TaskFailedForGood("kafka_request.headers must be an object", code="KAFKA_REQUEST")
        return self._publish(
            request.get("bootStrapServers") or None,
            topic,
            _key(request),
            orjson.dumps(request["value"]),
            [(str(name), str(value).encode()) for name, value in headers.items()],
            _timeout_ms(request),
        )

    def event(self, data: Mapping[str, Any], context: TaskContext) -> dict[str, Any]:
        """Write the input, with the workflow's own facts, to the sink ``kafka:<topic>``.

        Raises:
            TaskFailedForGood: UNKNOWN_SINK.
        """
        sink = data.get("sink")
        kind, _, topic = sink.partition(":") if isinstance(sink, str) else ("", "", "")
        if kind != "kafka" or not topic:
            raise TaskFailedForGood(f"sink {sink!r} is not known: give kafka:<topic>", code="UNKNOWN_SINK")
        payload = {name: value for name, value in data.items() if name != "sink"} | {
            "workflowInstanceId": context.workflow_id,
        }
        key = context.workflow_id.encode()
        record = self._publish(None, topic, key, orjson.dumps(payload), [], DEFAULT_TIMEOUT_MS)
        return {**payload, "event_produced": sink, **record}

    def _publish(
        self,
        bootstrap: str | None,
        topic: str,
        key: bytes | None,
        value: bytes,
        headers: list[tuple[str, bytes]],
        timeout_ms: int,
    ) -> dict[str, Any]:
        try:
            delivery = self._cluster(bootstrap).send(topic, key, value, headers, timeout_ms)
        except LogError as error:
            raise TaskFailed(f"the record was not written to {topic}: {error}", code="KAFKA_ERROR") from error
        return {
            "topic": topic,
            "partition": delivery.partition,
            "offset": delivery.offset,
            "timestamp": delivery.timestamp_ms,
        }

    def _cluster(self, bootstrap: str | None) -> _Cluster:
        with self._lock:
            cluster = self._clusters.get(bootstrap)
            if cluster is None:
                if len(self._clusters) >= MAX_CLUSTERS:
                    self._clusters.pop(next(name for name in self._clusters if name is not None)).close()
                log = self._own if bootstrap is None else self._connect(bootstrap)
                cluster = self._clusters[bootstrap] = _Cluster(log, self._client_id)
            return cluster

    def close(self) -> None:
        with self._lock:
            for cluster in self._clusters.values():
                cluster.close()
            self._clusters.clear()


def _key(request: Mapping[str, Any]) -> bytes | None:
    key = request.get("key")
    if key is None:
        return None
    name = str(request.get("keySerializer") or "StringSerializer").rpartition(".")[2]
    serialize = SERIALIZERS.get(name) or SERIALIZERS.get(f"{name.removesuffix('Serializer').capitalize()}Serializer")
    if serialize is None:
        known = ", ".join(SERIALIZERS)
        raise TaskFailedForGood(f"keySerializer {name} is not one of {known}", code="KAFKA_REQUEST")
    try:
        return serialize(key)
    except (ValueError, TypeError, OverflowError) as error:
        raise TaskFailedForGood(f"key {key!r} does not fit {name}: {error}", code="KAFKA_REQUEST") from error


def _timeout_ms(request: Mapping[str, Any]) -> int:
    given = request.get("requestTimeoutMs")
    if given is None:
        return DEFAULT_TIMEOUT_MS
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= MAX_TIMEOUT_MS:
        raise TaskFailedForGood(
            f"requestTimeoutMs must be 1 to {MAX_TIMEOUT_MS} milliseconds, not {given!r}", code="KAFKA_REQUEST"
        )
    return given
