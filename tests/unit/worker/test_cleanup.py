"""What runs when a function has ended: in order, best effort, within its time."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
import structlog

from broker_engine.errors import BadRequest
from broker_engine.model.decision import ControlKind
from broker_engine.wire.records import Control
from broker_engine.worker import TaskCanceled, TaskContext, TaskFailed, TaskWorker, task
from broker_engine.worker.pools import Pools
from broker_engine.worker.setups import Beginning
from tests.support.roles import until
from tests.unit.worker.test_task import CONTEXT, WORK


def a_context(**fields: Any) -> TaskContext:
    return replace(CONTEXT, _cleanups=[], **fields)


def outcome(worker: TaskWorker, context: TaskContext) -> Any:
    """What the pool makes of one run."""
    pools, results = Pools([worker]), list[Any]()
    try:
        pools.submit(worker, Beginning(worker, WORK, context, {}.get), results.append)
        until(lambda: results, 10, what="the end")
    finally:
        pools.close()
    return results[0]


def test_hooks_run_after_success_the_last_one_first() -> None:
    ran: list[str] = []

    @task(cleanup=lambda _context: ran.append("task"))
    def work(context: TaskContext) -> int:
        context.on_cleanup(lambda: ran.append("first"))
        context.on_cleanup(lambda: ran.append("second"))
        ran.append("function")
        return 1

    assert outcome(work, a_context()) == 1
    assert ran == ["function", "second", "first", "task"]


@pytest.mark.parametrize("error", [TaskFailed("no"), TaskCanceled("stop"), ValueError("bug")])
def test_hooks_run_after_any_other_end(error: Exception) -> None:
    ran: list[str] = []

    @task
    def work(context: TaskContext) -> None:
        context.on_cleanup(lambda: ran.append("hook"))
        raise error

    assert outcome(work, a_context()) is error
    assert ran == ["hook"]


def test_a_hook_that_raises_keeps_neither_the_others_nor_the_result() -> None:
    ran: list[str] = []

    def broken() -> None:
        raise RuntimeError("broken hook")

    @task
    def work(context: TaskContext) -> int:
        context.on_cleanup(lambda: ran.append("hook"))
        context.on_cleanup(broken)
        return 1

    with structlog.testing.capture_logs() as logs:
        assert outcome(work, a_context()) == 1
    assert ran == ["hook"]
    assert [entry["event"] for entry in logs] == ["worker.cleanup_failed"]


def test_a_hook_that_hangs_does_not_hold_up_the_result() -> None:
    released = threading.Event()

    @task(cleanup_timeout_seconds=0.1)
    def work(context: TaskContext) -> int:
        context.on_cleanup(lambda: released.wait(30))
        return 1

    with structlog.testing.capture_logs() as logs:
        assert outcome(work, a_context()) == 1
    released.set()
    assert [entry["event"] for entry in logs] == ["worker.cleanup_abandoned"]


def test_async_tasks_have_async_and_plain_hooks() -> None:
    ran: list[str] = []

    async def close() -> None:
        await asyncio.sleep(0)
        ran.append("async")

    async def end(_context: TaskContext) -> None:
        ran.append("task")

    @task(cleanup=end)
    async def work(context: TaskContext) -> int:
        context.on_cleanup(lambda: ran.append("plain"))
        context.on_cleanup(close)
        return 1

    assert outcome(work, a_context()) == 1
    assert ran == ["async", "plain", "task"]


@pytest.mark.parametrize("is_async", [True, False])
def test_an_async_hook_that_hangs_does_not_hold_up_the_result(is_async: bool) -> None:
    async def hang() -> None:
        await asyncio.sleep(600)

    released = threading.Event()

    @task(cleanup_timeout_seconds=0.1)
    async def work(context: TaskContext) -> int:
        context.on_cleanup(hang if is_async else lambda: released.wait(30))
        return 1

    with structlog.testing.capture_logs() as logs:
        assert outcome(work, a_context()) == 1
    released.set()
    assert [entry["event"] for entry in logs] == ["worker.cleanup_abandoned"]


def test_a_function_that_never_began_is_not_cleaned_up_after() -> None:
    ran: list[str] = []

    @task(cleanup=lambda _context: ran.append("task"))
    def work(number: int) -> int:
        return number

    assert "number" in str(outcome(work, a_context()))
    assert ran == []


def test_the_time_for_it_must_be_more_than_nothing() -> None:
    with pytest.raises(BadRequest, match="cleanup_timeout_seconds of task work must be more than 0, not 0"):

        @task(cleanup_timeout_seconds=0)
        def work() -> None: ...


# --- async functions are interrupted

CANCEL = Control("t", 2, ControlKind.CANCEL, "asked to stop by user:ann")


def test_an_async_function_is_interrupted_where_it_waits_and_then_cleans_up() -> None:
    ran: list[str] = []
    begun = threading.Event()

    @task(cleanup=lambda _context: ran.append("task"))
    async def work(context: TaskContext) -> None:
        begun.set()
        try:
            await asyncio.sleep(600)
        finally:
            ran.append("finally")

    context = a_context()
    threading.Thread(target=lambda: (begun.wait(10), context._hear(CANCEL))).start()
    ended = outcome(work, context)

    assert isinstance(ended, TaskCanceled)
    assert str(ended) == "asked to stop by user:ann"
    assert ran == ["finally", "task"]


def test_told_before_it_began_it_never_runs() -> None:
    @task
    async def work(context: TaskContext) -> None:
        raise AssertionError("it ran")

    context = a_context()
    context._hear(CANCEL)

    assert isinstance(outcome(work, context), TaskCanceled)


def test_an_async_function_that_finishes_all_the_same_has_its_result() -> None:
    @task
    async def work(context: TaskContext) -> str:
        context._hear(CANCEL)
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            return "finished"
        return "slept"

    assert outcome(work, a_context()) == "finished"


def test_the_clean_up_of_an_async_function_is_not_interrupted() -> None:
    ran: list[str] = []

    async def slow() -> None:
        await asyncio.sleep(0.05)
        ran.append("hook")

    @task
    async def work(context: TaskContext) -> int:
        context.on_cleanup(slow)
        context.on_cleanup(lambda: context._hear(CANCEL))
        return 1

    began = time.monotonic()
    assert outcome(work, a_context()) == 1
    assert ran == ["hook"]
    assert time.monotonic() - began < 9
