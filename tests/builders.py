"""What makes tests short: definitions with sensible defaults, and a ``Story`` that drives one workflow by values.

Defaults: a task retries twice, one second after each failure; log time starts at ``START_MS``; every topic exists. A
test states only what matters to it::

    story = Story("a").start()
    story.taken().failed()
    story.later(1_000).delay_due()
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import orjson
from hypothesis import settings

from broker_engine.decider.context import Context
from broker_engine.decider.deadlines import earliest_deadline_ms
from broker_engine.decider.decide import decide
from broker_engine.decider.definition_tree import inline_definition
from broker_engine.decider.moves import Cause
from broker_engine.model.caps import NO_CAPS, Cap, Caps, together
from broker_engine.model.commands import (
    AnyCommand,
    AttemptPaused,
    CancelTask,
    ContinueLoop,
    DeadlineReached,
    DelayDue,
    ExtendLease,
    MoveTask,
    PauseTask,
    PauseWorkflow,
    QueueReady,
    ReleaseWorkflow,
    RerouteTask,
    ResetCallbacks,
    ResumeTask,
    ResumeWorkflow,
    StartWorkflow,
    TaskProgressed,
    TaskReported,
    TaskRequest,
    TaskStarted,
    TaskStep,
    TerminateWorkflow,
)
from broker_engine.model.decision import Answer, Confirm, Decision, Delay, Output, Schedule, Send, Transition
from broker_engine.model.definitions import TaskDef, WorkflowDef, WorkflowTask, index
from broker_engine.model.schedules import CronSchedule
from broker_engine.model.state import Execution, TaskState, WorkflowState
from broker_engine.model.status import SETUP_STEP, Phase, ReasonCode, ReportStatus, StepStatus
from broker_engine.model.stops import Stop, keys_against, keys_against_queue

START_MS = 1_000_000
#: Big enough for every default of the tests, small enough to be exceeded by a short text.
SMALL_PAYLOAD = 200

#: Hypothesis without randomness: the same examples in every run and on every machine.
FIXED = settings(derandomize=True, database=None, deadline=None, max_examples=60)

T = TypeVar("T", bound=Output)


def a_task_def(name: str = "encode", **fields: Any) -> TaskDef:
    """A task definition; retries twice after one second."""
    return TaskDef(**{"name": name, "retry_count": 2, "retry_delay_seconds": 1, **fields})


def a_step(reference: str = "a", definition: TaskDef | None = None, **fields: Any) -> WorkflowTask:
    """A step of a workflow; fields of WorkflowTask and of its TaskDef may be mixed."""
    own = {name: fields.pop(name) for name in tuple(fields) if name in _STEP_FIELDS}
    definition = replace(definition, **fields) if definition else a_task_def(**fields)
    return WorkflowTask(name=definition.name, reference=reference, definition=definition, **own)


#: ``retry_count`` is the task definition's; the step's own is set by ``replace``.
_STEP_FIELDS = ("input_parameters", "optional", "permissive", "start_delay_seconds")


def a_workflow_def(*steps: WorkflowTask | str, **fields: Any) -> WorkflowDef:
    """A workflow definition of steps, or of references with default steps."""
    tasks = tuple(a_step(step) if isinstance(step, str) else step for step in steps or ("a",))
    defaults = {"name": "film", "content_hash": "hash", "index": dict(index(tasks))}
    return WorkflowDef(tasks=tasks, **{**defaults, **fields})


@dataclass
class Definitions:
    """Registered definitions, in memory."""

    tasks: dict[str, TaskDef] = field(default_factory=dict)
    workflows: dict[tuple[str, int], WorkflowDef] = field(default_factory=dict)
    stops: dict[str, Stop] = field(default_factory=dict)
    capped: dict[str, Cap] = field(default_factory=dict)
    schedules: dict[str, CronSchedule] = field(default_factory=dict)

    @classmethod
    def of(cls, *definitions: TaskDef | WorkflowDef) -> Definitions:
        known = cls()
        for definition in definitions:
            if isinstance(definition, TaskDef):
                known.tasks[definition.name] = definition
            else:
                known.workflows[definition.name, definition.version] = definition
        return known

    def task_def(self, name: str) -> TaskDef | None:
        return self.tasks.get(name)

    def workflow_def(self, name: str, version: int | None) -> WorkflowDef | None:
        if version is None:
            version = max(self.workflow_versions(name), default=0)
        return self.workflows.get((name, version))

    def workflow_versions(self, name: str) -> tuple[int, ...]:
        return tuple(sorted(version for known, version in self.workflows if known == name))

    @property
    def caps(self) -> Caps:
        return together(self.capped.values()) if self.capped else NO_CAPS

    def cap(self, key: str) -> Cap | None:
        return self.capped.get(key)

    def stop(self, key: str) -> Stop | None:
        return self.stops.get(key)

    def stop_of(self, workflow: str, tenant: str | None) -> Stop | None:
        return next((self.stops[key] for key in keys_against(workflow, tenant) if key in self.stops), None)

    def stop_of_queue(self, domain: str, task_type: str) -> Stop | None:
        keys = keys_against_queue(domain, task_type)
        return next((self.stops[key] for key in keys if key in self.stops), None)

    def schedule(self, name: str) -> CronSchedule | None:
        return self.schedules.get(name)

    def inline(self, document: bytes) -> WorkflowDef:
        return inline_definition(document, self.task_def)


@dataclass
class Queues:
    """Every queue's topic exists, except those of the task types in ``missing``."""

    missing: set[str] = field(default_factory=set)

    def exists(self, domain: str, task_type: str) -> bool:
        return task_type not in self.missing


@dataclass
class Pollers:
    """Queues by the moment at which a worker of theirs was last heard of."""

    seen: dict[tuple[str, str], int] = field(default_factory=dict)

    def last_seen_ms(self, domain: str, task_type: str) -> int | None:
        return self.seen.get((domain, task_type))


def a_context(now_ms: int = START_MS, **fields: Any) -> Context:
    """The surroundings of a decision."""
    defaults: dict[str, Any] = {"position": "commands/0/0", "definitions": Definitions(), "queues": Queues()}
    return Context(now_ms=now_ms, **{**defaults, **fields})


def a_start(**fields: Any) -> StartWorkflow:
    """A start as a client sends it: it waits for an answer and may be repeated for a minute."""
    return StartWorkflow(**{"key": "w", "name": "film", **fields})


def asked(command_id: str = "c", expires_at_ms: int = START_MS + 60_000) -> dict[str, Any]:
    """The fields of a client command that waits for an answer."""
    return {"command_id": command_id, "expires_at_ms": expires_at_ms, "reply_to": "gateway"}


class Story:
    """One workflow, told command by command.

    Every teller returns the story, so that tellings chain; ``decision`` is the last answer, and all of them are kept.
    ``of=`` aims a command at an earlier state of a task (a late or repeated one) instead of the latest.
    """

    def __init__(self, *steps: WorkflowTask | str, now_ms: int = START_MS, **workflow: Any) -> None:
        self.definition = a_workflow_def(*steps, **workflow)
        self.definitions = Definitions.of(self.definition)
        self.queues = Queues()
        self.now_ms = now_ms
        self.offset = 0
        self.surroundings: dict[str, Any] = {}
        self.execution: Execution | None = None
        self.decision = Decision(execution=None)
        self.told: list[tuple[AnyCommand, Decision]] = []
        #: Rows that are not kept in memory any more.
        self.left: dict[str, TaskState] = {}
        #: What it has sent to itself and was not carried out (``go_on``).
        self.to_itself: list[ContinueLoop] = []

    # --- telling ---------------------------------------------------------------------------------

    def send(self, command: AnyCommand) -> Story:
        """Decide a command under the next offset and the present log time."""
        self.offset += 1
        command = replace(command, offset=self.offset, at_ms=self.now_ms)
        self.decision = decide(self.execution, command, self.context())
        self.execution = self.decision.execution
        self.told.append((command, self.decision))
        self.left |= {task.reference: task for task in self.decision.left}
        self.to_itself += [output.command for output in self.now(Send) if isinstance(output.command, ContinueLoop)]
        return self

    def go_on(self) -> Story:
        """Carry out what the workflow has sent to itself, until nothing is left."""
        while self.to_itself:
            self.send(self.to_itself.pop(0))
        return self

    def context(self) -> Context:
        return a_context(
            self.now_ms,
            position=f"commands/0/{self.offset}",
            definitions=self.definitions,
            queues=self.queues,
            **self.surroundings,
        )

    def given(self, **surroundings: Any) -> Story:
        """Change the surroundings of the next decisions (fields of Context)."""
        self.surroundings |= surroundings
        return self

    def later(self, ms: int) -> Story:
        self.now_ms += ms
        return self

    def start(self, **fields: Any) -> Story:
        return self.send(a_start(**{"name": self.definition.name, **fields}))

    def started(self, *, of: TaskState | None = None, worker: str = "worker-1", **fields: Any) -> Story:
        """A worker takes the current hand-out."""
        return self.send(TaskStarted(**{**self._about(of), "worker_id": worker, **fields}))

    taken = started

    def reported(self, status: ReportStatus, *, of: TaskState | None = None, **fields: Any) -> Story:
        """The worker that holds the lease reports (nobody holds one: an operator finishes the task by hand)."""
        task = of or self.task
        defaults = {"status": status, "lease": task.lease, "worker_id": task.worker_id, **self._about(of)}
        defaults["sequence"] = task.sequence + 1
        return self.send(TaskReported(**{**defaults, **fields}))

    def completed(self, output: Mapping[str, Any] | None = None, **fields: Any) -> Story:
        data = None if output is None else orjson.dumps(output)
        return self.reported(ReportStatus.COMPLETED, **{"output": data, **fields})

    def failed(self, reason: str | None = None, **fields: Any) -> Story:
        return self.reported(ReportStatus.FAILED, reason=reason, **fields)

    def failed_terminally(self, reason: str | None = None, **fields: Any) -> Story:
        return self.reported(ReportStatus.FAILED_WITH_TERMINAL_ERROR, reason=reason, **fields)

    def canceled(self, **fields: Any) -> Story:
        return self.reported(ReportStatus.CANCELED, **fields)

    def progressed(self, output: Mapping[str, Any] | None = None, *, of: TaskState | None = None, **f: Any) -> Story:
        """The worker says that it is not done: a heartbeat, or a callback with ``callback_after_ms``."""
        task = of or self.task
        data = None if output is None else orjson.dumps(output)
        defaults = {"lease": task.lease, "sequence": task.sequence + 1, "output": data, **self._about(of)}
        return self.send(TaskProgressed(**{**defaults, **f}))

    def step(self, name: str, status: StepStatus, *, of: TaskState | None = None, **f: Any) -> Story:
        """The worker tells of a step."""
        task = of or self.task
        defaults = {"lease": task.lease, "sequence": task.sequence + 1, **self._about(of)}
        return self.send(TaskStep(**{**defaults, "step": name, "status": status, **f}))

    def prepared(self, **fields: Any) -> Story:
        """The worker's set-up is over."""
        return self.step(SETUP_STEP, StepStatus.COMPLETED, **fields)

    def extend_lease(self, *, of: TaskState | None = None, **fields: Any) -> Story:
        return self.send(ExtendLease(**{"lease": (of or self.task).lease, **self._about(of), **fields}))

    def reset_callbacks(self, **fields: Any) -> Story:
        return self.send(ResetCallbacks(key=self.workflow.workflow_id, **fields))

    def delay_due(self, *, of: TaskState | None = None, **fields: Any) -> Story:
        due_at_ms = (of or self.task).due_at_ms
        return self.send(DelayDue(**{"due_at_ms": due_at_ms or 0, **self._about(of), **fields}))

    def queue_ready(self, *, of: TaskState | None = None) -> Story:
        return self.send(QueueReady(**self._about(of)))

    def moved(self, domain: str, *, of: TaskState | None = None, **fields: Any) -> Story:
        """An operator moves the task to another domain."""
        return self.send(MoveTask(**{**self._about(of), "domain": domain, **fields}))

    def rerouted(self, domain: str, *, of: TaskState | None = None, reason: str = "nobody polls") -> Story:
        return self.send(RerouteTask(**self._about(of), domain=domain, reason=reason))

    def deadline(self) -> Story:
        """The shell looks at the clocks now."""
        return self.send(DeadlineReached(key=self.workflow.workflow_id))

    def next_deadline(self) -> Story:
        """Log time runs on to the earliest deadline, and the shell looks at the clocks."""
        at_ms = earliest_deadline_ms(self.execution_now)
        assert at_ms is not None, "no clock runs"
        self.now_ms = max(self.now_ms, at_ms)
        return self.deadline()

    def terminate(self, reason: str | None = None, **fields: Any) -> Story:
        return self.send(TerminateWorkflow(key=self.workflow.workflow_id, reason=reason, **fields))

    def cancel(self, reference: str | None = None, **fields: Any) -> Story:
        """An operator cancels a task: the latest, unless another is named."""
        return self._requested(CancelTask, reference, fields)

    def pause(self, reference: str | None = None, **fields: Any) -> Story:
        return self._requested(PauseTask, reference, fields)

    def resume(self, reference: str | None = None, **fields: Any) -> Story:
        return self._requested(ResumeTask, reference, fields)

    def _requested(self, kind: type[TaskRequest], reference: str | None, fields: Mapping[str, Any]) -> Story:
        about = {
            "key": self.workflow.workflow_id,
            "operator": "user:ann",
            "reference": reference or self.task.reference,
        }
        return self.send(kind(**{**about, **fields}))

    def paused(self, *, of: TaskState | None = None, **fields: Any) -> Story:
        """The worker has stopped at a safe point."""
        task = of or self.task
        defaults = {"lease": task.lease or 0, "sequence": task.sequence + 1, "worker_id": task.worker_id}
        return self.send(AttemptPaused(**{**defaults, **self._about(of), **fields}))

    def pause_workflow(self, **fields: Any) -> Story:
        return self.send(PauseWorkflow(**{"key": self.workflow.workflow_id, "operator": "user:ann", **fields}))

    def resume_workflow(self, **fields: Any) -> Story:
        return self.send(ResumeWorkflow(**{"key": self.workflow.workflow_id, "operator": "user:ann", **fields}))

    def release(self, **fields: Any) -> Story:
        return self.send(ReleaseWorkflow(key=self.workflow.workflow_id, **fields))

    def fail_once(self) -> Story:
        """One attempt taken and failed; when another follows after a delay, the delay passes."""
        self.taken().failed()
        due_at_ms = self.task.due_at_ms
        if not self.task.is_terminal and due_at_ms is not None:
            self.now_ms = due_at_ms
            self.delay_due()
        return self

    def _about(self, of: TaskState | None) -> dict[str, Any]:
        task = of or self.task
        return {
            "key": task.workflow_id,
            "reference": task.reference,
            "task_id": task.task_id,
            "hand_out": task.hand_out,
        }

    # --- looking ---------------------------------------------------------------------------------

    @property
    def execution_now(self) -> Execution:
        assert self.execution is not None, "the workflow does not exist"
        return self.execution

    @property
    def workflow(self) -> WorkflowState:
        return self.execution_now.workflow

    @property
    def task(self) -> TaskState:
        """The task that came last."""
        return max(self.execution_now.tasks.values(), key=lambda task: task.seq)

    def __getitem__(self, reference: str) -> TaskState:
        return self.execution_now.tasks[reference]

    @property
    def attempts(self) -> list[TaskState]:
        """The last stored state of every attempt of this run, in order of creation."""
        latest: dict[str, TaskState] = {}
        for _, decision in self.told:
            latest |= {task.task_id: task for task in decision.changed_tasks}
        return sorted((task for task in latest.values() if task.run == self.workflow.run), key=lambda task: task.seq)

    @property
    def input(self) -> Any:
        """The input of the last task, parsed."""
        return orjson.loads(self.task.input)

    @property
    def output(self) -> Any:
        """The output of the workflow, parsed."""
        assert self.workflow.output is not None, "the workflow has not ended"
        return orjson.loads(self.workflow.output)

    @property
    def ignored(self) -> str | None:
        return self.decision.ignored

    @property
    def transitions(self) -> list[Transition]:
        return [transition for _, decision in self.told for transition in decision.transitions]

    def codes(self) -> list[ReasonCode]:
        """The reason codes of the last decision's transitions."""
        return [transition.reason_code for transition in self.decision.transitions]

    def outputs(self, kind: type[T]) -> list[T]:
        """All outputs of a kind, so far."""
        return [output for _, decision in self.told for output in decision.outputs if isinstance(output, kind)]

    def now(self, kind: type[T]) -> list[T]:
        """The outputs of a kind of the last decision."""
        return [output for output in self.decision.outputs if isinstance(output, kind)]

    @property
    def schedules(self) -> list[Schedule]:
        return self.outputs(Schedule)

    @property
    def delays(self) -> list[Delay]:
        return self.outputs(Delay)

    @property
    def answer(self) -> Answer:
        (answer,) = self.now(Answer)
        return answer

    @property
    def confirm(self) -> Confirm:
        (confirm,) = self.now(Confirm)
        return confirm

    def moves(self) -> Iterator[tuple[Any, Cause, Any]]:
        """Every (source, cause, target) of the table of moves that the story went through."""
        for command, decision in self.told:
            for transition in decision.transitions:
                if transition.task_id is not None:
                    yield transition.from_phase, cause_of(command, transition), transition.to_phase

    def assert_untouched(self, before: Execution | None, *, says: str) -> None:
        """The last command changed nothing and says why."""
        assert self.ignored is not None, "it was not ignored"
        assert says in self.ignored
        assert self.execution == before
        assert self.decision.changed_tasks == ()
        assert self.decision.transitions == ()
        assert not self.decision.workflow_changed
        assert self.now(Schedule) == []


_CAUSES: Mapping[ReportStatus, Cause] = {
    ReportStatus.COMPLETED: Cause.COMPLETED,
    ReportStatus.FAILED: Cause.FAILED,
    ReportStatus.FAILED_WITH_TERMINAL_ERROR: Cause.FAILED_TERMINALLY,
    ReportStatus.CANCELED: Cause.CANCELED_BY_WORKER,
}
_CAUSES_BY_CODE: Mapping[ReasonCode, Cause] = {
    ReasonCode.WORKER_STARTED: Cause.STARTED,
    ReasonCode.LEASE_TAKEN_OVER: Cause.STARTED,
    ReasonCode.PREPARED: Cause.PREPARED,
    ReasonCode.TIMEOUT_ALERT: Cause.ALERTED,
    ReasonCode.WORKFLOW_ENDED: Cause.WORKFLOW_ENDS,
    ReasonCode.CANCEL_REQUESTED: Cause.WORKFLOW_ENDS,
    ReasonCode.DELAY_OVER: Cause.DELAY_OVER,
    ReasonCode.DELAY_LOST: Cause.DELAY_OVER,
    ReasonCode.CALLBACK: Cause.PUT_AWAY,
    ReasonCode.CALLBACKS_RESET: Cause.DELAY_OVER,
    ReasonCode.HANDED_OUT_AGAIN: Cause.HANDED_OUT_AGAIN,
    ReasonCode.TOPIC_READY: Cause.HANDED_OUT_AGAIN,
    ReasonCode.HANDED_OUT: Cause.HANDED_OUT_AGAIN,
    ReasonCode.MOVED: Cause.MOVED,
    ReasonCode.REROUTED: Cause.MOVED,
    ReasonCode.ROUND_OVER: Cause.EVALUATES,
    ReasonCode.DEPENDENCIES_DONE: Cause.READY,
    ReasonCode.SUB_WORKFLOW_STARTED: Cause.CHILD_STARTED,
    ReasonCode.SUB_WORKFLOW_ENDED: Cause.FAILED,
    ReasonCode.ITERATED: Cause.ITERATES,
}


def cause_of(command: AnyCommand, transition: Transition) -> Cause:
    """What happened to a task, told from the outside: from the command and the transition it led to."""
    if transition.from_phase is None:
        return Cause.APPEARS
    is_another = isinstance(command, TaskReported) and command.task_id != transition.task_id
    if transition.from_phase is Phase.CREATED and is_another and transition.to_phase is not Phase.CANCELED:
        return Cause.READY
    if isinstance(command, CancelTask):
        return Cause.CANCEL_ASKED if transition.to_phase is Phase.CANCELING else Cause.CANCELED
    if transition.reason_code is ReasonCode.PAUSE_REQUESTED:
        return Cause.PAUSE_ASKED
    if transition.to_phase is Phase.PAUSED and transition.from_phase is not Phase.PAUSED:
        return Cause.PAUSED
    if transition.reason_code is ReasonCode.RESUMED:
        return Cause.PUT_AWAY if isinstance(command, AttemptPaused) else Cause.RESUMED
    if transition.from_phase is Phase.CANCELING and isinstance(command, AttemptPaused | TaskProgressed):
        return Cause.CANCELED_BY_WORKER
    if transition.from_phase is Phase.CANCELING and isinstance(command, TaskReported):
        return _CAUSES[command.status]
    is_canceled = transition.reason_code in (ReasonCode.CANCEL_REQUESTED, ReasonCode.OPTIONAL_FAILED)
    if transition.from_phase is Phase.CANCELING and isinstance(command, DeadlineReached) and is_canceled:
        return Cause.TIMED_OUT
    if transition.reason_code in _CAUSES_BY_CODE:
        return _CAUSES_BY_CODE[transition.reason_code]
    if not isinstance(command, TaskReported):
        return Cause.TIMED_OUT
    is_refused = transition.reason_code in (ReasonCode.PAYLOAD_TOO_LARGE, ReasonCode.TERMINAL_ERROR)
    if is_refused and command.status is not ReportStatus.COMPLETED:
        return Cause.FAILED_TERMINALLY  # whatever else it said
    return _CAUSES[command.status]
