"""What happens before a function runs: its input, its secrets, its set-up; and where it works."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import BaseModel

from broker_engine.errors import BadRequest
from broker_engine.model.status import SETUP_STEP, StepStatus
from broker_engine.worker import Superseded, TaskContext, TaskFailed, TaskFailedForGood, TaskWorker, task
from broker_engine.worker.pools import Pools, _run_apart
from broker_engine.worker.setups import Beginning
from tests.unit.worker.test_steps import attempt
from tests.unit.worker.test_task import CONTEXT, WORK


class Order(BaseModel):
    number: int


def made(worker: TaskWorker, data: object = None, **fields: Any) -> tuple[Beginning, TaskContext]:
    work = WORK._replace(input=orjson.dumps({} if data is None else data), **fields)
    context = replace(CONTEXT)
    return Beginning(worker, work, context, {"TOKEN": "t"}.get), context


def connect(number: int, context: TaskContext) -> dict[str, object]:
    return {"number": number, "secret": context.secret("TOKEN")}


def boom() -> None:
    raise OSError("no route")


def test_what_the_set_up_returns_is_there_for_the_function() -> None:
    @task(setup=connect)
    def work(order: Order) -> None: ...

    beginning, context = made(work, {"number": 7}, secrets="TOKEN")

    assert beginning.arguments() == {"order": Order(number=7)}
    assert context.setup == {"number": 7, "secret": "t"}


def test_a_set_up_that_fails_is_a_retryable_failure_of_its_own() -> None:
    @task(setup=boom)
    def work() -> None: ...

    with pytest.raises(TaskFailed, match="the set-up failed: OSError: no route") as failed:
        made(work)[0].arguments()

    assert (failed.value.code, type(failed.value)) == ("INIT_SETUP", TaskFailed)


@pytest.mark.parametrize(("given", "code"), [(None, "INIT_SETUP"), ("DB_DOWN", "DB_DOWN")])
def test_a_set_up_may_say_how_it_fails(given: str | None, code: str) -> None:
    def refuse() -> None:
        raise TaskFailedForGood("no such shop", code=given)

    @task(setup=refuse)
    def work() -> None: ...

    with pytest.raises(TaskFailedForGood) as failed:
        made(work)[0].arguments()
    assert failed.value.code == code


def test_a_bad_input_is_told_before_the_set_up_runs() -> None:
    @task(setup=boom)
    def work(order: Order) -> None: ...

    with pytest.raises(TaskFailedForGood, match="number") as failed:
        made(work, {"number": "x"})[0].arguments()
    assert failed.value.code == "INIT_INPUT"


def test_a_missing_secret_is_told_before_the_set_up_runs() -> None:
    @task(setup=boom)
    def work() -> None: ...

    with pytest.raises(TaskFailed, match="no secret OTHER") as failed:
        made(work, secrets="OTHER")[0].arguments()
    assert failed.value.code == "INIT_SECRET"


def test_the_end_of_the_set_up_is_told() -> None:
    @task(setup=lambda: 1)
    def work() -> None: ...

    context, told = attempt()
    Beginning(work, WORK, context, {}.get).arguments()

    assert told.steps == [(SETUP_STEP, StepStatus.COMPLETED)]


def test_a_task_without_a_set_up_tells_nothing() -> None:
    @task
    def work() -> None: ...

    context, told = attempt()
    Beginning(work, WORK, context, {}.get).arguments()

    assert told == []


def test_who_was_superseded_meanwhile_does_not_begin() -> None:
    @task(setup=lambda: 1)
    def work() -> None: ...

    beginning, context = made(work)
    context._superseded = True

    with pytest.raises(Superseded):
        beginning.arguments()


async def opened(number: int) -> int:
    await asyncio.sleep(0)
    return number + 1


def plain(number: int) -> int:
    return number + 1


@pytest.mark.parametrize("setup", [opened, plain])
def test_an_async_task_may_have_either_kind(setup: Callable[[int], Any]) -> None:
    @task(setup=setup)
    async def work(number: int) -> None: ...

    beginning, context = made(work, {"number": 1})

    assert asyncio.run(beginning.arguments_async()) == {"number": 1}
    assert context.setup == 2


def test_an_async_set_up_that_fails_is_told_as_such() -> None:
    async def refuse() -> None:
        raise OSError

    @task(setup=refuse)
    async def work() -> None: ...

    with pytest.raises(TaskFailed) as failed:
        asyncio.run(made(work)[0].arguments_async())
    assert failed.value.code == "INIT_SETUP"


def test_a_set_up_that_its_pool_cannot_run_is_refused() -> None:
    with pytest.raises(BadRequest, match="needs pool='thread'"):
        task(name="apart", pool="process", setup=boom)(boom)
    with pytest.raises(BadRequest, match="make the task async"):
        task(name="plain", setup=opened)(boom)


class TestFolder:
    """``context.folder``"""

    def test_it_is_made_when_asked_for_and_removed_with_what_is_in_it(self) -> None:
        context = replace(CONTEXT)
        assert context._folder is None

        folder = context.folder
        (folder / "part.csv").write_text("x")
        assert context.folder == folder
        context.remove_folder()

        assert not folder.exists()

    def test_each_attempt_has_its_own(self) -> None:
        first, second = replace(CONTEXT), replace(CONTEXT)
        try:
            assert first.folder != second.folder
        finally:
            first.remove_folder()
            second.remove_folder()

    def test_a_process_removes_the_one_that_it_made(self) -> None:
        where: list[Path] = []

        def use(context: TaskContext) -> None:
            where.append(context.folder)

        _run_apart(use, {"context": pickle.loads(pickle.dumps(CONTEXT))})

        assert not where[0].exists()


def test_the_pool_runs_the_set_up_of_an_async_task() -> None:
    found: list[Any] = []
    done = threading.Event()

    @task(setup=opened)
    async def work(number: int, context: TaskContext) -> Any:
        return number, context.setup

    def tell(result: Any) -> None:
        found.append(result)
        done.set()

    pools = Pools([work])
    pools.submit(work, made(work, {"number": 1})[0], tell)
    assert done.wait(10)
    pools.close()

    assert found == [(1, 2)]
