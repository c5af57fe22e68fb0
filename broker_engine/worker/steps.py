"""Steps of a running attempt: ``context.step`` and ``context.run_step`` end here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

import orjson

from broker_engine.errors import BrokerEngineError
from broker_engine.model.limits import MAX_PAYLOAD_BYTES
from broker_engine.model.status import StepStatus
from broker_engine.wire.resume import KnownStep, Resume
from broker_engine.worker.outcomes import Superseded, TaskCanceled, TaskFailed, TaskFailedForGood, TaskPaused
from broker_engine.worker.signals import Signals


class StepRetry(StrEnum):
    """Whether a step that did not complete may run again with the task's next attempt."""

    WITH_TASK = "WITH_TASK"
    #: For outside side effects that must not happen twice: when its outcome is unknown, the task fails for good.
    NEVER = "NEVER"


class StepRun:
    """One step in hand. Inside the ``with`` block set ``result``; a completed step is done and has its result."""

    def __init__(self, name: str, *, is_done: bool = False, result: Any = None) -> None:
        self.name = name
        self.is_done = is_done
        self.result = result


@contextmanager
def running_step(
    signals: Signals, resume: Resume, name: str, *, retry: StepRetry, input_size: int
) -> Iterator[StepRun]:
    """Tell the start and the end of a step around its body; hand the stored result over when it is completed."""
    known = resume.steps.get(name)
    if known is not None and known.status is StepStatus.COMPLETED:
        yield StepRun(name, is_done=True, result=known.result)
        return
    if known is not None and retry is StepRetry.NEVER:
        raise TaskFailedForGood(
            f"step {name} was {known.status.lower()} by an earlier attempt and may not run twice: look what it has "
            f"done, then finish the task by hand or start anew",
            code="STEP_OUTCOME_UNKNOWN",
        )
    must_arrive = retry is StepRetry.NEVER
    signals.step(name, StepStatus.STARTED, input_size=input_size, must_arrive=must_arrive)
    run = StepRun(name)
    try:
        yield run
        result = _json(name, run.result)
    except (Superseded, TaskCanceled, TaskPaused):
        raise
    except BaseException as error:  # a user's step may raise anything
        code = getattr(error, "code", None) or type(error).__name__
        signals.step(name, StepStatus.FAILED, error_code=code, reason=f"{type(error).__name__}: {error}")
        if must_arrive and not isinstance(error, TaskFailedForGood):
            raise TaskFailedForGood(f"step {name} failed and may not run twice: {error}", code=code) from error
        raise
    try:
        signals.step(name, StepStatus.COMPLETED, result=result, must_arrive=True)
    except BrokerEngineError as error:
        raise TaskFailed(str(error), code="STEP_NOT_STORED") from error
    resume.steps[name] = KnownStep(StepStatus.COMPLETED, orjson.loads(result))


def sizes(*values: Any) -> int:
    """How large an input is, as JSON; 0 where it has no JSON form (a connection, a file)."""
    try:
        return len(orjson.dumps(values))
    except TypeError:
        return 0


def _json(name: str, value: Any) -> bytes:
    try:
        data = orjson.dumps(value)
    except TypeError as error:
        raise TaskFailedForGood(
            f"the result of step {name} has no JSON form: {error}", code="INVALID_OUTPUT"
        ) from error
    if len(data) > MAX_PAYLOAD_BYTES:
        raise TaskFailedForGood(
            f"the result of step {name} has {len(data)} bytes, the limit is {MAX_PAYLOAD_BYTES}: store it elsewhere "
            f"and return a reference",
            code="PAYLOAD_TOO_LARGE",
        )
    return data
