"""Definition files, for tasks and workflows alike: one JSON object or an array, each item reported by itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import typer

from broker_engine.cli import exits, output
from broker_engine.cli.session import Session, read_text
from broker_engine.errors import BadRequest, BrokerEngineError, Conflict, NotFound

#: Stores one definition and returns its warnings.
Store = Callable[[dict[str, Any]], list[str]]


def read_definitions(file: Path) -> list[Any]:
    """The objects of a file (`-` is standard input).

    Raises:
        typer.BadParameter: no JSON, or neither an object nor an array.
    """
    try:
        content = orjson.loads(read_text(file))
    except orjson.JSONDecodeError as error:
        raise typer.BadParameter(f"{file} holds no valid JSON: {error}", param_hint="FILE") from error
    if isinstance(content, dict):
        return [content]
    if not isinstance(content, list) or not content:
        raise typer.BadParameter(f"{file} must hold one object or an array of them", param_hint="FILE")
    return content


def store_all(session: Session, items: list[Any], store: Store, done: str) -> None:
    """Store every item whatever becomes of the others, and say what became of each.

    Raises:
        typer.Exit: some were refused. With one item, or when all refusals are of one kind, the code is theirs.
    """
    reports: list[dict[str, Any]] = []
    codes: set[int] = set()
    for number, item in enumerate(items):
        report: dict[str, Any] = {"index": number, "name": item.get("name") if isinstance(item, dict) else None}
        try:
            if not isinstance(item, dict):
                raise BadRequest(f"item {number} is no JSON object but {type(item).__name__}")
            warnings = store(item)
        except (BadRequest, NotFound, Conflict) as error:
            codes.add(exits.exit_code(error))
            report |= {"status": "refused", "error": exits.as_json(error)}
            _tell_refusal(session, report, error)
        else:
            report |= {"status": done, "warnings": warnings}
            _tell_success(session, report)
        reports.append(report)
    if session.json:
        output.json_out(reports)
    if codes:
        refused = sum(report["status"] == "refused" for report in reports)
        summary = BrokerEngineError(f"{refused} of {len(reports)} definitions refused, see above")
        if session.json or len(reports) > 1:
            exits.tell(summary, json=session.json)
        raise typer.Exit(codes.pop() if len(codes) == 1 else exits.FAILED)


def _tell_success(session: Session, report: dict[str, Any]) -> None:
    if session.json:
        return
    output.line(f"{report['name']}: {report['status']}")
    for warning in report["warnings"]:
        typer.echo(f"  warning: {warning}", err=True)


def _tell_refusal(session: Session, report: dict[str, Any], error: BrokerEngineError) -> None:
    if session.json:
        return
    name = report["name"] or f"item {report['index']}"
    typer.echo(f"{name}: refused", err=True)
    for sentence in exits.sentences(error):
        typer.echo(f"  {sentence}", err=True)
