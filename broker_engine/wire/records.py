"""The records that have no class in ``model/``: what stands on the topics beside states and events.

Named tuples in the order of their schemas, like the states.
"""

from __future__ import annotations

from typing import NamedTuple

from broker_engine.model.commands import IdempotencyStrategy
from broker_engine.model.decision import ControlKind, Transition
from broker_engine.model.slots import Stage
from broker_engine.model.status import ReportStatus, StepStatus, WorkflowStatus
from broker_engine.wire.kinds import CommandType, ReplyKind


class CommandRecord(NamedTuple):
    """Every command in one flat record; which fields mean something depends on ``type`` (wire/commands.py)."""

    type: CommandType
    key: str
    command_id: str | None = None
    expires_at_ms: int = 0
    reply_to: str | None = None
    operator: str = "system"
    reference: str | None = None
    task_id: str | None = None
    hand_out: int = 0
    worker_id: str | None = None
    wants_confirmation: bool = False
    lease: int | None = None
    sequence: int = 0
    status: ReportStatus | None = None
    payload: bytes | None = None
    reason: str | None = None
    error_code: str | None = None
    due_at_ms: int | None = None
    name: str | None = None
    version: int | None = None
    correlation_id: str | None = None
    priority: int = 0
    created_by: str | None = None
    source: str | None = None
    idempotency_key: str | None = None
    strategy: IdempotencyStrategy | None = None
    definition: bytes | None = None
    overwrite: bool = False
    tenant: str | None = None
    deadline_at_ms: int | None = None
    task_to_domain: bytes | None = None
    #: Where a task is moved to.
    domain: str | None = None
    #: How long a running task goes away for; 0: it stays in progress (a heartbeat).
    callback_after_ms: int | None = None
    step: str | None = None
    step_status: StepStatus | None = None
    input_size: int = 0
    checkpoint: bytes | None = None
    progress_done: int | None = None
    progress_total: int | None = None
    #: Of messages to the limiter, whose key is not the workflow.
    workflow_id: str | None = None
    resource: str | None = None
    asked_at_ms: int | None = None
    started_at_ms: int | None = None
    #: The task of another workflow that this one is started by.
    parent_workflow_id: str | None = None
    parent_reference: str | None = None
    parent_task_id: str | None = None
    #: How a sub-workflow has ended.
    workflow_status: WorkflowStatus | None = None
    #: Of the task that is run again or skipped.
    task_input: bytes | None = None
    #: MAC of (task id, hand-out): proves that a worker was handed this very work.
    token: bytes | None = None
    #: MAC over all bytes before it; the last field, so that signing needs no second encoding.
    signature: bytes | None = None


class ScheduledTask(NamedTuple):
    """Work for a queue: all that a worker needs to run one attempt."""

    task_id: str
    workflow_id: str
    workflow_name: str
    reference: str
    task_type: str
    domain: str
    #: Partition of the workflow, where the worker's reports go.
    partition: int
    run: int
    attempt: int
    hand_out: int
    priority: int
    input: bytes
    response_timeout_ms: int
    timeout_ms: int
    scheduled_at_ms: int
    correlation_id: str | None = None
    #: Granted work is void unless its TaskStarted is appended before this moment.
    start_before_ms: int | None = None
    token: bytes | None = None
    #: The completed steps of earlier attempts with their results, and the checkpoint: a JSON object.
    resume: bytes | None = None
    #: Names of secrets that the worker resolves and nobody stores, joined by commas.
    secrets: str = ""
    deadline_at_ms: int | None = None
    tenant: str | None = None


class Control(NamedTuple):
    """What a worker is told about a hand-out that it may have."""

    task_id: str
    hand_out: int
    kind: ControlKind
    reason: str = ""


class DelayedCommand(NamedTuple):
    """A wait in the delay topics."""

    workflow_id: str
    reference: str
    task_id: str
    hand_out: int
    due_at_ms: int


class StartVerdict(NamedTuple):
    """One start confirmation (or refusal)."""

    task_id: str
    hand_out: int
    lease: int
    accepted: bool
    reason: str = ""


class StartResume(NamedTuple):
    """What an earlier start of the same hand-out has done (wire.resume), for the start that takes over."""

    task_id: str
    lease: int
    resume: bytes


class Reply(NamedTuple):
    """An answer to a client command, or the start confirmations of one worker and batch."""

    kind: ReplyKind
    command_id: str | None = None
    status: int = 0
    message: str = ""
    verdicts: tuple[StartVerdict, ...] = ()
    resumes: tuple[StartResume, ...] = ()


class TransitionEvent(NamedTuple):
    """What one command did to one workflow (B13)."""

    workflow_id: str
    workflow_name: str
    run: int
    command: CommandType
    operator: str
    at_ms: int
    #: Place of the command on ``commands``: with the key, the event's identity.
    partition: int
    offset: int
    transitions: tuple[Transition, ...] = ()
    ignored: str | None = None


class DefinitionSnapshot(NamedTuple):
    """A workflow definition with its task definitions, as workflows of a partition run by it."""

    content_hash: str
    name: str
    version: int
    document: bytes


class Idempotency(NamedTuple):
    """A start by idempotency key, remembered longer than the workflow itself."""

    workflow_id: str
    name: str
    idempotency_key: str
    run: int
    created_at_ms: int


class LanePosition(NamedTuple):
    """How far one lane of starts was decided."""

    lane: int
    offset: int


class LimitEntry(NamedTuple):
    """One hand-out that the limiter knows of (model.slots.Entry, flat)."""

    stage: Stage
    task_id: str
    hand_out: int
    workflow_id: str
    reference: str
    task_type: str
    domain: str
    tenant: str | None
    resource: str | None
    priority: int
    asked_at_ms: int
    start_before_ms: int | None = None
    started_at_ms: int | None = None
    ask_at_ms: int | None = None


class Checkpoint(NamedTuple):
    """How far a partition of ``commands`` was decided, and its log time then."""

    partition: int
    offset: int
    log_time_ms: int
    starts: tuple[LanePosition, ...] = ()


class Definition(NamedTuple):
    """A registered task or workflow definition: the JSON document."""

    name: str
    version: int
    document: bytes


class NamespaceRecord(NamedTuple):
    """What was fixed when the namespace was created."""

    name: str
    partitions: int
    created_at_ms: int
    #: Hash of the namespace key, to refuse a process started with another one; None when none is set.
    key_hash: bytes | None = None


class TaskLog(NamedTuple):
    """One line that a worker wrote about an attempt."""

    task_id: str
    workflow_id: str
    created_at_ms: int
    line: str


class WorkerPresence(NamedTuple):
    """A worker's sign of life."""

    worker_id: str
    task_types: str
    domain: str
    capacity: int
    free: int
    version: str
    started_at_ms: int
    is_leaving: bool = False
