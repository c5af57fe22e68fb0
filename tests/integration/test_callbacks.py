"""Callbacks and heartbeats on real Kafka, with the SDK's worker and client."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from broker_engine.worker import InProgress, TaskContext, task
from tests.support.roles import crowded, running_engine, until

pytestmark = pytest.mark.kafka

CALLED: list[float] = []


@task(name="asks-twice", retryCount=0)
def asks_twice() -> dict[str, int]:
    CALLED.append(time.monotonic())
    if len(CALLED) == 1:
        raise InProgress(callback_after_seconds=2, output={"job": 7})
    return {"done": 1}


@task(name="long", retryCount=0, responseTimeoutSeconds=3)
def long() -> None:
    time.sleep(5)


@task(name="waits-long", retryCount=0)
def waits_long(context: TaskContext) -> None:
    if context.lease:
        raise InProgress(callback_after_seconds=3_600)


def test_a_callback_of_2_s_comes_back_and_a_long_function_keeps_its_lease(
    bootstrap: str, namespace: str, tmp_path: Path
) -> None:
    with running_engine(bootstrap, namespace, tmp_path, partitions=2) as engine:
        engine.work(asks_twice, long, waits_long)
        until(lambda: "waits-long" in engine.client.task_definitions(), what="the registrations")
        kept, called = engine.client.start_task("long"), engine.client.start_task("asks-twice")
        put_away = engine.client.start_task("waits-long")

        (back,) = engine.client.wait(called, 60).tasks
        (alive,) = engine.client.wait(kept, 60).tasks
        until(lambda: engine.client.get(put_away).tasks[0].waiting_for == "delay", what="the long callback")
        engine.client.reset_callbacks(put_away)
        until(lambda: engine.client.get(put_away).tasks[0].poll_count == 2, what="the reset callback")

    assert (back.status, back.attempt, back.poll_count, back.hand_out) == ("COMPLETED", 0, 2, 2)
    assert 2.0 <= CALLED[1] - CALLED[0] <= 2.0 + crowded()
    assert (alive.status, alive.attempt, alive.poll_count) == ("COMPLETED", 0, 1)
