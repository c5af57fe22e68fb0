"""What a task function raises to say how it ends, other than by returning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker_engine.errors import BadRequest, BrokerEngineError

#: A callback is a matter of days, not of years.
MAX_CALLBACK_SECONDS = 2**31 - 1


class TaskFailed(BrokerEngineError):
    """The task failed; it is retried as its definition says."""

    def __init__(self, message: str, *, code: str | None = None, output: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.output = output


class TaskFailedForGood(TaskFailed):
    """The task failed and must not be retried (FAILED_WITH_TERMINAL_ERROR)."""


class TaskCanceled(BrokerEngineError):
    """The task ends as CANCELED: raised at a safe point when somebody asked for it (let it pass, after closing what is
    open), or by the function itself."""


class TaskPaused(BrokerEngineError):
    """Somebody paused the task. Raised at a safe point: let it pass. The same attempt goes on when it is resumed; its
    completed steps and its checkpoint are kept."""


class Superseded(BrokerEngineError):
    """Another worker has taken over this task; whatever this run still reports is ignored."""


class InProgress(BrokerEngineError):
    """The task is not done: it gives its slot back and runs again later. This uses up no attempt.

    >>> raise InProgress(callback_after_seconds=30, output={"job": 7})        # doctest: +SKIP

    Args:
        callback_after_seconds: how long it goes away for; 0 hands it out again at once.
        output: merged by key into what earlier heartbeats and callbacks have stored.
        reason: kept with the task.
    """

    def __init__(
        self, *, callback_after_seconds: float, output: Mapping[str, Any] | None = None, reason: str | None = None
    ) -> None:
        if not 0 <= callback_after_seconds <= MAX_CALLBACK_SECONDS:
            raise BadRequest(
                f"callback_after_seconds must be 0 to {MAX_CALLBACK_SECONDS}, not {callback_after_seconds}"
            )
        super().__init__(reason or f"in progress, back in {callback_after_seconds:g} s")
        self.callback_after_seconds = callback_after_seconds
        self.output = output
        self.reason = reason
