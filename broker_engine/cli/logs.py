"""Logging, configured once, at the edge: lines for people on a terminal, JSON otherwise; always on standard error."""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from enum import StrEnum
from typing import Any

import structlog


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def configure(level: LogLevel, *, role: str | None = None) -> None:
    """Set up structlog for this process.

    Args:
        level: the least that is shown.
        role: which role of several in one terminal speaks; added to every line.
    """

    def name_role(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        event["role"] = role
        return event

    is_terminal = sys.stderr.isatty()
    processors: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S" if is_terminal else "iso", utc=not is_terminal),
    ]
    if role is not None:
        processors.append(name_role)
    if is_terminal:
        processors.append(structlog.dev.ConsoleRenderer())
    else:
        processors += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.name)),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
