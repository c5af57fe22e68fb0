"""Reaching the cluster from a program: one line, with the same settings as the command line."""

from __future__ import annotations

from broker_engine.config import Settings
from broker_engine.log.confluent import ConfluentLog
from broker_engine.log.ports import Log


def connect(bootstrap: str | None = None) -> Log:
    """The cluster at ``host:port``, else the one that ``BROKER_ENGINE_KAFKA__BOOTSTRAP_SERVERS`` names, else local.

    Security and other client settings come from ``BROKER_ENGINE_KAFKA__CONF__…``.
    """
    kafka = Settings().kafka
    return ConfluentLog(bootstrap or kafka.bootstrap_servers, conf=kafka.conf)
