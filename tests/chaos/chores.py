"""The tasks that chaos runs: short, with some failures, and made to be repeated."""

from __future__ import annotations

from hashlib import blake2b

from broker_engine.worker import TaskContext, TaskFailed, task

RETRIES = 3
#: One in so many first attempts fails.
_FAILS_ONE_IN = 10


def _draw(context: TaskContext) -> int:
    return int.from_bytes(blake2b(context.task_id.encode(), digest_size=4).digest())


@task(name="chore", concurrency=40, retryCount=RETRIES, retryDelaySeconds=1, responseTimeoutSeconds=8)
def chore(n: int, context: TaskContext) -> dict[str, int]:
    """The last attempt always succeeds, so a workflow fails only by kills that hit every attempt."""
    if context.attempt < RETRIES and _draw(context) % _FAILS_ONE_IN == 0:
        raise TaskFailed("drawn")
    return {"n": n}
