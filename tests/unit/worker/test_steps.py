"""``context.step`` and ``run_step``: completed steps are skipped, their results handed over, failures told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from broker_engine.model.commands import AnyCommand, TaskProgressed, TaskStep
from broker_engine.model.state import Step
from broker_engine.model.status import StepStatus
from broker_engine.wire.records import ScheduledTask
from broker_engine.wire.resume import decode_resume, encode_resume
from broker_engine.worker import StepRetry, Superseded, TaskContext, TaskFailed, TaskFailedForGood
from broker_engine.worker.signals import Signals
from tests.unit.worker.test_task import CONTEXT, WORK


class Told(list[AnyCommand]):
    """Commands that arrive at once."""

    def take(self, _work: ScheduledTask, command: AnyCommand, on_arrival: Callable[[], None] | None = None) -> None:
        self.append(command)
        if on_arrival is not None:
            on_arrival()

    @property
    def steps(self) -> list[tuple[str, StepStatus]]:
        return [(command.step, command.status) for command in self if isinstance(command, TaskStep)]


def attempt(*known: Step, checkpoint: bytes | None = None) -> tuple[TaskContext, Told]:
    """A running attempt that knows of these steps."""
    told = Told()
    signals = Signals(WORK, 7, "worker-1", told.take)
    resume = decode_resume(encode_resume(known, checkpoint) if known or checkpoint else None)
    return replace(CONTEXT, _signals=signals, _resume=resume), told


def known(name: str, status: StepStatus, result: bytes | None = None) -> Step:
    return Step(name=name, status=status, started_at_ms=0, result=result)


def never() -> None:
    raise AssertionError("a completed step must not run again")


def test_a_step_is_told_before_and_after_with_what_it_returned() -> None:
    context, told = attempt()

    assert context.run_step("PARSE", lambda rows: {"rows": rows}, 3) == {"rows": 3}

    begun, ended = told
    assert isinstance(begun, TaskStep)
    assert isinstance(ended, TaskStep)
    assert told.steps == [("PARSE", StepStatus.STARTED), ("PARSE", StepStatus.COMPLETED)]
    assert (begun.input_size > 0, ended.result, begun.sequence, ended.sequence) == (True, b'{"rows":3}', 1, 2)


def test_a_completed_step_hands_its_result_over_and_does_not_run() -> None:
    context, told = attempt(known("PARSE", StepStatus.COMPLETED, b'{"rows":3}'))

    assert context.run_step("PARSE", never) == {"rows": 3}
    assert told == []


def test_a_step_runs_once_within_an_attempt_too() -> None:
    context, told = attempt()
    context.run_step("PARSE", lambda: 3)

    assert context.run_step("PARSE", never) == 3
    assert len(told) == 2


def test_the_block_form_says_whether_it_is_done() -> None:
    context, told = attempt(known("PARSE", StepStatus.COMPLETED, b"3"))
    with context.step("PARSE") as parse:
        assert (parse.is_done, parse.result) == (True, 3)
    with context.step("UPSERT") as upsert:
        assert not upsert.is_done
        upsert.result = 4

    assert told.steps == [("UPSERT", StepStatus.STARTED), ("UPSERT", StepStatus.COMPLETED)]


def test_an_async_function_is_a_step_too() -> None:
    context, told = attempt()

    async def parse(rows: int) -> int:
        return rows + 1

    assert asyncio.run(context.run_step_async("PARSE", parse, 3)) == 4
    assert told.steps[-1] == ("PARSE", StepStatus.COMPLETED)


def test_a_failed_step_is_told_with_its_code_and_fails_the_task() -> None:
    context, told = attempt()

    def report() -> None:
        raise TaskFailed("busy", code="HTTP_503")

    with pytest.raises(TaskFailed, match="busy"):
        context.run_step("REPORT", report)

    ended = told[-1]
    assert isinstance(ended, TaskStep)
    assert (ended.status, ended.error_code) == (StepStatus.FAILED, "HTTP_503")


@pytest.mark.parametrize("status", [StepStatus.STARTED, StepStatus.FAILED])
def test_what_may_never_run_twice_fails_for_good_when_its_outcome_is_unknown(status: StepStatus) -> None:
    context, told = attempt(known("CHARGE", status))

    with pytest.raises(TaskFailedForGood) as refused:
        context.run_step("CHARGE", never, retry=StepRetry.NEVER)

    assert refused.value.code == "STEP_OUTCOME_UNKNOWN"
    assert told == []
    assert context.run_step("OTHER", lambda: 1) == 1


def test_what_may_never_run_twice_and_fails_ends_the_task() -> None:
    context, _ = attempt()

    def charge() -> None:
        raise TaskFailed("no answer", code="TIMEOUT")

    with pytest.raises(TaskFailedForGood) as refused:
        context.run_step("CHARGE", charge, retry=StepRetry.NEVER)

    assert refused.value.code == "TIMEOUT"


def test_a_result_without_json_form_fails_the_step() -> None:
    context, told = attempt()

    with pytest.raises(TaskFailedForGood, match="no JSON form"):
        context.run_step("PARSE", object)

    assert told.steps[-1] == ("PARSE", StepStatus.FAILED)


def test_no_step_begins_when_another_worker_has_taken_over() -> None:
    context, told = attempt()
    context._superseded = True

    with pytest.raises(Superseded):
        context.run_step("PARSE", never)
    assert told == []


def test_progress_is_told_at_once_then_gathered_and_never_lost() -> None:
    context, told = attempt()
    with context.step("UPSERT"):
        for done in range(1, 101):
            context.progress(done, 100)
            context.checkpoint({"row": done})

    progress = [command for command in told if isinstance(command, TaskProgressed)]
    assert len(progress) <= 3
    assert (progress[0].progress_done, progress[-1].progress_done, progress[-1].checkpoint) == (1, 100, b'{"row":100}')
    assert isinstance(told[-1], TaskStep), "the last progress comes before the end of the step"
    assert [c.sequence for c in told if isinstance(c, TaskProgressed | TaskStep)] == list(range(1, len(told) + 1))


def test_a_later_attempt_sees_the_checkpoint() -> None:
    context, _ = attempt(checkpoint=b'{"row":40}')

    assert context.saved_checkpoint == {"row": 40}
    assert attempt()[0].saved_checkpoint is None


def test_what_is_carried_on_survives_its_encoding() -> None:
    steps = (known("A", StepStatus.COMPLETED, b'{"a":[1,2]}'), known("B", StepStatus.STARTED))
    found: Any = decode_resume(encode_resume(steps, b"[1]"))

    assert found.steps["A"].result == {"a": [1, 2]}
    assert found.steps["B"].status is StepStatus.STARTED
    assert found.checkpoint == [1]
