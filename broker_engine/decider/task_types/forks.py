"""FORK_JOIN and JOIN: lists side by side, and the task that waits for some of theirs.

A JOIN counts: ``progress`` says how many of its tasks have ended, so each end costs the same however many there are.
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from broker_engine.decider.documents import Scope, find_task
from broker_engine.decider.task_types.base import Begun, How, ListEnd, Seen, TaskType, missing
from broker_engine.errors import Violation
from broker_engine.model.definitions import Json, Steps, WorkflowTask, iterations
from broker_engine.model.state import Execution, TaskState
from broker_engine.model.status import FACTS, ReasonCode, TaskStatus, WaitingFor


def _fork(_step: WorkflowTask, _seen: Seen) -> Begun:
    return Begun(How.DONE, output={})


def _branches(step: WorkflowTask, _ended: TaskState) -> tuple[Steps, ...]:
    return tuple(branch for branch in step.branches if branch)


def _check_fork(document: Mapping[str, Json], path: str) -> list[Violation]:
    branches = document.get("forkTasks")
    if not isinstance(branches, list) or not any(branches):
        return missing({**document, "forkTasks": None}, path, "forkTasks")
    return []


def _scope(execution: Execution, step: WorkflowTask, suffix: str) -> Scope:
    node = execution.definition.node(step.reference, suffix)
    return Scope(node.loops if node is not None else (), iterations(suffix))


def waits_for(execution: Execution, step: WorkflowTask, suffix: str) -> tuple[str, ...]:
    """The references that a JOIN waits for: behind a dynamic fork those of its tasks."""
    return execution.definition.dynamic.waits.get(step.reference + suffix, step.join_on)


def joined(execution: Execution, step: WorkflowTask, suffix: str) -> dict[str, TaskState]:
    """The tasks of a JOIN that are there, by reference."""
    scope = _scope(execution, step, suffix)
    found = {reference: find_task(execution, reference, scope) for reference in waits_for(execution, step, suffix)}
    return {reference: task for reference, task in found.items() if task is not None}


def _join(step: WorkflowTask, seen: Seen) -> Begun:
    tasks = joined(seen.execution, step, seen.suffix)
    pending = {task.reference for task in seen.pending}
    ended = sum(task.is_terminal and task.reference not in pending for task in tasks.values())
    return Begun(
        How.RUNNING,
        code=ReasonCode.PREVIOUS_TASK_DONE,
        waiting_for=WaitingFor.TASKS,
        progress=(ended, len(waits_for(seen.execution, step, seen.suffix))),
    )


def verdict(execution: Execution, step: WorkflowTask, suffix: str) -> tuple[TaskStatus, Json, str | None]:
    """How a JOIN ends whose tasks have all ended: its status, output (theirs, by reference) and reason."""
    tasks = joined(execution, step, suffix)
    output = {reference: task.output for reference, task in tasks.items()}
    failed = [task for task in tasks.values() if not FACTS[task.status].is_successful]
    if failed:
        reason = "; ".join(f"{task.reference} {task.status}: {task.reason or 'no reason given'}" for task in failed)
        is_canceled = all(task.status is TaskStatus.CANCELED for task in failed)
        return TaskStatus.CANCELED if is_canceled else TaskStatus.FAILED, output, reason
    if any(task.status is TaskStatus.COMPLETED_WITH_ERRORS for task in tasks.values()):
        return TaskStatus.COMPLETED_WITH_ERRORS, output, None
    return TaskStatus.COMPLETED, output, None


def exclusively_joined(execution: Execution, step: WorkflowTask, suffix: str) -> TaskState | None:
    """The task that an EXCLUSIVE_JOIN takes: the first of its `joinOn` that has run, or else of its default ones."""
    scope = _scope(execution, step, suffix)
    for reference in (*step.join_on, *step.join_default):
        task = find_task(execution, reference, scope)
        if task is not None and task.status is not TaskStatus.SKIPPED:
            return task
    return None


def _exclusive_join(step: WorkflowTask, seen: Seen) -> Begun:
    task = exclusively_joined(seen.execution, step, seen.suffix)
    if task is None:
        named = ", ".join((*step.join_on, *step.join_default))
        reason = f"none of {named} has begun: name a task that always runs in defaultExclusiveJoinTask"
        return Begun(How.FAILED, reason=reason, code=ReasonCode.TERMINAL_ERROR)
    if not task.is_terminal:
        return Begun(How.RUNNING, code=ReasonCode.PREVIOUS_TASK_DONE, waiting_for=WaitingFor.TASKS, progress=(0, 1))
    if not FACTS[task.status].is_successful:
        reason = f"{task.reference} {task.status}: {task.reason or 'no reason given'}"
        return Begun(How.FAILED, reason=reason, code=ReasonCode.JOINED)
    return Begun(How.DONE, output=orjson.loads(task.output or b"{}"), code=ReasonCode.JOINED)


def _check_exclusive(document: Mapping[str, Json], path: str) -> list[Violation]:
    return missing(document, path, "joinOn")


EXCLUSIVE_JOIN = TaskType(
    about="takes the output of the first task of its `joinOn` that has run (behind a SWITCH)",
    begin=_exclusive_join,
    check=_check_exclusive,
)
FORK_JOIN = TaskType(
    about="begins several lists side by side; a JOIN follows it",
    begin=_fork,
    enters=_branches,
    goes_on=True,
    list_end=ListEnd.STOPS,
    check=_check_fork,
)
JOIN = TaskType(about="waits for the tasks of its `joinOn`; gives their outputs by reference", begin=_join)
