"""`/api/workflow/…`: operations on workflows that have ended, skipping, variables."""

from __future__ import annotations

from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Response
from fastapi import Body as JsonBody

from broker_engine.gateway.answers import Body, Engine, check_unknown, empty_answer, text_answer
from broker_engine.gateway.bulk import each
from broker_engine.gateway.hub import Hub, json_bytes
from broker_engine.model.commands import (
    RemoveWorkflow,
    RerunWorkflow,
    RestartWorkflow,
    RetryWorkflow,
    SkipTask,
    UpdateVariables,
)

router = APIRouter(prefix="/api/workflow", tags=["workflows"])

Ids = Annotated[list[str], JsonBody()]


class RerunRequest(Body):
    """RerunWorkflowRequest."""

    reRunFromWorkflowId: str | None = None
    reRunFromTaskId: str | None = None
    workflowInput: dict[str, Any] | None = None
    taskInput: dict[str, Any] | None = None
    correlationId: str | None = None


class SkipRequest(Body):
    """SkipTaskRequest."""

    taskInput: dict[str, Any] | None = None
    taskOutput: dict[str, Any] | None = None


@router.post("/bulk/restart")
def bulk_restart(engine: Engine, ids: Ids, useLatestDefinitions: bool = False) -> Response:
    return each(ids, lambda one: engine.ask(RestartWorkflow, one, use_latest=useLatestDefinitions))


@router.post("/bulk/retry")
def bulk_retry(engine: Engine, ids: Ids, resumeSubworkflowTasks: bool = False) -> Response:
    return each(ids, lambda one: engine.ask(RetryWorkflow, one, resume_children=resumeSubworkflowTasks))


@router.delete("/bulk/remove")
def bulk_remove(
    engine: Engine,
    ids: Ids,
    archiveWorkflow: bool = False,  # noqa: ARG001 - the events stay; there is no other archive
) -> Response:
    return each(ids, lambda one: engine.ask(RemoveWorkflow, one))


@router.delete("/{workflow_id}/remove")
def remove(
    engine: Engine,
    workflow_id: str,
    archiveWorkflow: bool = True,  # noqa: ARG001 - as above
) -> Response:
    """Forget an ended workflow now instead of at the end of its retention."""
    engine.ask(RemoveWorkflow, workflow_id)
    return empty_answer()


@router.post("/{workflow_id}/restart")
def restart(engine: Engine, workflow_id: str, useLatestDefinitions: bool = False) -> Response:
    """Run an ended workflow again from the beginning, with its input."""
    engine.ask(RestartWorkflow, workflow_id, use_latest=useLatestDefinitions)
    return empty_answer(204)


@router.post("/{workflow_id}/retry")
def retry(
    engine: Engine,
    workflow_id: str,
    resumeSubworkflowTasks: bool = False,
    retryIfRetriedByParent: bool = True,  # noqa: ARG001 - a parent that runs again never retries a child twice
) -> Response:
    """Try again what failed in an ended workflow; what was done stays done."""
    engine.ask(RetryWorkflow, workflow_id, resume_children=resumeSubworkflowTasks)
    return empty_answer(204)


@router.post("/{workflow_id}/rerun")
def rerun(engine: Engine, workflow_id: str, request: RerunRequest, strict: bool = False) -> Response:
    """Run an ended workflow again from a task on; the answer is the workflow's id."""
    warnings = check_unknown(request.unknown(), strict=strict)
    task_id = request.reRunFromTaskId or None
    engine.ask(
        RerunWorkflow,
        workflow_id,
        task_id=task_id,
        reference=None if task_id is None else _reference(engine, workflow_id, task_id),
        task_input=json_bytes(request.taskInput),
        workflow_input=json_bytes(request.workflowInput),
        correlation_id=request.correlationId,
    )
    return text_answer(workflow_id, warnings=warnings)


def _reference(engine: Hub, workflow_id: str, task_id: str) -> str | None:
    """The reference of an attempt, which need not be the latest one."""
    found = engine.model.tasks_of(engine.workflow(workflow_id))
    return next((task.reference for task in found if task.task_id == task_id), None)


@router.put("/{workflow_id}/skiptask/{reference}")
def skip_task(engine: Engine, workflow_id: str, reference: str, request: SkipRequest | None = None) -> Response:
    """Jump over a task that has not begun, when it is reached."""
    wanted = request or SkipRequest()
    given = {"input": json_bytes(wanted.taskInput), "output": json_bytes(wanted.taskOutput)}
    engine.ask(SkipTask, workflow_id, reference=reference, **given)
    return empty_answer()


@router.post("/{workflow_id}/variables")
def update_variables(engine: Engine, workflow_id: str, variables: Annotated[dict[str, Any], JsonBody()]) -> Response:
    """Put values into the variables of a running workflow; others stay."""
    engine.ask(UpdateVariables, workflow_id, variables=orjson.dumps(variables))
    return empty_answer()
