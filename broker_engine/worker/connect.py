"""Reaching the cluster from a program: one line, with the same settings as the command line."""

from __future__ import annotations

import logging
import sys

import structlog

from broker_engine.config import Settings
from broker_engine.log.confluent import ConfluentLog
from broker_engine.log.ports import Log


def connect(bootstrap: str | None = None) -> Log:
    """The cluster at ``host:port``, else the one that ``BROKER_ENGINE_KAFKA__BOOTSTRAP_SERVERS`` names, else local.

    Security and other client settings come from ``BROKER_ENGINE_KAFKA__CONF__…``. A program that has not configured
    structlog gets warnings only, on standard error (structlog's default would fill its standard output).
    """
    if not structlog.is_configured():
        structlog.configure(
            wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
            logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        )
    kafka = Settings().kafka
    return ConfluentLog(bootstrap or kafka.bootstrap_servers, conf=kafka.conf)
