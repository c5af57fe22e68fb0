"""The state of a workflow: one ``WorkflowState``, one ``TaskState`` per attempt, together an ``Execution``.

Each is the value of a record on a compacted topic; a new state is a new record. ``…_at_ms`` is a moment in the log time
of the workflow's partition, None while it has not come.

Named tuples, not dataclasses like the rest of ``model/``: a state changes three times per task, and with forty fields
``_replace`` (C) is twenty times faster than ``dataclasses.replace``; the fields also stand in the order of their Avro
schema, so that a record is one ``zip`` away. Construct them by keyword.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeVar

from immutables import Map

from broker_engine.model.definitions import WorkflowDef
from broker_engine.model.status import Phase, ReasonCode, StepStatus, TaskStatus, WaitingFor, WorkflowStatus


class RememberedCommand(NamedTuple):
    """A client command that was answered; a repeat before ``expires_at_ms`` gets the same answer."""

    command_id: str
    expires_at_ms: int
    status: int
    message: str


class Step(NamedTuple):
    """One step of an attempt, by its latest try; a completed step is not run again by later attempts (B6, B14)."""

    name: str
    status: StepStatus
    started_at_ms: int
    ended_at_ms: int | None = None
    #: How often it was begun, over all attempts.
    tries: int = 1
    input_size: int = 0
    output_size: int = 0
    #: What the step returned, as JSON: later attempts get it instead of running the step.
    result: bytes | None = None
    error_code: str | None = None
    reason: str | None = None


class Message(NamedTuple):
    """A message to a workflow that no task has taken yet."""

    message_id: str
    received_at_ms: int
    #: A JSON object.
    payload: bytes


class Skip(NamedTuple):
    """A task that somebody wants to be skipped, and what is put in its place (JSON objects)."""

    reference: str
    input: bytes | None = None
    output: bytes | None = None


class WorkflowState(NamedTuple):
    """One workflow execution. ``status`` comes first: restore reads it without decoding the rest (wire/states.py)."""

    status: WorkflowStatus
    workflow_id: str
    #: Topic, partition and offset of the start record: tells an id reused after its retention from the first use.
    incarnation: str
    name: str
    version: int
    definition_hash: str
    input: bytes
    created_at_ms: int
    updated_at_ms: int
    run: int = 0
    output: bytes | None = None
    variables: bytes = b"{}"
    correlation_id: str | None = None
    priority: int = 0
    created_by: str | None = None
    source: str | None = None
    idempotency_key: str | None = None
    ended_at_ms: int | None = None
    reason_code: ReasonCode | None = None
    reason: str | None = None
    failed_task_id: str | None = None
    failed_reference: str | None = None
    #: Set while a faulty decision keeps this workflow still; says what was wrong.
    quarantine: str | None = None
    #: The workflow time-out has alerted already (ALERT_ONLY alerts once).
    timeout_alerted: bool = False
    remembered: tuple[RememberedCommand, ...] = ()
    #: Whom fairness and caps count it for.
    tenant: str | None = None
    #: A moment promised to outsiders: nothing is scheduled after it, and retries do not move it (B10).
    deadline_at_ms: int | None = None
    #: Task type (or ``*``) to a list of domains, as a JSON object.
    task_to_domain: bytes | None = None
    #: Since when it has been paused; its tasks' clocks stand still.
    paused_at_ms: int | None = None
    #: The task of another workflow that this one is a sub-workflow of.
    parent_workflow_id: str | None = None
    parent_reference: str | None = None
    parent_task_id: str | None = None
    #: What was sent to it and no task has taken yet.
    messages: tuple[Message, ...] = ()
    #: The earliest run whose tasks belong to the present one, too; None: only its own do.
    first_run: int | None = None
    #: When the present run began; None: with the workflow.
    began_at_ms: int | None = None
    #: The workflow that undoes what the present run has completed.
    compensated_by: str | None = None
    #: Tasks that are not to run when they are reached.
    skips: tuple[Skip, ...] = ()

    @property
    def from_run(self) -> int:
        """The earliest run whose tasks belong to the present one."""
        return self.run if self.first_run is None else self.first_run


class TaskState(NamedTuple):
    """One attempt of one task. ``phase`` comes first for the same reason."""

    phase: Phase
    status: TaskStatus
    task_id: str
    workflow_id: str
    workflow_name: str
    run: int
    reference: str
    task_type: str
    domain: str
    seq: int
    input: bytes
    first_scheduled_at_ms: int
    scheduled_at_ms: int
    updated_at_ms: int
    iteration: int = 0
    #: 0-based; Conductor's ``retryCount`` of a task.
    attempt: int = 0
    #: How many times this attempt was put on a schedule topic.
    hand_out: int = 0
    priority: int = 0
    output: bytes | None = None
    worker_id: str | None = None
    #: Offset on ``commands`` of the accepted TaskStarted: the user's fencing token.
    lease: int | None = None
    #: Number of the last report accepted under this lease.
    sequence: int = 0
    poll_count: int = 0
    waiting_for: WaitingFor | None = None
    #: End of the back-off or start delay.
    due_at_ms: int | None = None
    #: The delay record came back shortly before the due moment and is not sent again.
    delay_returned: bool = False
    retry_delay_ms: int = 0
    #: When the current hand-out was put on its queue; later by what its workflow was paused meanwhile.
    handed_out_at_ms: int | None = None
    started_at_ms: int | None = None
    ended_at_ms: int | None = None
    next_deadline: str | None = None
    next_deadline_at_ms: int | None = None
    #: Timeout kinds that have alerted already (ALERT_ONLY alerts once per deadline), joined by commas.
    alerted: str = ""
    reason_code: ReasonCode | None = None
    reason: str | None = None
    error_code: str | None = None
    #: The attempt that this one repeats.
    retried_task_id: str | None = None
    #: A newer attempt exists.
    is_retried: bool = False
    #: The start of the response clock after a heartbeat or an extended lease.
    heartbeat_at_ms: int | None = None
    #: The domains that this task may go to, best first, joined by commas; empty: its own only.
    domain_choices: str = ""
    #: The limiter was asked for this hand-out and has to hear of its end.
    holds_slot: bool = False
    #: The resolved value of ``resourceLock``: one holder at a time.
    resource: str | None = None
    #: Why a running task was asked to stop (B8).
    cancel_reason: str | None = None
    cancel_requested_at_ms: int | None = None
    #: Who asked a task to pause; it does at its next safe point (B9). None in a task that its workflow holds.
    paused_by: str | None = None
    #: Since when its clocks stand still; also set in what a paused workflow has handed out before.
    paused_at_ms: int | None = None
    current_step: str | None = None
    steps: tuple[Step, ...] = ()
    #: What the function stored of its own progress inside a step, as JSON.
    checkpoint: bytes | None = None
    progress_done: int | None = None
    progress_total: int | None = None
    #: How long the clock of `timeoutSeconds` has stood still in pauses.
    paused_ms: int = 0
    #: The workflow that it has started and waits for.
    sub_workflow_id: str | None = None
    #: What it has brought to run by, as JSON: the tasks of a dynamic fork, or the definition of a DYNAMIC task.
    definition: bytes | None = None
    #: The run that went on without it: a task before it runs again there.
    left_run: int | None = None

    @property
    def is_terminal(self) -> bool:
        return self.ended_at_ms is not None

    @property
    def is_in_engine(self) -> bool:
        """Whether it runs without a worker: a JOIN, a loop, a WAIT (what a worker runs has a lease)."""
        return self.phase is Phase.RUNNING and self.lease is None


def present(workflow: WorkflowState, tasks: Iterable[TaskState]) -> list[TaskState]:
    """The attempts that are a part of a workflow's present run, in order.

    That may have begun with earlier ones (``first_run``). Where an attempt has left (``left_run``), those before it are
    gone with it.
    """
    found = sorted((task for task in tasks if workflow.from_run <= task.run <= workflow.run), key=_order)
    left = {task.reference: _order(task) for task in found if task.left_run is not None}
    return [task for task in found if not left or _order(task) > left.get(task.reference, (-1, -1))]


def _order(task: TaskState) -> tuple[int, int]:
    return task.run, task.seq


State = TypeVar("State", WorkflowState, TaskState)
_POSITIONS: dict[type[Any], dict[str, int]] = {
    kind: {name: i for i, name in enumerate(kind._fields)} for kind in (WorkflowState, TaskState)
}


def evolve(state: State, **changes: Any) -> State:
    """``state._replace(**changes)`` in half the time: it copies the tuple in one step instead of field by field."""
    values, positions = list(state), _POSITIONS[type(state)]
    for name, value in changes.items():
        values[positions[name]] = value
    return tuple.__new__(type(state), values)


class Execution(NamedTuple):
    """A workflow with the latest attempt of each of its tasks, and the definition it runs by."""

    workflow: WorkflowState
    #: By reference.
    tasks: Map[str, TaskState]
    definition: WorkflowDef
    #: The largest ``seq`` given out in this run.
    last_seq: int = 0
    #: References of the tasks that have not ended: what a decision looks at, however many have. None: not counted yet.
    live: frozenset[str] | None = None
    #: The outputs of rounds that are over, by the loop's reference and the round: their rows are kept no longer.
    rounds: Map[str, bytes] = Map()

    def with_task(self, task: TaskState) -> Execution:
        reference = task.reference
        tasks, live = self.tasks.set(reference, task), self.live
        if live is None:
            live = frozenset(name for name, known in tasks.items() if known.ended_at_ms is None)
        elif (task.ended_at_ms is None) is not (reference in live):
            live = live ^ {reference}
        return Execution(self.workflow, tasks, self.definition, max(self.last_seq, task.seq), live, self.rounds)

    def live_tasks(self) -> list[TaskState]:
        """The tasks that have not ended, in the order in which they appeared (sets have none)."""
        if self.live is None:
            found = [task for task in self.tasks.values() if task.ended_at_ms is None]
        else:
            found = [self.tasks[reference] for reference in self.live]
        return sorted(found, key=lambda task: task.seq) if len(found) > 1 else found
