"""What a decision is: the new state, the transitions that led there, and what the shell is to write.

Outputs are imperative and closed; the shell turns each into records of one transaction.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from broker_engine.model.commands import (
    ChildRunsAgain,
    ContinueLoop,
    RetryWorkflow,
    ScheduleRefused,
    StartWorkflow,
    SubWorkflowEnded,
    TerminateWorkflow,
)
from broker_engine.model.slots import SlotMessage
from broker_engine.model.state import Execution, Step, TaskState
from broker_engine.model.status import Phase, ReasonCode, TaskStatus, WorkflowStatus


class Transition(NamedTuple):
    """One step of a task or (``reference`` None) of the workflow, as told on the event topic."""

    #: Conductor's word for where it arrived.
    status: TaskStatus | WorkflowStatus
    reason_code: ReasonCode
    task_id: str | None = None
    reference: str | None = None
    attempt: int = 0
    from_phase: Phase | None = None
    to_phase: Phase | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Put this task on its queue."""

    task: TaskState
    response_timeout_ms: int
    timeout_ms: int
    #: Names of secrets that the worker resolves.
    secrets: tuple[str, ...] = ()
    #: The start has to be on the log before this moment; None for a task without limits.
    start_before_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """Send DelayDue for this attempt at ``due_at_ms``, not before."""

    reference: str
    task_id: str
    hand_out: int
    due_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to a client command, as an HTTP status and a sentence or JSON."""

    reply_to: str
    command_id: str
    status: int
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirm:
    """Tell a worker whether its start counts. Rejected: it must not run (or not go on)."""

    worker_id: str
    task_id: str
    hand_out: int
    lease: int
    accepted: bool
    reason: str = ""
    #: What an earlier start of the same hand-out has done and the schedule record does not know.
    steps: tuple[Step, ...] = ()
    checkpoint: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteDefinition:
    """Store a definition (``document`` None: remove it)."""

    #: ``task``, ``workflow``, ``stop``, ``cap`` or ``schedule``.
    kind: str
    key: str
    document: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberStart:
    """Keep (name, idempotency key) → workflow id and run, longer than the workflow itself."""

    workflow_id: str
    name: str
    idempotency_key: str
    run: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TellLimiter:
    """Tell the limiter about a hand-out of a limited task."""

    slot: SlotMessage


class ControlKind(StrEnum):
    """What a worker is told about an attempt that it runs."""

    CANCEL = "CANCEL"
    PAUSE = "PAUSE"
    #: The attempt has ended without it, or another worker has it.
    SUPERSEDED = "SUPERSEDED"


@dataclass(frozen=True, slots=True, kw_only=True)
class TellWorker:
    """Tell whoever has this hand-out to stop; ``kind`` None: what was told is over."""

    task_id: str
    domain: str
    hand_out: int
    kind: ControlKind | None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Send a command to another workflow, or to this one for a later turn, in the same transaction."""

    command: (
        StartWorkflow
        | TerminateWorkflow
        | SubWorkflowEnded
        | ContinueLoop
        | ScheduleRefused
        | RetryWorkflow
        | ChildRunsAgain
    )


Output = Schedule | Delay | Answer | Confirm | WriteDefinition | RememberStart | TellLimiter | TellWorker | Send


class Decision(NamedTuple):
    """The answer to one command.

    ``execution`` None: there is no such workflow, and none was made. ``changed_tasks`` holds every task state to write,
    in order (an attempt that moves twice in one decision stands twice). ``ignored`` says why nothing was changed.
    """

    execution: Execution | None
    workflow_changed: bool = False
    changed_tasks: tuple[TaskState, ...] = ()
    transitions: tuple[Transition, ...] = ()
    outputs: tuple[Output, ...] = ()
    ignored: str | None = None
    #: The workflow is to be forgotten, with everything that is stored of it.
    forgets: bool = False
    #: Rows that are not kept in memory any more (rounds of loops that are over).
    left: tuple[TaskState, ...] = ()
