"""Where functions run, and in which order."""

from __future__ import annotations

import threading
from dataclasses import replace

import orjson

from broker_engine.worker import TaskWorker, task
from broker_engine.worker.pools import Pools
from broker_engine.worker.secrets import resolver
from broker_engine.worker.setups import Beginning
from tests.unit.worker.test_task import CONTEXT, WORK


def beginning(worker: TaskWorker, **given: object) -> Beginning:
    return Beginning(worker, WORK._replace(input=orjson.dumps(given)), replace(CONTEXT), resolver({}))


def test_of_those_that_wait_for_a_thread_the_highest_priority_runs_first_and_the_oldest_of_one() -> None:
    ran: list[str] = []
    go, is_blocked, all_done = threading.Event(), threading.Event(), threading.Event()

    @task(concurrency=1)
    def work(name: str) -> None:
        if name == "first":
            is_blocked.set()
            go.wait(10)
        ran.append(name)

    pools = Pools([work])
    for name, priority in (("first", 0), ("a", 0), ("b", 5), ("c", 99), ("d", 5)):
        done = all_done.set if name == "a" else lambda: None
        pools.submit(work, beginning(work, name=name), lambda _result, done=done: done(), priority=priority)
        if name == "first":
            assert is_blocked.wait(10)
    assert pools.has_backlog()
    go.set()

    assert all_done.wait(10)
    assert ran == ["first", "c", "b", "d", "a"]
    pools.close()
