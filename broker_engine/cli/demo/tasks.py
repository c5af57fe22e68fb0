"""The task of the import, in four steps. Each may stop in the middle and can be repeated as it is."""

from __future__ import annotations

import csv
import http.client
import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from broker_engine.cli.demo.rows import COLUMNS
from broker_engine.worker import TaskContext, TaskFailed, TaskFailedForGood, task

#: A killed worker is noticed after this: nothing was heard of its task for so long.
RESPONSE_TIMEOUT_SECONDS = 5
TASK, REFERENCE = "ImportCsv", "import"
_COMMON: dict[str, Any] = {
    "concurrency": 4,
    "ownerEmail": "demo@example.com",
    "retryCount": 10,
    "retryLogic": "FIXED",
    "responseTimeoutSeconds": RESPONSE_TIMEOUT_SECONDS,
    "timeoutSeconds": 60,
    "timeoutPolicy": "RETRY",
}

TABLE = """
    CREATE TABLE IF NOT EXISTS airports (
        icao TEXT PRIMARY KEY, name TEXT NOT NULL, city TEXT NOT NULL, country TEXT NOT NULL, tz TEXT NOT NULL,
        elevation REAL NOT NULL, lat REAL NOT NULL, lon REAL NOT NULL, workflow_id TEXT NOT NULL, lease INTEGER NOT NULL
    )
"""
#: By key, and fenced: an older start of the same chunk that wakes up late changes nothing.
UPSERT = """
    INSERT INTO airports VALUES (:icao, :name, :city, :country, :tz, :elevation, :lat, :lon, :workflow_id, :lease)
    ON CONFLICT (icao) DO UPDATE SET
        name = excluded.name, city = excluded.city, country = excluded.country, tz = excluded.tz,
        elevation = excluded.elevation, lat = excluded.lat, lon = excluded.lon, lease = excluded.lease
    WHERE excluded.workflow_id = airports.workflow_id AND excluded.lease >= airports.lease
"""


def validate(file: Path) -> dict[str, int]:
    """Is this a file of the right kind?"""
    with file.open(newline="", encoding="utf-8") as opened:
        rows = csv.reader(opened)
        header = next(rows, None)
        if header != list(COLUMNS):
            raise TaskFailedForGood(f"{file} has the columns {header}, not {list(COLUMNS)}", code="WRONG_COLUMNS")
        return {"rows": sum(1 for _ in rows)}


def parse(file: Path, pause_seconds: float, context: TaskContext) -> dict[str, Any]:
    """Read the rows, skip and count the bad ones, and leave the good ones in a file for the next task."""
    if context.attempt == 0:
        time.sleep(pause_seconds)  # one chunk is slow, so that a worker can be killed over it
    good, problems = [], []
    with file.open(newline="", encoding="utf-8") as opened:
        for number, row in enumerate(list(csv.reader(opened))[1:]):
            try:
                good.append(_parsed(row))
            except ValueError as error:
                problems.append(f"row {number}: {error}")
    parsed = file.with_suffix(".json")
    part = parsed.with_suffix(f".{context.lease}")  # two runs never write the same file
    part.write_text(json.dumps(good))
    part.replace(parsed)
    return {"parsed": str(parsed), "skipped": len(problems), "problems": problems[:5]}


def _parsed(row: list[str]) -> dict[str, Any]:
    if len(row) != len(COLUMNS):
        raise ValueError(f"has {len(row)} columns, not {len(COLUMNS)}")
    fields = dict(zip(COLUMNS, row, strict=True))
    if not fields["icao"]:
        raise ValueError("has no key")
    numbers = {name: float(fields[name]) for name in ("elevation", "lat", "lon")}
    if abs(numbers["lat"]) > 90 or abs(numbers["lon"]) > 180:
        raise ValueError("lies nowhere on Earth")
    return {name: fields[name] for name in ("icao", "name", "city", "country", "tz")} | numbers


def upsert(parsed: Path, database: Path, context: TaskContext) -> dict[str, int]:
    """Put the rows into the table, by key, in one transaction."""
    rows = json.loads(parsed.read_text())
    own = {"workflow_id": context.workflow_id, "lease": context.lease}
    with closing(connect(database)) as connection, connection:
        connection.executemany(UPSERT, [row | own for row in rows])
    return {"imported": len(rows)}


def connect(database: Path) -> sqlite3.Connection:
    """The table's database; several processes write to it, so a writer waits its turn."""
    connection = sqlite3.connect(database, timeout=4.0)
    connection.execute("PRAGMA synchronous = NORMAL")
    return connection


def report(imported: int, skipped: int, notifier: str, context: TaskContext) -> dict[str, Any]:
    """Tell the notifier, which knows reports by their workflow and takes each once."""
    address = urlsplit(notifier)
    body = json.dumps({"workflowId": context.workflow_id, "imported": imported, "skipped": skipped})
    with closing(http.client.HTTPConnection(address.hostname or "", address.port, timeout=4.0)) as connection:
        try:
            connection.request("POST", address.path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            content = answer.read()
        except OSError as error:
            raise TaskFailed(f"the notifier does not answer: {error}", code="UNREACHABLE") from error
    if answer.status != http.client.OK:
        raise TaskFailed(f"the notifier answered {answer.status}", code=str(answer.status))
    return {"notified": True, "isRepeat": json.loads(content)["isRepeat"]}


@task(name=TASK, retryDelaySeconds=2, resourceLock="${workflow.input.file}", **_COMMON)
def import_csv(file: Path, database: Path, notifier: str, pause_seconds: float, context: TaskContext) -> dict[str, Any]:
    """One chunk: VALIDATE, PARSE, UPSERT, REPORT. A later attempt goes on behind the last completed step; one file is
    worked on by one task at a time."""
    checked = context.run_step("VALIDATE", validate, file)
    found = context.run_step("PARSE", parse, file, pause_seconds, context)
    stored = context.run_step("UPSERT", upsert, Path(found["parsed"]), database, context)
    context.run_step("REPORT", report, stored["imported"], found["skipped"], notifier, context)
    return {**checked, **stored, "skipped": found["skipped"]}


WORKFLOW: dict[str, Any] = {
    "name": "airport-import",
    "version": 1,
    "description": "Imports one chunk of a CSV file of airports.",
    "ownerEmail": "demo@example.com",
    "tasks": [
        {
            "name": TASK,
            "taskReferenceName": REFERENCE,
            "inputParameters": {
                "file": "${workflow.input.file}",
                "database": "${workflow.input.database}",
                "notifier": "${workflow.input.notifier}",
                "pause_seconds": "${workflow.input.pauseSeconds}",
            },
        },
    ],
    "outputParameters": {
        "rows": "${import.output.rows}",
        "imported": "${import.output.imported}",
        "skipped": "${import.output.skipped}",
    },
}
