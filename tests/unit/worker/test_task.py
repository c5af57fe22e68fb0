"""How a function takes its input and gives its output."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from pydantic import BaseModel

from broker_engine.errors import BadRequest
from broker_engine.model.limits import MAX_PAYLOAD_BYTES
from broker_engine.model.status import ReportStatus
from broker_engine.wire.records import ScheduledTask
from broker_engine.worker import TaskCanceled, TaskContext, TaskFailed, TaskFailedForGood, task
from broker_engine.worker.task import output_bytes
from broker_engine.worker.worker import _outcome

CONTEXT = TaskContext(
    task_id="t",
    workflow_id="w",
    workflow_name="n",
    reference="r",
    task_type="x",
    domain="default",
    run=0,
    attempt=1,
    lease=7,
    correlation_id=None,
)
WORK = ScheduledTask(
    task_id="t",
    workflow_id="w",
    workflow_name="n",
    reference="r",
    task_type="x",
    domain="default",
    partition=0,
    run=0,
    attempt=1,
    hand_out=2,
    priority=0,
    input=b"{}",
    response_timeout_ms=1,
    timeout_ms=0,
    scheduled_at_ms=0,
)


class Order(BaseModel):
    number: int
    note: str = ""


def outcome(result: Any) -> Any:
    return _outcome(WORK, CONTEXT, result, "k")


def run(worker: Any, data: object) -> Any:
    return worker.function(**worker.arguments(orjson.dumps(data), CONTEXT))


def test_parameters_are_taken_by_name_and_checked() -> None:
    @task
    def add(a: int, b: int = 5) -> int:
        return a + b

    assert run(add, {"a": "1", "other": True}) == 6
    with pytest.raises(TaskFailedForGood, match=r"a: .*valid integer"):
        run(add, {"a": "x"})
    with pytest.raises(TaskFailedForGood, match="a: Field required"):
        run(add, {})


def test_a_model_or_a_dict_takes_the_whole_input() -> None:
    @task
    def of_model(order: Order) -> Order:
        return order

    @task
    def of_dict(data: dict[str, Any]) -> dict[str, Any]:
        return data

    @task
    def of_anything(data):  # type: ignore[no-untyped-def]  # users write this
        return data

    assert run(of_model, {"number": 3}) == Order(number=3)
    assert run(of_dict, {"x": 1}) == run(of_anything, {"x": 1}) == {"x": 1}
    with pytest.raises(TaskFailedForGood, match="number"):
        run(of_model, {})


def test_the_context_is_given_to_who_asks_for_it() -> None:
    @task
    def attempt(context: TaskContext) -> int:
        return context.attempt

    @task
    def both(name: str, context: TaskContext, **rest: Any) -> list[Any]:
        return [name, context.lease, rest]

    assert run(attempt, {"ignored": 1}) == 1
    assert run(both, {"name": "n", "more": 2}) == ["n", 7, {"more": 2}]


def test_a_task_can_still_be_called_as_a_function() -> None:
    @task(name="other")
    def double(x: int) -> int:
        return 2 * x

    assert double(4) == 8
    assert double.name == "other"


def test_what_cannot_work_is_refused_where_it_is_written() -> None:
    with pytest.raises(BadRequest, match="concurrency"):
        task(concurrency=0)(lambda: None)

    async def later() -> None: ...

    with pytest.raises(BadRequest, match="asyncio"):
        task(pool="process")(later)
    assert task(later).pool == "asyncio"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, {}),
        ({"a": 1}, {"a": 1}),
        (3, {"result": 3}),
        ("x", {"result": "x"}),
        ([1], {"result": [1]}),
        (Order(number=1), {"number": 1, "note": ""}),
        ({"order": Order(number=1)}, {"order": {"number": 1, "note": ""}}),
        ({1: 2}, {"1": 2}),
    ],
)
def test_what_a_function_returns_becomes_its_output(value: object, expected: object) -> None:
    assert orjson.loads(output_bytes(value)) == expected


def test_the_outcome_says_how_it_ended_and_whose_fault_it_was() -> None:
    done = outcome({"a": 1})
    assert (done.status, done.output, done.lease, done.hand_out) == (ReportStatus.COMPLETED, b'{"a":1}', 7, 2)

    failed = outcome(TaskFailed("busy", code="BUSY", output={"seen": 3}))
    assert (failed.status, failed.reason, failed.error_code) == (ReportStatus.FAILED, "busy", "BUSY")
    assert failed.output == b'{"seen":3}'

    raised = outcome(KeyError("k"))
    assert (raised.status, raised.reason, raised.error_code) == (ReportStatus.FAILED, "KeyError: 'k'", "KeyError")

    assert outcome(TaskFailedForGood("no")).status is ReportStatus.FAILED_WITH_TERMINAL_ERROR
    assert outcome(TaskCanceled("stop")).status is ReportStatus.CANCELED


def test_an_output_without_json_form_or_over_the_limit_is_a_final_failure() -> None:
    odd = outcome({"x": object()})
    assert (odd.status, odd.error_code) == (ReportStatus.FAILED_WITH_TERMINAL_ERROR, "INVALID_OUTPUT")

    large = outcome({"x": "y" * MAX_PAYLOAD_BYTES})
    assert (large.status, large.error_code) == (ReportStatus.FAILED_WITH_TERMINAL_ERROR, "PAYLOAD_TOO_LARGE")
    assert large.output is None
    assert str(MAX_PAYLOAD_BYTES) in (large.reason or "")
