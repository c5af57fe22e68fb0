"""The sum at the end: was every row imported or skipped, each once, and did every workflow complete?"""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from broker_engine.cli.demo.notifier import Notifier
from broker_engine.cli.demo.progress import Progress
from broker_engine.cli.demo.rows import Source
from broker_engine.cli.demo.tasks import connect
from broker_engine.model.status import TaskStatus, WorkflowStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The figures, and what is wrong with them."""

    imported: int
    skipped: int
    workflows: int
    attempts: int
    retries: int
    lost: int
    duplicated: int
    timed_out: int
    refused_by_notifier: int
    repeated_reports: int
    p50_ms: int
    p99_ms: int
    seconds: float
    problems: tuple[str, ...]

    def last_line(self) -> str:
        """What the demo ends with."""
        if self.problems:
            return f"demo failed: {'; '.join(self.problems)}"
        return (
            f"demo ok: imported={self.imported} skipped={self.skipped} workflows={self.workflows} "
            f"attempts={self.attempts} retries={self.retries} lost={self.lost} duplicated={self.duplicated}"
        )

    def as_json(self) -> dict[str, Any]:
        return {"ok": not self.problems, "result": self.last_line(), **asdict(self)}


def judge(source: Source, progress: Progress, notifier: Notifier, database: Path, kills: int) -> Verdict:
    """Compare what workflows said, what the table holds and what the notifier heard with the file."""
    outputs = [orjson.loads(workflow.output or b"{}") for workflow in progress.workflows.values()]
    imported = sum(output.get("imported") or 0 for output in outputs)
    skipped = sum(output.get("skipped") or 0 for output in outputs)
    with closing(connect(database)) as connection:
        stored = int(connection.execute("SELECT count(*) FROM airports").fetchone()[0])
    lost = len(source.chunks) - progress.completed
    twice = sum(count - 1 for count in notifier.accepted.values())
    duplicated = twice + max(imported - stored, 0)
    times = sorted(
        workflow.ended_at_ms - workflow.created_at_ms
        for workflow in progress.workflows.values()
        if workflow.ended_at_ms is not None
    )
    repeated = progress.repeated_upserts
    checks = {
        f"{lost} workflows did not complete": lost == 0,
        f"imported {imported} + skipped {skipped} rows, the file has {source.rows}": imported + skipped == source.rows,
        f"the table holds {stored} rows, {imported} were imported": stored == imported,
        f"{skipped} rows skipped, but {source.broken} broken": skipped >= source.broken,
        f"{duplicated} rows or reports were taken twice": duplicated == 0,
        f"{repeated} imports stored their rows again to report once more": repeated == 0,
        f"{len(notifier.accepted)} of {len(source.chunks)} chunks reported": len(notifier.accepted)
        == len(source.chunks),
        f"{kills} of 2 processes were killed": kills == 2,
    }
    return Verdict(
        imported=imported,
        skipped=skipped,
        workflows=sum(w.status is WorkflowStatus.COMPLETED for w in progress.workflows.values()),
        attempts=len(progress.tasks),
        retries=progress.retries,
        lost=lost,
        duplicated=duplicated,
        timed_out=progress.attempts_ended_as(TaskStatus.TIMED_OUT),
        refused_by_notifier=notifier.refused,
        repeated_reports=notifier.repeats,
        p50_ms=_percentile(times, 50),
        p99_ms=_percentile(times, 99),
        seconds=round(progress.seconds, 1),
        problems=tuple(problem for problem, holds in checks.items() if not holds),
    )


def _percentile(ordered: list[int], percent: int) -> int:
    """The nearest-rank percentile; 0 of nothing."""
    return ordered[max(math.ceil(len(ordered) * percent / 100) - 1, 0)] if ordered else 0
