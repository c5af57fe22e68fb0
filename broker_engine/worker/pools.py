"""Where task functions run: threads, an asyncio loop, or processes. The threads that poll Kafka never run them."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

from broker_engine.worker.cleanup import clean_up, clean_up_async
from broker_engine.worker.context import TaskContext
from broker_engine.worker.task import TaskWorker


class Pools:
    """The pools of one worker process, each made when first needed."""

    def __init__(self, tasks: list[TaskWorker]) -> None:
        #: Threads also await and report; a process task holds one thread while it runs.
        self._threads = ThreadPoolExecutor(
            max_workers=sum(task.concurrency for task in tasks), thread_name_prefix="task"
        )
        processes = sum(task.concurrency for task in tasks if task.pool == "process")
        # spawn: a Kafka client must not be carried across a fork
        self._processes = (
            ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) if processes else None
        )
        self._lock = threading.Lock()
        self._backlog = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        if any(task.pool == "asyncio" for task in tasks):
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=_serve, args=(self._loop,), name="asyncio", daemon=True).start()

    def submit(
        self,
        task: TaskWorker,
        context: TaskContext,
        arguments: Callable[[], dict[str, Any]],
        done: Callable[[Any], None],
    ) -> None:
        """Run a task and its clean-up; ``done`` gets its result or its exception, in some thread of the pool.

        ``arguments`` is called in the pool too: binding a large input is work.
        """
        if task.pool == "asyncio":
            assert self._loop is not None
            asyncio.run_coroutine_threadsafe(self._run_async(task, context, arguments, done), self._loop)
        else:
            with self._lock:
                self._backlog += 1
            self._threads.submit(self._run, task, context, arguments, done)

    def has_backlog(self) -> bool:
        """Whether tasks wait for a thread."""
        return self._backlog > 0

    def _run(
        self,
        task: TaskWorker,
        context: TaskContext,
        arguments: Callable[[], dict[str, Any]],
        done: Callable[[Any], None],
    ) -> None:
        with self._lock:
            self._backlog -= 1
        has_begun = False
        try:
            given = arguments()
            has_begun = True
            if task.pool == "process":
                assert self._processes is not None
                future: Future[Any] = self._processes.submit(task.function, **given)
                result = future.result()
            else:
                result = task.function(**given)
        except BaseException as error:  # whatever a user's function raises is a result
            result = error
        hooks = task.cleanups(context) if has_begun else ()
        clean_up(hooks, task.cleanup_timeout_seconds, context.task_id)
        done(result)

    async def _run_async(
        self,
        task: TaskWorker,
        context: TaskContext,
        arguments: Callable[[], dict[str, Any]],
        done: Callable[[Any], None],
    ) -> None:
        has_begun = False
        try:
            given = arguments()
            context._interrupt = self._interrupt_for(context)
            context.check()  # told before it could be interrupted
            has_begun = True
            result = await task.function(**given)
        except asyncio.CancelledError as error:
            result = context._interrupted() or error
        except BaseException as error:  # as above
            result = error
        context._interrupt = None  # the clean-up is left alone
        hooks = task.cleanups(context) if has_begun else ()
        try:
            await clean_up_async(hooks, task.cleanup_timeout_seconds, context.task_id)
        finally:
            done(result)

    def _interrupt_for(self, context: TaskContext) -> Callable[[], object]:
        """Cancels the present asyncio task, called from any thread; without effect when its function has ended."""
        running, loop = asyncio.current_task(), self._loop
        assert running is not None
        assert loop is not None

        def cancel() -> None:
            if context._interrupt is not None:
                running.cancel()

        return lambda: loop.call_soon_threadsafe(cancel)

    def close(self) -> None:
        """Wait for nothing: what still runs is reported by nobody (its response time-out retries it)."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._processes is not None:
            self._processes.shutdown(wait=False, cancel_futures=True)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop until it is stopped."""
    loop.run_forever()
    loop.close()
