"""A worker whose first attempts never end, so that it can be killed while they run."""

from __future__ import annotations

import time

from broker_engine.worker import TaskContext, task


@task(name="hangs-once", retryCount=1, retryDelaySeconds=0, responseTimeoutSeconds=3_600)
def hangs_once(context: TaskContext) -> dict[str, int]:
    if context.attempt == 0:
        time.sleep(600)
    return {"attempt": context.attempt}
