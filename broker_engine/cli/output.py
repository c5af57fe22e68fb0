"""What commands print: one JSON document with ``--json``, tables otherwise. Results go to standard output only."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

#: Lines that go to a file or a program are never cut.
_UNCUT = 1_000

_COLOURS = {
    "RUNNING": "cyan",
    "IN_PROGRESS": "cyan",
    "COMPLETED": "green",
    "COMPLETED_WITH_ERRORS": "yellow",
    "SCHEDULED": "blue",
    "PAUSED": "yellow",
    "FAILED": "red",
    "FAILED_WITH_TERMINAL_ERROR": "red",
    "TIMED_OUT": "red",
    "TERMINATED": "magenta",
    "CANCELED": "magenta",
}


def console() -> Console:
    return Console(highlight=False, width=None if sys.stdout.isatty() else _UNCUT)


def json_out(value: Any) -> None:
    """One document."""
    typer.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2, default=str).decode())


def json_line(value: Any) -> None:
    """One line of a stream of documents."""
    typer.echo(orjson.dumps(value, default=str).decode())


def line(text: str) -> None:
    typer.echo(text)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """A table, or the sentence that says there is nothing."""
    made = make_table(columns, rows)
    if made.row_count:
        console().print(made)
    else:
        typer.echo(empty, err=True)


def make_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None) -> Table:
    made = Table(*columns, title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for row in rows:
        made.add_row(*(_cell(value) for value in row))
    return made


def _cell(value: object) -> Text:
    text = "" if value is None else str(value)
    return Text(text, style=_COLOURS.get(text, ""))


def moment(at_ms: int | None) -> str:
    """A moment in local time, to the millisecond."""
    if at_ms is None:
        return ""
    local = datetime.fromtimestamp(at_ms / 1_000, UTC).astimezone()
    return local.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def seconds(from_ms: int | None, to_ms: int | None) -> str:
    return "" if from_ms is None or to_ms is None else f"{(to_ms - from_ms) / 1_000:.3f} s"
