"""Stops: new workflows are refused for a definition, for a tenant, or altogether (before maintenance).

A stop of a queue pauses it: what waits there is held until it is resumed (decider/queue_pauses.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import orjson

#: In the key of a stop of queues: whatever the domain. No domain has this name.
EVERY_DOMAIN = "*"


class Stop(NamedTuple):
    """A stop in force. ``since_ms``: log time; ``key`` names what it is about (``stop_key``)."""

    key: str
    operator: str
    since_ms: int
    reason: str | None = None

    @property
    def about(self) -> str:
        kind, _, name = self.key.partition(":")
        if kind == "queue":
            domain, _, task_type = name.partition(":")
            return f"task type {task_type} in " + ("every domain" if domain == EVERY_DOMAIN else f"domain {domain}")
        return "all workflows" if kind == "all" else f"{kind} {name}"


def stop_key(*, workflow: str | None = None, tenant: str | None = None) -> str:
    """The name of a stop: of one workflow definition, of one tenant, or (neither given) of everything."""
    if workflow is not None:
        return f"workflow:{workflow}"
    return "all" if tenant is None else f"tenant:{tenant}"


def keys_against(workflow: str, tenant: str | None) -> tuple[str, ...]:
    """The stops that a start meets."""
    named = ("all", stop_key(workflow=workflow))
    return named if tenant is None else (*named, stop_key(tenant=tenant))


def queue_key(task_type: str, domain: str | None = None) -> str:
    """The name of a stop of one queue, or (no domain given) of the queues of a task type in every domain."""
    return f"queue:{EVERY_DOMAIN if domain is None else domain}:{task_type}"


def queue_name(key: str) -> str:
    """How an operator names what such a stop is about: TYPE, or DOMAIN/TYPE."""
    domain, _, task_type = key.removeprefix("queue:").partition(":")
    return task_type if domain == EVERY_DOMAIN else f"{domain}/{task_type}"


def is_queue_key(key: str) -> bool:
    """Whether this is the name of a stop of queues."""
    return key.startswith("queue:")


def keys_against_queue(domain: str, task_type: str) -> tuple[str, str]:
    """The stops that a task on this queue meets."""
    return queue_key(task_type), queue_key(task_type, domain)


def stop_of_queue(stops: Mapping[str, Stop], domain: str, task_type: str) -> Stop | None:
    """The stop among these (by key) that pauses a queue."""
    return next((stops[key] for key in keys_against_queue(domain, task_type) if key in stops), None)


def read_stop(key: str, document: bytes) -> Stop:
    """The stop in the document of a record of ``<ns>.stops``."""
    fields = orjson.loads(document)
    return Stop(key, fields["operator"], fields["sinceMs"], fields.get("reason"))
