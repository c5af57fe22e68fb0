"""Errors as HTTP answers: one table from class to status, one shape of body (Conductor's)."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import orjson
import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from broker_engine.errors import (
    BadRequest,
    BrokerEngineError,
    Conflict,
    NoAnswer,
    NotFound,
    PayloadTooLarge,
    RecordTooLarge,
    Retriable,
    TooManyRequests,
    UnknownTopic,
    Unreachable,
)

_log = structlog.get_logger(__name__)

#: The most specific class first; anything else is 500.
STATUSES: Mapping[type[BrokerEngineError], int] = {
    NotFound: 404,
    Conflict: 409,
    PayloadTooLarge: 413,
    RecordTooLarge: 413,
    TooManyRequests: 429,
    BadRequest: 400,
    NoAnswer: 503,
    Unreachable: 503,
    Retriable: 503,
    UnknownTopic: 503,
}
#: The same request may succeed later.
RETRYABLE = frozenset({429, 503})
_INSTANCE = socket.gethostname()
_SUMMARY = "Validation failed, check below errors for detail."


def status_of(error: BrokerEngineError) -> int:
    return next((status for kind, status in STATUSES.items() if isinstance(error, kind)), 500)


def refusal(status: int, message: str, violations: Sequence[Mapping[str, Any]] = ()) -> Response:
    """An error as Conductor's clients read it."""
    body: dict[str, Any] = {
        "status": status,
        "message": message,
        "instance": _INSTANCE,
        "retryable": status in RETRYABLE,
    }
    if violations:
        body["validationErrors"] = list(violations)
    return Response(
        orjson.dumps(body, default=str, option=orjson.OPT_NON_STR_KEYS), status, media_type="application/json"
    )


def install(app: FastAPI) -> None:
    """Let every error of a handler become one of these answers."""

    @app.exception_handler(BrokerEngineError)
    def engine_error(request: Request, error: BrokerEngineError) -> Response:
        status = status_of(error)
        if status >= 500:
            _log.warning("gateway.request_failed", path=request.url.path, status=status, error=str(error))
        listed = error.violations if isinstance(error, BadRequest) else ()
        violations = [{"path": v.path, "message": v.message, "invalidValue": v.invalid_value} for v in listed]
        return refusal(status, f"{_SUMMARY} {error}" if violations else str(error), violations)

    @app.exception_handler(RequestValidationError)
    def unreadable(_request: Request, error: RequestValidationError) -> Response:
        violations = [
            {
                "path": ".".join(str(part) for part in problem["loc"] if part not in ("body", "query", "path"))
                or "body",
                "message": problem["msg"],
                "invalidValue": _shown(problem.get("input")),
            }
            for problem in error.errors()
        ]
        told = "; ".join(f"{v['path']}: {v['message']} (got {v['invalidValue']!r})" for v in violations)
        return refusal(400, f"{_SUMMARY} {told}", violations)

    @app.exception_handler(HTTPException)
    def no_route(request: Request, error: HTTPException) -> Response:
        known = {
            404: f"there is nothing at {request.url.path}: the API is under /api, its description at /api-docs",
            405: f"{request.method} is not possible at {request.url.path}",
        }
        return refusal(error.status_code, known.get(error.status_code) or str(error.detail))

    @app.exception_handler(Exception)
    def crashed(request: Request, error: Exception) -> Response:
        _log.error("gateway.request_crashed", path=request.url.path, exc_info=error)
        return refusal(500, f"{HTTPStatus(500).phrase}: the gateway's log tells more")


def _shown(value: object) -> object:
    """An offending value, cut to what an error message can hold."""
    text = value if isinstance(value, str | int | float | bool | None) else str(value)
    return text[:200] if isinstance(text, str) else text
