"""Stops: new workflows are refused for a definition, for a tenant, or altogether (before maintenance)."""

from __future__ import annotations

from typing import NamedTuple

import orjson


class Stop(NamedTuple):
    """A stop in force. ``since_ms``: log time; ``key`` names what it is about (``stop_key``)."""

    key: str
    operator: str
    since_ms: int
    reason: str | None = None

    @property
    def about(self) -> str:
        kind, _, name = self.key.partition(":")
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


def read_stop(key: str, document: bytes) -> Stop:
    """The stop in the document of a record of ``<ns>.stops``."""
    fields = orjson.loads(document)
    return Stop(key, fields["operator"], fields["sinceMs"], fields.get("reason"))
