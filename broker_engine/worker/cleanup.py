"""Clean-up after a task function: run after any end of it, best effort, within a time limit (B15).

A hook that raises or hangs is logged and left behind; the attempt is reported all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any

import structlog

_log = structlog.get_logger(__name__)

#: How long the hooks of one attempt may take together, unless the task says otherwise.
CLEANUP_SECONDS = 10.0
#: A plain or async function without arguments.
Hook = Callable[[], Any]


def clean_up(hooks: Sequence[Hook], seconds: float, task_id: str) -> None:
    """Run hooks, the last one added first, and wait for them at most so long."""
    if not hooks:
        return
    if not _in_thread(hooks, task_id).wait(seconds):
        _log.warning("worker.cleanup_abandoned", task_id=task_id, seconds=seconds)


async def clean_up_async(hooks: Sequence[Hook], seconds: float, task_id: str) -> None:
    """As ``clean_up`` on a loop: async hooks run on it, plain ones in a thread."""
    if not hooks:
        return
    try:
        async with asyncio.timeout(seconds):
            for hook in reversed(hooks):
                await _run_async(hook, task_id)
    except TimeoutError:
        _log.warning("worker.cleanup_abandoned", task_id=task_id, seconds=seconds)


async def _run_async(hook: Hook, task_id: str) -> None:
    if inspect.iscoroutinefunction(hook):
        try:
            await hook()
        except Exception as error:  # best effort
            _log.warning("worker.cleanup_failed", task_id=task_id, exc_info=error)
        return
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    def tell() -> None:
        with contextlib.suppress(RuntimeError):  # a hook that was abandoned may outlive the loop
            loop.call_soon_threadsafe(done.set)

    _in_thread([hook], task_id, tell)
    await done.wait()


def _in_thread(hooks: Sequence[Hook], task_id: str, then: Callable[[], Any] | None = None) -> threading.Event:
    """A thread of their own: one that hangs holds up neither the pool nor the end of the process."""
    done = threading.Event()

    def run() -> None:
        for hook in reversed(hooks):
            try:
                result = hook()
                if inspect.iscoroutine(result):
                    asyncio.run(result)
            except Exception as error:  # best effort
                _log.warning("worker.cleanup_failed", task_id=task_id, exc_info=error)
        done.set()
        if then is not None:
            then()

    threading.Thread(target=run, name="cleanup", daemon=True).start()
    return done
