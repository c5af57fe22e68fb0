"""Lost workers: what becomes of the attempts that ran on a worker that fell silent (D27)."""

from __future__ import annotations

from broker_engine.decider import flow
from broker_engine.decider.deadlines import response_clock_ms
from broker_engine.decider.draft import Draft
from broker_engine.model.commands import WorkerLost
from broker_engine.model.definitions import OnWorkerLost
from broker_engine.model.state import Execution, TaskState
from broker_engine.model.status import IN_HAND


def lost_tasks(execution: Execution, worker_id: str, lost_at_ms: int) -> list[TaskState]:
    """The attempts that a worker took with it.

    Not those that gave a sign of life after ``lost_at_ms``: the worker came back, and they may be newer than its loss.
    """
    if execution.workflow.status.is_terminal or execution.workflow.quarantine is not None:
        return []
    return [
        task
        for task in execution.live_tasks()
        if task.worker_id == worker_id
        and task.phase in IN_HAND
        and response_clock_ms(task) <= lost_at_ms
        and execution.definition.task(task.reference).definition.on_worker_lost is OnWorkerLost.TIME_OUT
    ]


def worker_lost(draft: Draft, command: WorkerLost) -> str | None:
    """Time the worker's attempts out; they are retried whatever their timeout policy."""
    lost = lost_tasks(draft.execution, command.worker_id, command.lost_at_ms)
    for before in lost:
        task = draft.execution.tasks[before.reference]
        if draft.workflow.status.is_terminal or task.task_id != before.task_id or task.is_terminal:
            continue  # ended with the workflow, by the loss of another
        flow.lose(draft, task, f"worker {command.worker_id} fell silent")
    return None if lost else f"nothing runs on worker {command.worker_id}"
