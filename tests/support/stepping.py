"""A task of four steps for a worker process; each function leaves a line in a file, so that runs can be counted."""

from __future__ import annotations

import os
import time
from pathlib import Path

from broker_engine.worker import TaskContext, task

FOLDER = Path(os.environ.get("STEPPING_FOLDER", "."))


def _leave(step: str) -> str:
    with (FOLDER / "steps.log").open("a") as log:
        log.write(f"{step}\n")
    return step.lower()


def _upsert() -> str:
    done = _leave("UPSERT")
    while not (FOLDER / "go-on").exists():  # killed here the first time
        time.sleep(0.02)
    return done


@task(name="import-csv", retryCount=2, retryDelaySeconds=0, responseTimeoutSeconds=3)
def import_csv(context: TaskContext) -> dict[str, list[str]]:
    """VALIDATE, PARSE, UPSERT, REPORT."""
    return {
        "did": [
            context.run_step("VALIDATE", _leave, "VALIDATE"),
            context.run_step("PARSE", _leave, "PARSE"),
            context.run_step("UPSERT", _upsert),
            context.run_step("REPORT", _leave, "REPORT"),
        ]
    }
