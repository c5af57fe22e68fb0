"""Questions over HTTP."""

from __future__ import annotations

import httpx


def answers(url: str) -> int | None:
    """The status of what stands at the address; None where nothing listens."""
    try:
        return httpx.get(url).status_code
    except httpx.TransportError:
        return None
