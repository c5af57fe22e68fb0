"""Lists whose steps say what they depend on (``dependsOn``): a step begins when all of that has ended.

In such a list the order means nothing: what depends on nothing begins at once, with or without an empty ``dependsOn``.
A step that waits has a row, in phase CREATED, that counts: how many it depends on, and how many of those have ended.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker_engine.decider import rounds
from broker_engine.decider.draft import MAX_REASON, Draft
from broker_engine.decider.task_types import TASK_TYPES, ListEnd
from broker_engine.model.definitions import Steps, WorkflowTask
from broker_engine.model.state import TaskState, evolve
from broker_engine.model.status import Phase, TaskStatus, WaitingFor


def waiting(task: TaskState, step: WorkflowTask) -> TaskState:
    """The first attempt of a step as it waits. Its input is resolved when it begins."""
    return evolve(
        task,
        phase=Phase.CREATED,
        status=TaskStatus.SCHEDULED,
        input=b"{}",
        waiting_for=WaitingFor.DEPENDENCIES,
        progress_done=0,
        progress_total=len(step.depends_on),
        reason=_named(step.depends_on),
    )


def counted(draft: Draft, row: TaskState, step: WorkflowTask, suffix: str) -> TaskState | None:
    """One more has ended; None when that was the last one."""
    tasks = draft.execution.tasks
    left = [name for name in step.depends_on if (task := tasks.get(name + suffix)) is None or not task.is_terminal]
    if not left:
        return None
    done = len(step.depends_on) - len(left)
    return evolve(row, progress_done=done, reason=_named(left), updated_at_ms=draft.now_ms)


def _named(references: Iterable[str]) -> str:
    return f"waits for {', '.join(references)}"[:MAX_REASON]


def are_over(draft: Draft, steps: Steps, suffix: str) -> bool:
    """Whether everything in such a list has ended, what is chosen inside it included, and was followed."""
    pending = {task.reference for task in draft.ended}
    for step in steps:
        row = draft.execution.tasks.get(step.reference + suffix)
        if row is None:
            return False
        kind = TASK_TYPES.get(step.type)
        inside = [row]
        if kind is not None and kind.list_end is ListEnd.GOES_ON:
            inside += [each for inner in step.lists for each in rounds.rows_of(draft.execution, inner, suffix)]
        if any(not each.is_terminal or each.reference in pending for each in inside):
            return False
    return True
