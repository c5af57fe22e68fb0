"""A task that fails once, for a worker process."""

from __future__ import annotations

from broker_engine.worker import TaskContext, TaskFailed, task


@task(name="fails-once", concurrency=60, retryCount=1, retryDelaySeconds=1)
def fails_once(context: TaskContext) -> None:
    """The first attempt fails, the second does not."""
    if context.attempt == 0:
        raise TaskFailed("not yet")
