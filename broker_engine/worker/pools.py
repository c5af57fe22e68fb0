"""Where task functions run: threads, an asyncio loop, or processes. The threads that poll Kafka never run them."""

from __future__ import annotations

import asyncio
import heapq
import multiprocessing
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

from broker_engine.worker.cleanup import clean_up, clean_up_async
from broker_engine.worker.context import TaskContext
from broker_engine.worker.setups import Beginning
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
        #: (priority, largest first; number; what to do) of what waits for a thread.
        self._waiting: list[tuple[int, int, Callable[[], None]]] = []
        self._number = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        if any(task.pool == "asyncio" for task in tasks):
            self._loop = asyncio.new_event_loop()
            self._loop_thread = threading.Thread(target=_serve, args=(self._loop,), name="asyncio", daemon=True)
            self._loop_thread.start()

    def submit(
        self,
        task: TaskWorker,
        beginning: Beginning,
        done: Callable[[Any], None],
        *,
        priority: int = 0,
    ) -> None:
        """Run a task and its clean-up; ``done`` gets its result or its exception, in some thread of the pool.

        It begins in the pool too: binding a large input is work. Of those that wait for a thread the
        highest priority goes first, and the oldest of one.
        """
        if task.pool == "asyncio":
            assert self._loop is not None
            asyncio.run_coroutine_threadsafe(self._run_async(task, beginning, done), self._loop)
        else:
            with self._lock:
                self._number += 1
                heapq.heappush(self._waiting, (-priority, self._number, lambda: self._run(task, beginning, done)))
            self._threads.submit(self._run_next)

    def has_backlog(self) -> bool:
        """Whether tasks wait for a thread."""
        return bool(self._waiting)

    def _run_next(self) -> None:
        with self._lock:
            _, _, run = heapq.heappop(self._waiting)
        run()

    def _run(self, task: TaskWorker, beginning: Beginning, done: Callable[[Any], None]) -> None:
        context = beginning.context
        has_begun = False
        try:
            given = beginning.arguments()
            has_begun = True
            if task.pool == "process":
                assert self._processes is not None
                future: Future[Any] = self._processes.submit(_run_apart, task.function, given)
                result = future.result()
            else:
                result = task.function(**given)
        except BaseException as error:  # whatever a user's function raises is a result
            result = error
        hooks = task.cleanups(context) if has_begun else ()
        clean_up(hooks, task.cleanup_timeout_seconds, context.task_id)
        done(result)

    async def _run_async(self, task: TaskWorker, beginning: Beginning, done: Callable[[Any], None]) -> None:
        context = beginning.context
        has_begun = False
        try:
            given = await beginning.arguments_async()
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
            self._loop_thread.join(1.0)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


def _run_apart(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Run a function in a process of the pool, where its context is a copy."""
    try:
        return function(**arguments)
    finally:
        for value in arguments.values():
            if isinstance(value, TaskContext):
                value.remove_folder()
