"""How every command ends: the exit codes, and the one place where an error becomes a message and a code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson
import typer

from broker_engine.errors import BadRequest, BrokerEngineError, Conflict, NoAnswer, NotFound, Unreachable

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2  # what the command-line parser itself uses
NOT_FOUND: Final = 3
CONFLICT: Final = 4
UNREACHABLE: Final = 5

#: The most specific class first; anything else is FAILED.
CODES: Mapping[type[BrokerEngineError], int] = {
    NotFound: NOT_FOUND,
    Conflict: CONFLICT,
    NoAnswer: UNREACHABLE,
    Unreachable: UNREACHABLE,
}


def exit_code(error: BrokerEngineError) -> int:
    return next((code for kind, code in CODES.items() if isinstance(error, kind)), FAILED)


def as_json(error: BrokerEngineError) -> dict[str, Any]:
    """The error as programs read it, on standard error."""
    shown: dict[str, Any] = {
        "error": type(error).__name__,
        "message": str(error),
        "exitCode": exit_code(error),
    }
    if isinstance(error, BadRequest) and error.violations:
        shown["violations"] = violations(error)
    return shown


def violations(error: BadRequest) -> list[dict[str, Any]]:
    return [{"path": v.path, "message": v.message, "invalidValue": v.invalid_value} for v in error.violations]


def sentences(error: BrokerEngineError) -> list[str]:
    """The error as people read it: one line, or one line per violation."""
    if isinstance(error, BadRequest) and error.violations:
        return [str(violation) for violation in error.violations]
    return [str(error)]


def tell(error: BrokerEngineError, *, json: bool) -> int:
    """Write an error to standard error and return the exit code."""
    if json:
        typer.echo(orjson.dumps(as_json(error), default=str).decode(), err=True)
    else:
        for sentence in sentences(error):
            typer.echo(sentence, err=True)
    return exit_code(error)
