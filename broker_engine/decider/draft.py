"""The decision while it is being made: the execution so far, and everything that is to be written.

A draft lives inside one call of ``decide`` and never leaves it. ``move`` is the only way a task changes its phase: it
checks the table of moves, sets the clocks and tells the event.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from broker_engine.decider import controls, slots
from broker_engine.decider.context import Context
from broker_engine.decider.deadlines import next_deadline
from broker_engine.decider.moves import MOVES, Cause
from broker_engine.errors import InvariantViolation
from broker_engine.model.commands import AnyCommand, SubWorkflowEnded, TerminateWorkflow
from broker_engine.model.decision import Answer, Decision, Output, Send, Transition
from broker_engine.model.definitions import WorkflowTask
from broker_engine.model.state import Execution, RememberedCommand, Step, TaskState, WorkflowState, evolve
from broker_engine.model.status import (
    STATUSES_OF,
    TERMINAL_PHASES,
    Phase,
    ReasonCode,
    TaskStatus,
    WaitingFor,
    WorkflowStatus,
)

#: Conductor cuts reasons at 500 characters.
MAX_REASON = 500
#: Whose word a command is that one workflow sends to another.
_ENGINE = "engine"


class Repeat(NamedTuple):
    """What the new first attempt of a task has of the one that it repeats (an operator's retry or re-run)."""

    retried_task_id: str
    #: In place of what its expressions give.
    input: bytes | None = None
    #: What is completed is not done again (B6).
    steps: tuple[Step, ...] = ()
    checkpoint: bytes | None = None
    definition: bytes | None = None
    #: The sub-workflow that runs again by itself.
    child: str | None = None
    #: Of a loop: it goes on in its round instead of beginning anew.
    goes_on: bool = False


class Draft:
    """The changes of one decision. ``execution`` is always complete and consistent."""

    def __init__(self, execution: Execution, command: AnyCommand, context: Context, *, is_new: bool = False) -> None:
        self.execution = execution
        self.command = command
        self.context = context
        self.outputs: list[Output] = []
        #: Tasks whose successors are not begun yet (``walk.go_on`` does when the command is carried out).
        self.ended: list[TaskState] = []
        #: Whether sub-workflows that end with it undo what they have completed.
        self.compensates = False
        #: First attempts that repeat earlier ones, by reference.
        self.repeats: Mapping[str, Repeat] = {}
        self._before = None if is_new else execution.workflow
        #: Rows that leave the memory.
        self.left: list[TaskState] = []
        self._tasks: list[TaskState] = []
        self._transitions: list[Transition] = []

    @property
    def now_ms(self) -> int:
        return self.context.now_ms

    @property
    def workflow(self) -> WorkflowState:
        return self.execution.workflow

    def step(self, task: TaskState) -> WorkflowTask:
        return self.execution.definition.task(task.reference)

    def appear(self, task: TaskState, code: ReasonCode, reason: str | None = None) -> TaskState:
        """Add a new attempt, or begin one that has waited for what it depends on."""
        known = self.execution.tasks.get(task.reference)
        if known is not None and known.waiting_for is WaitingFor.DEPENDENCIES and not known.is_terminal:
            self._check(known.phase, Cause.READY, task)
            return self._put(known.phase, task, code, reason)
        self._check(None, Cause.APPEARS, task)
        return self._put(None, task, code, reason)

    def move(
        self,
        task: TaskState,
        cause: Cause,
        phase: Phase,
        code: ReasonCode,
        *,
        status: TaskStatus | None = None,
        reason: str | None = None,
        **changes: Any,
    ) -> TaskState:
        """Change a task; ``status`` is needed only where its phase allows two."""
        ended = phase in TERMINAL_PHASES
        moved = evolve(
            task,
            phase=phase,
            status=status or STATUSES_OF[phase][0],
            updated_at_ms=self.now_ms,
            ended_at_ms=self.now_ms if ended else None,
            next_deadline=None,
            next_deadline_at_ms=None,
            reason_code=code,
            reason=reason[:MAX_REASON] if reason else (task.reason if not ended else None),
            **changes,
        )
        self._check(task.phase, cause, moved)
        if task.holds_slot and not slots.keeps(moved):
            self.outputs.append(slots.released(task, self.now_ms))
            moved = evolve(moved, holds_slot=False)
        if (task.paused_by is not None or task.phase is Phase.CANCELING) and controls.is_over(task, moved):
            self.outputs.append(controls.forget(task))
        if ended and task.sub_workflow_id is not None and not self._is_told_by_child(task):
            terminate = TerminateWorkflow(
                key=task.sub_workflow_id,
                operator=_ENGINE,
                reason=f"its parent: {reason or code}",
                compensate=self.compensates,
            )
            self.outputs.append(Send(command=terminate))
        return self._put(task.phase, moved, code, reason)

    def _is_told_by_child(self, task: TaskState) -> bool:
        return isinstance(self.command, SubWorkflowEnded) and self.command.reference == task.reference

    def mark_retried(self, task: TaskState) -> TaskState:
        """Note on an ended attempt that a newer one exists. No transition: its phase and status stay."""
        marked = evolve(task, is_retried=True)
        self.execution = self.execution.with_task(marked)
        self._tasks[-1] = marked
        return marked

    def replace_row(self, task: TaskState, *, is_retried: bool) -> None:
        """Note on an ended task that another one takes its place in the next run: it was an attempt at the same, or
        (without ``is_retried``) belongs to the past."""
        marked = evolve(task, is_retried=True) if is_retried else evolve(task, left_run=self.workflow.run)
        self._tasks.append(marked)
        self.left.append(marked)

    def leave_run(self, tasks: Iterable[TaskState]) -> None:
        """Let ended tasks belong to earlier runs only."""
        kept = self.execution.tasks.mutate()
        for task in tasks:
            marked = evolve(task, left_run=self.workflow.run)
            self._tasks.append(marked)
            self.left.append(marked)
            del kept[task.reference]
        self.execution = self.execution._replace(tasks=kept.finish())

    def set_aside(self, task: TaskState) -> None:
        """Store a detail of a task that is no transition."""
        self.execution = self.execution.with_task(task)
        self._tasks.append(task)

    def note(self, task: TaskState) -> None:
        """Change a detail of a task that is not written, since it can be told from other rows."""
        self.execution = self.execution.with_task(task)

    @property
    def written(self) -> int:
        """How many rows are to be written so far."""
        return len(self._tasks)

    def alert(self, task: TaskState, alerted: str, reason: str) -> None:
        """Note a clock that ran out under ALERT_ONLY. The task's own clocks go on: nothing else changes."""
        noted = evolve(task, alerted=alerted, next_deadline=None, next_deadline_at_ms=None)
        self._check(task.phase, Cause.ALERTED, noted)
        self._put(task.phase, noted, ReasonCode.TIMEOUT_ALERT, reason)

    def change_workflow(self, **changes: Any) -> None:
        before = self.execution
        workflow = evolve(before.workflow, updated_at_ms=self.now_ms, **changes)
        self.execution = Execution(
            workflow, before.tasks, before.definition, before.last_seq, before.live, before.rounds
        )

    def tell_workflow(self, status: WorkflowStatus, code: ReasonCode, reason: str | None = None) -> None:
        """Tell an event about the workflow itself."""
        self._transitions.append(Transition(status=status, reason_code=code, reason=reason))

    def answer(self, status: int, message: str = "") -> None:
        """Answer the command and remember the answer until the command expires."""
        command = self.command
        if command.command_id is None:
            return
        if command.expires_at_ms > self.now_ms:
            kept = tuple(entry for entry in self.workflow.remembered if entry.expires_at_ms > self.now_ms)
            entry = RememberedCommand(
                command_id=command.command_id,
                expires_at_ms=command.expires_at_ms,
                status=status,
                message=message,
            )
            self.change_workflow(remembered=(*kept, entry))
        if command.reply_to is not None:
            self.outputs.append(reply(command, status, message))

    def decision(self, *, ignored: str | None = None) -> Decision:
        return Decision(
            execution=self.execution,
            workflow_changed=self.workflow is not self._before,
            changed_tasks=tuple(self._tasks),
            transitions=tuple(self._transitions),
            outputs=tuple(self.outputs),
            ignored=ignored,
            left=tuple(self.left),
        )

    def _check(self, source: Phase | None, cause: Cause, task: TaskState) -> None:
        if task.phase not in MOVES.get((source, cause), ()) or task.status not in STATUSES_OF[task.phase]:
            raise InvariantViolation(
                f"task {task.task_id} may not go from {source} to {task.phase} ({task.status}) because it {cause}"
            )

    def _put(self, source: Phase | None, task: TaskState, code: ReasonCode, reason: str | None) -> TaskState:
        deadline = next_deadline(task, self.step(task).definition)
        if deadline is not None:
            task = evolve(task, next_deadline=deadline.kind.value, next_deadline_at_ms=deadline.at_ms)
        self.execution = self.execution.with_task(task)
        self._tasks.append(task)
        self._transitions.append(
            Transition(
                task_id=task.task_id,
                reference=task.reference,
                attempt=task.attempt,
                from_phase=source,
                to_phase=task.phase,
                status=task.status,
                reason_code=code,
                reason=reason,
            )
        )
        return task


def reply(command: AnyCommand, status: int, message: str) -> Answer:
    """The answer to a client command that asked for one."""
    assert command.reply_to is not None
    return Answer(
        reply_to=command.reply_to,
        command_id=command.command_id or "",
        status=status,
        message=message,
    )
