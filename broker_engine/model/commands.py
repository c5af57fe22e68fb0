"""Commands: everything that wants a change, as read from ``<ns>.commands``.

One class per command. ``Command`` holds what all share; the shell fills ``at_ms`` (log time) and ``offset`` from the
record. A command never changes anything by itself: the decider looks at the state and answers with a Decision.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from broker_engine.model.slots import ReleaseSlot, RequestSlot, SlotStarted
from broker_engine.model.status import ReportStatus, StepStatus, WorkflowStatus


class IdempotencyStrategy(StrEnum):
    """What a start does when its workflow id exists already (the names are Conductor's)."""

    FAIL = "FAIL"
    RETURN_EXISTING = "RETURN_EXISTING"
    FAIL_ON_RUNNING = "FAIL_ON_RUNNING"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What every command carries.

    ``key`` is the record's key: the workflow id, or the name for a command about a definition.
    """

    key: str
    #: LogAppendTime of the record.
    at_ms: int = 0
    #: Offset of the record on ``commands``.
    offset: int = 0
    #: Client commands only: an id that makes a repeat harmless until ``expires_at_ms``.
    command_id: str | None = None
    expires_at_ms: int = 0
    #: Key of the answer on ``<ns>.replies``; None when nobody waits.
    reply_to: str | None = None
    #: Who asked: ``user:NAME``, ``worker:ID``, ``system``.
    operator: str = "system"


class Parent(NamedTuple):
    """The task of another workflow that a sub-workflow was started by; both empty for a failure workflow, which is no
    part of the failed one: that hears only of a start that is refused."""

    workflow_id: str
    reference: str
    task_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartWorkflow(Command):
    """Start a workflow by definition name (newest version when None) or by a definition of its own."""

    name: str
    version: int | None = None
    input: bytes = b"{}"
    correlation_id: str | None = None
    priority: int = 0
    created_by: str | None = None
    source: str | None = None
    idempotency_key: str | None = None
    strategy: IdempotencyStrategy = IdempotencyStrategy.FAIL
    #: JSON of a definition that is used instead of a registered one.
    definition: bytes | None = None
    #: Whom fairness and caps count it for.
    tenant: str | None = None
    #: A moment (epoch milliseconds) after which nothing of it is scheduled and at which it times out.
    deadline_at_ms: int | None = None
    #: Task type (or ``*``) to a list of domains, as a JSON object (decider.domains).
    task_to_domain: bytes | None = None
    #: The task whose sub-workflow this is; it hears of the end (and of a start that is refused).
    parent: Parent | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminateWorkflow(Command):
    """End a live workflow as TERMINATED; its live tasks are cancelled."""

    reason: str | None = None
    #: Whether what was completed is undone, where its definition says how.
    compensate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PushMessage(Command):
    """Send a message (a JSON object) to a live workflow; a task of it takes it."""

    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseWorkflow(Command):
    """End a quarantine; the commands kept meanwhile follow on the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCommand(Command):
    """A command about one attempt. A task id that is not the reference's latest belongs to the past."""

    reference: str
    task_id: str
    hand_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubWorkflowEnded(TaskCommand):
    """The sub-workflow of a task has ended, or could not start (FAILED)."""

    status: WorkflowStatus
    output: bytes | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinueLoop(TaskCommand):
    """A loop that has let others go first goes on behind this round."""

    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStarted(TaskCommand):
    """A worker took this hand-out. Accepted, its offset becomes the lease."""

    worker_id: str
    #: The worker runs only after a confirmation (its record was old).
    wants_confirmation: bool = False
    #: A set-up runs before the function: the task is STARTING until it is told as completed.
    prepares: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReported(TaskCommand):
    """A worker ended an attempt.

    ``lease`` None: not from a worker that started it (an operator finishes the task by hand).
    """

    status: ReportStatus
    lease: int | None = None
    sequence: int = 1
    worker_id: str | None = None
    output: bytes | None = None
    reason: str | None = None
    error_code: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskProgressed(TaskCommand):
    """A worker is not done yet: a heartbeat, or (``callback_after_ms`` > 0) the task is put away for so long.

    ``lease`` None as for TaskReported.
    """

    callback_after_ms: int = 0
    lease: int | None = None
    sequence: int = 1
    worker_id: str | None = None
    output: bytes | None = None
    reason: str | None = None
    #: What the function has stored of its own progress inside a step, as JSON.
    checkpoint: bytes | None = None
    progress_done: int | None = None
    progress_total: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStep(TaskCommand):
    """A step of a running attempt began or ended."""

    step: str
    status: StepStatus
    lease: int | None = None
    sequence: int = 1
    worker_id: str | None = None
    #: What a completed step returned, as JSON.
    result: bytes | None = None
    input_size: int = 0
    error_code: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtendLease(TaskCommand):
    """The attempt is alive: its response clock starts anew. ``lease`` None: a client asks, not its worker."""

    lease: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetCallbacks(Command):
    """Hand out now what waits for a callback in this workflow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptPaused(TaskCommand):
    """The worker of a running attempt has stopped at a safe point, as it was asked to."""

    lease: int
    sequence: int
    worker_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRequest(Command):
    """What an operator wants of a task; ``task_id`` None: of its latest attempt, whichever that is."""

    reference: str
    task_id: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelTask(TaskRequest):
    """End it as CANCELED: a waiting one at once, a running one at its next safe point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseTask(TaskRequest):
    """Hold it until it is resumed: a waiting one at once, a running one from its next safe point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeTask(TaskRequest):
    """Let a paused task go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseWorkflow(Command):
    """Hand nothing out any more until it is resumed; what was handed out may be done, and its results count."""

    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeWorkflow(Command):
    """Let a paused workflow go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayDue(TaskCommand):
    """A delay record came due."""

    due_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueReady(TaskCommand):
    """The queue of this task has changed: its topic exists now, or it was paused or resumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskForSlot(Command):
    """A decider tells the limiter that a hand-out waits. ``key`` of these three: names.LIMIT_KEY."""

    slot: RequestSlot


@dataclass(frozen=True, slots=True, kw_only=True)
class TellSlotStarted(Command):
    """A decider tells the limiter that a granted hand-out was started."""

    slot: SlotStarted


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveSlotBack(Command):
    """A decider tells the limiter that a hand-out has ended or is void."""

    slot: ReleaseSlot


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotGranted(TaskCommand):
    """The limiter lets a task be handed out, under the number that it was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantExpired(TaskCommand):
    """The limiter has heard of no start of a granted hand-out in time: what became of it?"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveTask(TaskCommand):
    """Put a waiting task on the queue of another domain, and leave it there."""

    domain: str
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RerouteTask(TaskCommand):
    """The domain that a task waits in has no worker, another one of its list has (D13)."""

    domain: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLost(Command):
    """A worker was not heard of for ten seconds, which ended at ``lost_at_ms``. On the log it concerns the partition
    that it stands in (its key says nothing more); the shell decides it for every workflow of the worker there."""

    worker_id: str
    lost_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick(Command):
    """Nothing but its log time: lets deadlines of a quiet partition fire."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineReached(Command):
    """The earliest deadline of a workflow has been passed by the log time. Made by the shell, never a record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PutTaskDef(Command):
    """Register a task definition. ``is_update``: it must exist already."""

    document: bytes
    is_update: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTaskDef(Command):
    """Remove a task definition; workflows that started with it keep their copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PutWorkflowDef(Command):
    """Register a workflow definition version. Without ``overwrite`` an existing version is a conflict."""

    document: bytes
    overwrite: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteWorkflowDef(Command):
    """Remove a version of a workflow definition."""

    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StopStarts(Command):
    """Refuse new workflows, or pause a queue, from now on; ``key`` says which (model.stops). What runs goes on."""

    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowStarts(Command):
    """End such a stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetCap(Command):
    """At most so many tasks in progress from now on; ``key`` says which (model.caps.cap_key)."""

    #: JSON: ``{"limit": 20}``.
    document: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearCap(Command):
    """Remove such a cap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PutSchedule(Command):
    """Register a cron schedule; ``key`` is its name."""

    #: JSON (decider.schedules.SCHEDULE_FIELDS).
    document: bytes
    overwrite: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteSchedule(Command):
    """Remove a cron schedule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseSchedule(Command):
    """Start nothing by this schedule until it is resumed."""

    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeSchedule(Command):
    """Go on with the first moment from now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleDue(Command):
    """A moment of a schedule has come."""

    generation: int
    due_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRefused(Command):
    """A workflow that a schedule wanted to start was refused."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryWorkflow(Command):
    """Try again what failed in a workflow that has ended."""

    #: Failed sub-workflows go on where they failed, too, instead of being started anew.
    resume_children: bool = False
    #: Set by a parent whose task waits for the end.
    parent: Parent | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RerunWorkflow(Command):
    """Run an ended workflow again from a task on (None: from the beginning)."""

    task_id: str | None = None
    #: Of the task, when an earlier attempt than the latest may be meant.
    reference: str | None = None
    #: JSON objects in place of what the task, and the workflow, had.
    task_input: bytes | None = None
    workflow_input: bytes | None = None
    correlation_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartWorkflow(Command):
    """Run an ended workflow again from the beginning."""

    #: By the newest registered definition instead of the one it ran by.
    use_latest: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildRunsAgain(Command):
    """A sub-workflow that had ended badly runs again; its parent waits for it again."""

    reference: str
    child_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipTask(Command):
    """Do not run a task that has not begun, when it is reached."""

    reference: str
    #: JSON objects.
    input: bytes | None = None
    output: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateVariables(Command):
    """Put these values (a JSON object) into a workflow's variables."""

    variables: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveWorkflow(Command):
    """Forget an ended workflow before its retention ends."""


#: Operations on workflows that have ended. All but a restart ask about their tasks.
TakeUp = RetryWorkflow | RerunWorkflow | ChildRunsAgain
Operation = TakeUp | RestartWorkflow | SkipTask | UpdateVariables

#: The closed list of records on ``commands``, by the name stored in the record.
AnyCommand = (
    StartWorkflow
    | TerminateWorkflow
    | ReleaseWorkflow
    | TaskStarted
    | TaskReported
    | TaskProgressed
    | TaskStep
    | ExtendLease
    | ResetCallbacks
    | AttemptPaused
    | CancelTask
    | PauseTask
    | ResumeTask
    | PauseWorkflow
    | ResumeWorkflow
    | DelayDue
    | QueueReady
    | SubWorkflowEnded
    | ContinueLoop
    | PushMessage
    | AskForSlot
    | TellSlotStarted
    | GiveSlotBack
    | SlotGranted
    | GrantExpired
    | MoveTask
    | RerouteTask
    | WorkerLost
    | Tick
    | DeadlineReached
    | PutTaskDef
    | DeleteTaskDef
    | PutWorkflowDef
    | DeleteWorkflowDef
    | StopStarts
    | AllowStarts
    | SetCap
    | ClearCap
    | PutSchedule
    | DeleteSchedule
    | PauseSchedule
    | ResumeSchedule
    | ScheduleDue
    | ScheduleRefused
    | RetryWorkflow
    | RerunWorkflow
    | RestartWorkflow
    | ChildRunsAgain
    | SkipTask
    | UpdateVariables
    | RemoveWorkflow
)

#: Decided by the limiter, not about a workflow.
ForLimiter = AskForSlot | TellSlotStarted | GiveSlotBack
