"""Caps: how many tasks may be in progress altogether, of one tenant, or in one domain, whatever their types say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import orjson

#: More than this in progress is no cap.
MAX_CAP = 1_000_000
#: The tenant that stands for every tenant without a cap of its own.
EVERY_TENANT = "*"
_NONE: Mapping[str, int] = MappingProxyType({})


class Cap(NamedTuple):
    """A cap in force. ``since_ms``: log time; ``key`` names what it is about (``cap_key``)."""

    key: str
    limit: int
    operator: str
    since_ms: int

    @property
    def about(self) -> str:
        kind, _, name = self.key.partition(":")
        if kind == "all":
            return "all tasks"
        return "every other tenant" if self.key == cap_key(tenant=EVERY_TENANT) else f"{kind} {name}"


class Caps(NamedTuple):
    """All caps in force, as the limiter asks for them; 0: no cap."""

    everything: int = 0
    tenants: Mapping[str, int] = _NONE
    domains: Mapping[str, int] = _NONE

    def of_tenant(self, tenant: str | None) -> int:
        if tenant is None or not self.tenants:
            return 0
        own = self.tenants.get(tenant)
        return self.tenants.get(EVERY_TENANT, 0) if own is None else own

    def hold(self, tenant: str | None, domain: str) -> bool:
        """Whether a cap counts tasks of this tenant in this domain."""
        return self.everything > 0 or self.domains.get(domain, 0) > 0 or self.of_tenant(tenant) > 0


NO_CAPS = Caps()


def cap_key(*, tenant: str | None = None, domain: str | None = None) -> str:
    """The name of a cap: of one tenant, of one domain, or (neither given) of everything."""
    if tenant is not None:
        return f"tenant:{tenant}"
    return "all" if domain is None else f"domain:{domain}"


def read_cap(key: str, document: bytes) -> Cap:
    """The cap in the document of a record of ``<ns>.caps``."""
    fields = orjson.loads(document)
    return Cap(key, fields["limit"], fields["operator"], fields["sinceMs"])


def together(caps: Iterable[Cap]) -> Caps:
    """The caps as one value; ``NO_CAPS`` itself when there is none."""
    everything, tenants, domains = 0, {}, {}
    for cap in caps:
        kind, _, name = cap.key.partition(":")
        if kind == "all":
            everything = cap.limit
        elif kind == "tenant":
            tenants[name] = cap.limit
        else:
            domains[name] = cap.limit
    return Caps(everything, tenants, domains) if everything or tenants or domains else NO_CAPS
