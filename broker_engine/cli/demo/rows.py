"""The file that is imported, in chunks: the airports of the `airportsdata` package, some rows broken on purpose."""

from __future__ import annotations

import csv
import importlib.util
from dataclasses import dataclass
from pathlib import Path

from broker_engine.errors import BrokerEngineError

COLUMNS = ("icao", "iata", "name", "city", "subd", "country", "elevation", "lat", "lon", "tz", "lid")

#: Every so many-th row is broken, each in its own way. Primes, so that all kinds of chunks come about.
NO_KEY_EVERY = 997
NO_NUMBER_EVERY = 1_499
CUT_OFF_EVERY = 2_003


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A part of the file, written to a file of its own; workflows get the path, not the rows."""

    number: int
    file: Path
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What was read of the file, for the sum at the end."""

    file: Path
    rows: int
    broken: int
    chunks: tuple[Chunk, ...]


def find_file() -> Path:
    """The CSV file inside the installed package.

    Raises:
        BrokerEngineError: the package is not installed.
    """
    found = importlib.util.find_spec("airportsdata")
    if found is None or found.origin is None:
        raise BrokerEngineError("the demo needs the package airportsdata: pip install 'broker-engine[demo]'")
    return Path(found.origin).parent / "airports.csv"


def cut(file: Path, folder: Path, rows_per_chunk: int, limit: int | None = None) -> Source:
    """Write the file's rows (the first ``limit``) as chunks into the folder."""
    with file.open(newline="", encoding="utf-8") as opened:
        rows = list(csv.reader(opened))[1:][:limit]
    broken = 0
    for number, row in enumerate(rows):
        damage = _damage(number, row)
        if damage is not None:
            rows[number] = damage
            broken += 1
    chunks: list[Chunk] = []
    for start in range(0, len(rows), rows_per_chunk):
        part = rows[start : start + rows_per_chunk]
        path = folder / f"chunk-{len(chunks):04d}.csv"
        with path.open("w", newline="", encoding="utf-8") as opened:
            writer = csv.writer(opened)
            writer.writerow(COLUMNS)
            writer.writerows(part)
        chunks.append(Chunk(number=len(chunks), file=path, rows=len(part)))
    return Source(file=file, rows=len(rows), broken=broken, chunks=tuple(chunks))


def _damage(number: int, row: list[str]) -> list[str] | None:
    """The row as it is broken, None for most rows."""
    if number % NO_KEY_EVERY == 13:
        return ["", *row[1:]]
    if number % NO_NUMBER_EVERY == 21:
        return [*row[:7], "north", *row[8:]]
    if number % CUT_OFF_EVERY == 34:
        return row[:5]
    return None
