"""What a running task knows about itself, and the errors it may raise to say how it failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from broker_engine.errors import BadRequest, BrokerEngineError
from broker_engine.worker.signals import Signals

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
    """The task ends as CANCELED by its own decision."""


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


@dataclass(slots=True, kw_only=True)
class TaskContext:
    """The attempt that is running. Ask for it by annotating a parameter with this type."""

    task_id: str
    workflow_id: str
    workflow_name: str
    reference: str
    task_type: str
    domain: str
    run: int
    #: 0 for the first attempt.
    attempt: int
    #: Fencing token: grows with every start of this task; pass it to systems that can refuse older ones.
    lease: int
    correlation_id: str | None
    _superseded: bool = field(default=False, repr=False)
    _signals: Signals | None = field(default=None, repr=False, compare=False)

    @property
    def is_superseded(self) -> bool:
        """Whether another worker has taken over (the response time-out passed, or the process seemed lost)."""
        return self._superseded

    def check(self) -> None:
        """A safe point: raises when going on is of no use.

        Raises:
            Superseded: another worker has taken over.
        """
        if self._superseded:
            raise Superseded

    def heartbeat(self, output: Mapping[str, Any] | None = None) -> None:
        """Tell that the task is alive: its response clock starts anew. Returns at once.

        Args:
            output: interim output, merged by key; the final result replaces it.

        Raises:
            Superseded: another worker has taken over.
            BadRequest: called in a process of the process pool, or the output is too large.
        """
        self.check()
        self._connected().heartbeat(None if output is None else orjson.dumps(dict(output)))

    def extend_lease(self) -> None:
        """Start the response clock anew and nothing else. Returns at once.

        Raises:
            Superseded: another worker has taken over.
            BadRequest: called in a process of the process pool.
        """
        self.check()
        self._connected().extend_lease()

    def _connected(self) -> Signals:
        if self._signals is None:
            raise BadRequest(
                "a task in the process pool cannot send signs of life: give it a responseTimeoutSeconds that covers "
                "it, or use pool='thread'"
            )
        return self._signals
