"""The log on a real cluster: the only package that imports confluent_kafka, and where its untyped
values end.

It knows Kafka's client and nothing of the engine: no topic name, no record format, no retry beyond
"the same call again". What Kafka's errors mean is said once, in ``client.translate``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import murmur2

from broker_engine.log.confluent.admin import ConfluentAdmin
from broker_engine.log.confluent.client import COMMON, translate
from broker_engine.log.confluent.readers import ConfluentGroupReader, ConfluentReader
from broker_engine.log.confluent.writers import ConfluentTransactionalWriter, ConfluentWriter
from broker_engine.log.ports import PROMPT_MS, Isolation

__all__ = [
    "ConfluentAdmin",
    "ConfluentGroupReader",
    "ConfluentLog",
    "ConfluentReader",
    "ConfluentTransactionalWriter",
    "ConfluentWriter",
    "translate",
]


class ConfluentLog:
    """A Kafka cluster, through librdkafka.

    Args:
        bootstrap: ``host:port`` list.
        conf: further librdkafka settings, for example of security.
    """

    def __init__(self, bootstrap: str, *, conf: Mapping[str, str] = {}) -> None:
        self._conf: dict[str, Any] = {"bootstrap.servers": bootstrap, **COMMON, **conf}

    def partition_of(self, key: str, partitions: int) -> int:
        partition: int = murmur2(key.encode(), partitions)
        return partition

    def admin(self) -> ConfluentAdmin:
        return ConfluentAdmin(self._conf)

    def writer(self, *, client_id: str, linger_ms: int = 0) -> ConfluentWriter:
        return ConfluentWriter(self._conf, client_id=client_id, linger_ms=linger_ms)

    def transactional_writer(
        self, transactional_id: str, *, transaction_timeout_ms: int = 60_000
    ) -> ConfluentTransactionalWriter:
        return ConfluentTransactionalWriter(self._conf, transactional_id, transaction_timeout_ms)

    def reader(
        self, *, isolation: Isolation = Isolation.COMMITTED, headers: bool = False, fetch_wait_ms: int = PROMPT_MS
    ) -> ConfluentReader:
        return ConfluentReader({**self._conf, "fetch.wait.max.ms": fetch_wait_ms}, isolation, headers)

    def group_reader(
        self,
        group: str,
        *,
        client_id: str,
        isolation: Isolation = Isolation.COMMITTED,
        session_timeout_ms: int = 6_000,
        headers: bool = False,
        fetch_wait_ms: int = PROMPT_MS,
    ) -> ConfluentGroupReader:
        conf = {
            **self._conf,
            "group.id": group,
            "client.id": client_id,
            "session.timeout.ms": session_timeout_ms,
            "heartbeat.interval.ms": session_timeout_ms // 4,
            "fetch.wait.max.ms": fetch_wait_ms,
        }
        return ConfluentGroupReader(conf, isolation, headers)
