"""What a running task knows about itself, and the errors it may raise to say how it failed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from broker_engine.errors import BrokerEngineError


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
