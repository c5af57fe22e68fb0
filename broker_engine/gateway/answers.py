"""How handlers answer, and what they share: JSON, plain text, warnings of unknown fields, the hub."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import orjson
from fastapi import Depends, Request, Response
from pydantic import BaseModel, ConfigDict

from broker_engine.errors import BadRequest, Violation
from broker_engine.gateway.hub import Hub


def _hub(request: Request) -> Hub:
    hub: Hub = request.app.state.hub
    return hub


#: The parameter of a handler that needs the engine.
Engine = Annotated[Hub, Depends(_hub)]


class Body(BaseModel):
    """What a request may hold. Unknown fields are told about, not refused (D18)."""

    model_config = ConfigDict(extra="allow", populate_by_name=True)

    def unknown(self) -> list[str]:
        return sorted(self.model_extra or ())


def json_answer(document: Any, status: int = 200, *, warnings: Iterable[str] = ()) -> Response:
    headers = _warned(warnings)
    return Response(orjson.dumps(document), status, media_type="application/json", headers=headers)


def text_answer(text: str, status: int = 200, *, warnings: Iterable[str] = ()) -> Response:
    return Response(text, status, media_type="text/plain", headers=_warned(warnings))


def empty_answer(status: int = 200, *, warnings: Iterable[str] = ()) -> Response:
    return Response(status_code=status, headers=_warned(warnings))


def check_unknown(names: Iterable[str], *, strict: bool) -> list[str]:
    """Warnings about fields that mean nothing here.

    Raises:
        BadRequest: with ``strict``.
    """
    listed = list(names)
    if strict and listed:
        raise BadRequest(
            violations=tuple(Violation(path=name, message="unknown field", invalid_value=name) for name in listed)
        )
    return [f"unknown field {name}" for name in listed]


def _warned(warnings: Iterable[str]) -> dict[str, str] | None:
    """Code 299 (RFC 7234): a persistent warning. Headers hold printable ASCII only."""
    told = "; ".join(warnings)
    if not told:
        return None
    plain = "".join(c if " " <= c <= "~" and c not in '"\\' else "'" for c in told)
    return {"Warning": f'299 - "{plain[:2_000]}"'}
