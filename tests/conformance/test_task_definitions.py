"""The definitions that users start from register or are refused, and behave as they say (A15)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest

from broker_engine.errors import BadRequest
from broker_engine.model.state import TaskState
from broker_engine.model.status import TaskStatus
from broker_engine.testing import Engine
from broker_engine.wire.records import ScheduledTask
from broker_engine.worker import TaskFailed

FOLDER = Path(__file__).parents[1] / "support" / "task_defs"


def definition(name: str) -> dict[str, Any]:
    document: dict[str, Any] = orjson.loads((FOLDER / f"{name}.json").read_bytes())
    return document


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine(partitions=2) as engine:
        yield engine


def fails(_input: object, _work: ScheduledTask) -> dict[str, Any]:
    raise TaskFailed("not today")


def ended(engine: Engine, workflow_id: str, seconds: float) -> tuple[TaskState, ...]:
    """Every attempt of a task after so much time; the workflow has ended."""
    engine.run(seconds=seconds)
    view = engine.workflow(workflow_id)
    assert view.workflow.status.is_terminal
    return view.tasks


def waits(attempts: tuple[TaskState, ...]) -> list[int]:
    """From each failure to the next hand-out, in milliseconds."""
    return [(later.handed_out_at_ms or 0) - (earlier.ended_at_ms or 0) for earlier, later in pairwise(attempts)]


def test_encode_task_is_refused_with_two_violations(engine: Engine) -> None:
    with pytest.raises(BadRequest) as refused:
        engine.register_task(definition("encode_task"))

    body = orjson.loads(str(refused.value))
    assert [violation["path"] for violation in body["validationErrors"]] == ["responseTimeoutSeconds", "timeoutSeconds"]


def test_encode_task_fixed_waits_10_20_40_seconds(engine: Engine) -> None:
    engine.register_task(definition("encode_task_fixed"))
    engine.serve("encode_task_fixed", fails)

    found = waits(ended(engine, engine.start_task("encode_task_fixed"), 150))

    assert [wait // 10_000 * 10_000 for wait in found] == [10_000, 20_000, 40_000]
    assert all(wait - base <= 5_000 for wait, base in zip(found, (10_000, 20_000, 40_000), strict=True))


def test_call_payment_api_waits_2_4_8_16_32_seconds(engine: Engine) -> None:
    engine.register_task(definition("call_payment_api"))
    engine.serve("call_payment_api", fails)

    found = waits(ended(engine, engine.start_task("call_payment_api"), 120))

    assert len(found) == 5
    for wait, seconds in zip(found, (2, 4, 8, 16, 32), strict=True):
        assert seconds * 1_000 <= wait <= seconds * 1_000 + 2_000


def test_call_payment_api_retries_after_a_time_out(engine: Engine) -> None:
    """Policy RETRY: a lease of 30 s that runs out costs one attempt, not the workflow."""
    engine.register_task(definition("call_payment_api"))
    engine.serve("call_payment_api", takes_ms=lambda work: 0 if work.attempt else 60_000)

    first, second = ended(engine, engine.start_task("call_payment_api"), 60)

    assert (first.status, second.status) == (TaskStatus.TIMED_OUT, TaskStatus.COMPLETED)
    assert (first.ended_at_ms or 0) - (first.started_at_ms or 0) == 30_000


@pytest.mark.parametrize("takes_ms", [0, 9_000])
def test_process_order_starts_nothing_after_its_budget(engine: Engine, takes_ms: int) -> None:
    engine.register_task(definition("process_order"))
    engine.serve("process_order", fails, takes_ms=lambda _: takes_ms)

    attempts = ended(engine, engine.start_task("process_order"), 200)

    begin = attempts[0].first_scheduled_at_ms
    assert all((task.handed_out_at_ms or 0) - begin < 120_000 for task in attempts)
    assert set(waits(attempts)) == {5_000}
    if takes_ms:  # every 14 s: the ninth begins at 112 s, another would at 126 s
        assert len(attempts) == 9
        assert attempts[-1].reason_code == "TOTAL_TIMEOUT"
    else:  # all ten retries fit in
        assert len(attempts) == 11


def test_send_notification_spreads_failures_that_come_together(engine: Engine) -> None:
    engine.register_task(definition("send_notification") | {"concurrentExecLimit": 0, "retryCount": 1})
    engine.serve("send_notification", fails)
    ids = [engine.submit_task("send_notification", workflow_id=f"w{number}") for number in range(300)]
    engine.run(seconds=10)

    found = [wait for workflow_id in ids for wait in waits(engine.workflow(workflow_id).tasks)]

    assert len(found) == 300
    assert 1_000 <= min(found) <= 1_100
    assert 3_900 <= max(found) <= 4_000
    in_each = [sum(1_000 + 500 * part <= wait < 1_500 + 500 * part for wait in found) for part in range(6)]
    assert min(in_each) >= 25, "half of what an even spread would give"


def test_send_notification_bounded_waits_5_10_20_seconds(engine: Engine) -> None:
    engine.register_task(definition("send_notification_bounded"))
    engine.serve("send_notification_bounded", fails)

    found = waits(ended(engine, engine.start_task("send_notification_bounded"), 60))

    assert [wait // 1_000 for wait in found] == [5, 10, 20]
    assert all(wait % 1_000 <= 500 for wait in found)


@pytest.mark.parametrize(
    ("worker", "code", "after_ms"),
    [
        (lambda engine: None, "POLL_TIMEOUT", 60_000),
        (
            lambda engine: engine.serve("send_notification_bounded", takes_ms=lambda _: 25_000),
            "RESPONSE_TIMEOUT",
            20_000,
        ),
    ],
    ids=["nobody polls", "the lease runs out"],
)
def test_send_notification_bounded_times_out(
    engine: Engine, worker: Callable[[Engine], object], code: str, after_ms: int
) -> None:
    engine.register_task(definition("send_notification_bounded"))
    worker(engine)

    first, *_ = ended(engine, engine.start_task("send_notification_bounded"), 200)

    assert first.reason_code == code
    assert (first.ended_at_ms or 0) - (first.started_at_ms or first.handed_out_at_ms or 0) == after_ms


def test_send_notification_bounded_ends_the_workflow_when_nobody_polls(engine: Engine) -> None:
    engine.register_task(definition("send_notification_bounded"))

    (only,) = ended(engine, workflow_id := engine.start_task("send_notification_bounded"), 61)

    assert only.status is TaskStatus.TIMED_OUT
    assert engine.workflow(workflow_id).workflow.status == "TIMED_OUT"
