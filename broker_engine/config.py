"""Settings, read once at the edge: environment (``BROKER_ENGINE_…``, ``__`` between levels), then command-line flags.

Nothing below the command line reads the environment. Secrets may come from a file: ``…_FILE``.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from broker_engine.model.limits import MAX_PAYLOAD_BYTES
from broker_engine.topics import DEFAULT_PARTITIONS

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
_SECRET = re.compile(r"password|secret|token|key", re.IGNORECASE)


class KafkaSettings(BaseModel):
    """How to reach the cluster; ``conf`` goes to librdkafka (``BROKER_ENGINE_KAFKA__CONF__sasl.mechanism``)."""

    bootstrap_servers: str = DEFAULT_BOOTSTRAP
    conf: dict[str, str] = Field(default_factory=dict)


class Settings(BaseSettings):
    """Every setting of every role, with its default and unit."""

    model_config = SettingsConfigDict(env_prefix="BROKER_ENGINE_", env_nested_delimiter="__", extra="ignore")

    kafka: KafkaSettings = Field(default_factory=KafkaSettings)
    #: First part of every topic name.
    namespace: str = "engine"
    #: Signs commands and hand-outs; None leaves authority to Kafka's ACLs (development).
    namespace_key: SecretStr | None = None
    #: P; fixed when the namespace is created.
    partitions: int = DEFAULT_PARTITIONS
    #: Which process of the group this is, stable over restarts (a StatefulSet's ordinal): names its transactional id.
    slot: str = "0"
    #: Where local caches live; losing it loses nothing.
    data_dir: Path = Path(".broker-engine")
    session_timeout_ms: int = 6_000
    transaction_timeout_ms: int = 60_000
    #: Commands per transaction.
    batch_records: int = 1_000
    #: Write only the last state of a task per transaction: a record less per short task. Events still tell every
    #: transition; whoever follows the states misses those in between.
    merge_task_states: bool = False
    #: How long finished workflows stay readable.
    retention_ms: int = 7 * 24 * 60 * 60 * 1_000
    max_payload_bytes: int = MAX_PAYLOAD_BYTES
    #: Partitions of a schedule topic (the most workers of one queue that can share it).
    queue_partitions: int = 8
    #: Environment variables that `${NAME}` may show (D19).
    visible_environment: tuple[str, ...] = ()

    @property
    def key(self) -> str | None:
        return self.namespace_key.get_secret_value() if self.namespace_key else None

    def environment(self) -> dict[str, str]:
        return {name: os.environ[name] for name in self.visible_environment if name in os.environ}

    def shown(self) -> dict[str, Any]:
        """The settings with secrets hidden, for logs and `config show`."""
        values = self.model_dump(mode="json")
        conf = values["kafka"]["conf"]
        values["kafka"]["conf"] = {name: "***" if _SECRET.search(name) else value for name, value in conf.items()}
        return values
