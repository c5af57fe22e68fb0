"""Secrets that a task definition names (``runtimeMetadata``): resolved in the worker, stored nowhere."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from broker_engine.worker.outcomes import TaskFailed

#: Where secrets come from by default: the worker's environment, under this prefix and their name.
PREFIX = "BROKER_ENGINE_SECRET_"

#: Gives a secret by its name, None when there is none.
Resolver = Callable[[str], str | None]


def from_environment(name: str) -> str | None:
    return os.environ.get(PREFIX + name)


def resolver(source: Mapping[str, str] | Resolver | None) -> Resolver:
    """What a worker was given as its secrets, as a function."""
    if source is None:
        return from_environment
    return source if callable(source) else source.get


def resolved(names: str, resolve: Resolver) -> dict[str, str]:
    """The secrets of one task.

    Raises:
        TaskFailed: INIT_SECRET, before the function runs; another worker may have it.
    """
    found: dict[str, str] = {}
    for name in filter(None, names.split(",")):
        value = resolve(name)
        if value is None:
            raise TaskFailed(
                f"this worker has no secret {name}: set {PREFIX}{name} or give Worker(secrets=…)",
                code="INIT_SECRET",
            )
        found[name] = value
    return found
