"""Rerun: an ended workflow runs again from one of its tasks on, or from the beginning with another input.

Only what follows the task in the definition runs again with it (D9): its later siblings, what stands behind the
operators around it, and later rounds of loops around it. Other branches of a fork stay as they are.
"""

from __future__ import annotations

from broker_engine.decider.definitions import parse_json
from broker_engine.decider.draft import Draft, Repeat
from broker_engine.decider.operations.again import run_again, take_up
from broker_engine.decider.operations.refusals import not_ended, refuse, tell_parent
from broker_engine.decider.operations.restarts import begin_anew
from broker_engine.decider.operations.retries import failed_tasks
from broker_engine.errors import BadRequest
from broker_engine.model.commands import RerunWorkflow
from broker_engine.model.state import TaskState
from broker_engine.model.status import ReasonCode


def rerun(draft: Draft, command: RerunWorkflow) -> str | None:
    """Run again from a task on."""
    problem = not_ended(draft, "run again" if command.task_id is not None else "restarted")
    if problem is not None:
        return refuse(draft, problem)
    row = None
    if command.task_id is not None:
        rows = draft.execution.tasks
        row = next((task for task in rows.values() if task.task_id == command.task_id), None)
        row = row or rows.get(command.reference or "")
        if row is None:
            return refuse(draft, _unknown(command.task_id), 400)
    try:
        _check(draft, command)
    except BadRequest as error:
        return refuse(draft, str(error), error.status)
    take_up(draft, ReasonCode.WORKFLOW_RERUN, f"run again by {command.operator}")
    if command.workflow_input is not None:
        draft.change_workflow(input=command.workflow_input)
    if command.correlation_id is not None:
        draft.change_workflow(correlation_id=command.correlation_id)
    if row is None:
        begin_anew(draft, draft.execution.definition, ReasonCode.WORKFLOW_RERUN)
    else:
        run_again(draft, _targets(draft, row, command), ReasonCode.WORKFLOW_RERUN, is_retry=False)
    tell_parent(draft)
    draft.answer(200, draft.workflow.workflow_id)
    return None


def _targets(draft: Draft, row: TaskState, command: RerunWorkflow) -> dict[str, Repeat]:
    """The task itself, and what else did not succeed: the workflow could not complete without it."""
    targets = {row.reference: Repeat(retried_task_id=row.task_id, input=command.task_input)}
    for failed in failed_tasks(draft):
        targets.setdefault(failed.reference, Repeat(retried_task_id=failed.task_id, goes_on=True))
    return targets


def _check(draft: Draft, command: RerunWorkflow) -> None:
    limit = draft.context.max_payload_bytes
    for name, given in (("taskInput", command.task_input), ("workflowInput", command.workflow_input)):
        if given is None:
            continue
        parse_json(given, what=name)
        if len(given) > limit:
            raise BadRequest(f"{name} has {len(given)} bytes, the limit is {limit}: give references instead of data")


def _unknown(task_id: str) -> str:
    return (
        f"no task of the workflow's present run has the id {task_id}: name one that `workflow get` shows; a task of a "
        f"sub-workflow is run again in that"
    )
