"""A worker module whose one task type may have three tasks in progress; one of them never ends by itself."""

from __future__ import annotations

import time

from broker_engine.worker import TaskContext, task

LIMIT = 3


@task(name="narrow", retryCount=3, retryDelaySeconds=0, concurrentExecLimit=LIMIT, concurrency=2)
def narrow(context: TaskContext, hold: bool = False) -> None:
    if hold and context.attempt == 0:
        time.sleep(600)
    time.sleep(0.02)
