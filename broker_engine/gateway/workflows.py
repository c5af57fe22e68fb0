"""`/api/workflow`: start, look, find, wait, and the operations on a running workflow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Query, Request, Response
from fastapi import Body as JsonBody
from sqlalchemy import ColumnElement
from starlette.responses import StreamingResponse

from broker_engine.errors import BadRequest, NotFound
from broker_engine.gateway import search
from broker_engine.gateway.answers import Engine, check_unknown, empty_answer, json_answer, text_answer
from broker_engine.gateway.bodies import StartRequest, bounded
from broker_engine.gateway.bulk import each
from broker_engine.gateway.documents import (
    run_document,
    status_document,
    summary_document,
    task_document,
    workflow_document,
)
from broker_engine.gateway.hub import Hub
from broker_engine.gateway.read_model import workflows
from broker_engine.gateway.snapshots import Snapshot
from broker_engine.model.commands import PauseWorkflow, PushMessage, ResetCallbacks, ResumeWorkflow, TerminateWorkflow
from broker_engine.model.state import TaskState, WorkflowState
from broker_engine.model.status import TaskStatus, WorkflowStatus
from broker_engine.wire.codecs import WORKFLOW_STATE

router = APIRouter(prefix="/api/workflow", tags=["workflows"])

#: As Conductor: a larger page is refused.
MAX_PAGE = 5_000
MAX_WAIT_SECONDS = 300
#: A stream without changes says so this often, so that proxies keep it open.
STREAM_PULSE_SECONDS = 15.0

Ids = Annotated[list[str], JsonBody()]
Input = Annotated[dict[str, Any] | None, JsonBody()]

#: Operations that the engine has no command for yet, by path below a workflow.
NOT_YET: Mapping[str, tuple[str, str]] = {
    "jump to a task": ("POST", "/{workflow_id}/jump/{reference}"),
    "test": ("POST", "/test"),
}


def _refuse(what: str) -> Callable[[], Response]:
    def refuse() -> Response:
        raise BadRequest(f"{what}: not yet supported here")

    return refuse


for _what, (_method, _path) in NOT_YET.items():
    router.add_api_route(_path, _refuse(_what), methods=[_method], summary=f"{_what} (not yet supported)")


# --- start


@router.post("")
def start(engine: Engine, request: StartRequest, strict: bool = False) -> Response:
    """Start a workflow; the answer is its id."""
    warnings = check_unknown(request.unknown(), strict=strict)
    return text_answer(_start(engine, request), warnings=warnings)


@router.post("/execute/{name}/{version}")
async def execute(
    engine: Engine,
    name: str,
    version: int,
    request: StartRequest,
    requestId: str | None = None,
    waitUntilTaskRef: str | None = None,
    waitForSeconds: Annotated[float, Query(ge=0, le=MAX_WAIT_SECONDS)] = 10,
) -> Response:
    """Start a workflow and wait until it has ended, or one of the tasks named has (several joined by commas)."""
    chosen = request.model_copy(update={"name": name, "version": version or None})
    workflow_id = await asyncio.to_thread(_start, engine, chosen)
    references = frozenset((waitUntilTaskRef or "").split(",")) - {"", "None"}
    state, found = await _wait(engine, workflow_id, references, waitForSeconds)
    return json_answer(run_document(state, found, engine.definition_of(state), requestId))


def _start(engine: Hub, request: StartRequest) -> str:
    if request.externalInputPayloadStoragePath:
        raise BadRequest("externalInputPayloadStoragePath: not supported, put a reference into the input instead")
    future = engine.client.start_async(
        request.name,
        request.input,
        version=request.version or None,
        workflow_id=request.workflowId,
        idempotency_key=request.idempotencyKey,
        strategy=request.idempotencyStrategy,
        correlation_id=request.correlationId,
        priority=request.priority,
        source=request.source,
        tenant=request.tenant,
        deadline_at=request.deadlineAt,
        task_to_domain=request.taskToDomain,
        definition=request.workflowDef,
    )
    workflow_id = engine.client.started(future)
    engine.tail.see_workflow(workflow_id)
    return workflow_id


async def _wait(
    engine: Hub, workflow_id: str, references: frozenset[str], seconds: float
) -> tuple[WorkflowState, list[TaskState]]:
    """The workflow when it has ended, or one of these tasks has, or the time is over."""
    deadline = asyncio.get_running_loop().time() + seconds
    with engine.tail.watching(workflow_id) as changed:
        while True:
            changed.clear()
            state, found = await asyncio.to_thread(_look, engine, workflow_id)
            is_there = any(task.is_terminal and task.reference in references for task in found)
            rest = deadline - asyncio.get_running_loop().time()
            if state.status.is_terminal or is_there or rest <= 0:
                return state, found
            try:
                await asyncio.wait_for(changed.wait(), rest)
            except TimeoutError:
                continue


def _look(engine: Hub, workflow_id: str) -> tuple[WorkflowState, list[TaskState]]:
    state = engine.workflow(workflow_id)
    return state, engine.model.tasks_of(state)


# --- find


@router.get("/search")
def find_workflows(
    engine: Engine,
    query: str = "",
    freeText: str = "*",
    sort: str | None = None,
    start: Annotated[int, Query(ge=0)] = 0,
    size: Annotated[int, Query(ge=0)] = 100,
) -> Response:
    """A page of workflows: `query` is `field op value` joined by AND, `sort` is `field:ASC|DESC`."""
    page = engine.model.find(
        workflows,
        [*search.parse(query, workflows), *search.free_text(freeText, workflows)],
        search.order_by(sort, workflows),
        start,
        _page(size),
    )
    found = [summary_document(WORKFLOW_STATE.decode(value)) for value in page.values]
    return json_answer({"totalHits": page.total, "results": found})


@router.get("/search-v2")
def find_whole_workflows(
    engine: Engine,
    query: str = "",
    freeText: str = "*",
    sort: str | None = None,
    start: Annotated[int, Query(ge=0)] = 0,
    size: Annotated[int, Query(ge=0)] = 100,
) -> Response:
    """The same with whole workflows, without their tasks."""
    conditions = [*search.parse(query, workflows), *search.free_text(freeText, workflows)]
    page = engine.model.find(workflows, conditions, search.order_by(sort, workflows), start, _page(size))
    found = [workflow_document(WORKFLOW_STATE.decode(value)) for value in page.values]
    return json_answer({"totalHits": page.total, "results": found})


@router.get("/running/{name}")
def running(
    engine: Engine,
    name: str,
    version: int | None = None,
    startTime: int | None = None,
    endTime: int | None = None,
) -> Response:
    """The ids of a definition's workflows that have not ended; with times (epoch ms), of those started between."""
    live = [WorkflowStatus.RUNNING.value, WorkflowStatus.PAUSED.value]
    conditions: list[ColumnElement[bool]] = [workflows.c.name == name, workflows.c.status.in_(live)]
    if version is not None:
        conditions.append(workflows.c.version == version)
    if startTime is not None:
        conditions.append(workflows.c.start_time >= startTime)
    if endTime is not None:
        conditions.append(workflows.c.start_time <= endTime)
    return json_answer([state.workflow_id for state in _found(engine, conditions)])


@router.post("/{name}/correlated")
def correlated_by_many(
    engine: Engine,
    name: str,
    ids: Ids,
    includeClosed: bool = False,
    includeTasks: bool = False,
) -> Response:
    """The workflows of a definition with one of these correlation ids, by correlation id."""
    found = {cid: _correlated(engine, name, cid, includeClosed, includeTasks) for cid in bounded(ids)}
    return json_answer(found)


@router.get("/{name}/correlated/{correlation_id}")
def correlated(
    engine: Engine,
    name: str,
    correlation_id: str,
    includeClosed: bool = False,
    includeTasks: bool = False,
) -> Response:
    return json_answer(_correlated(engine, name, correlation_id, includeClosed, includeTasks))


def _correlated(engine: Hub, name: str, correlation_id: str, closed: bool, with_tasks: bool) -> list[dict[str, Any]]:
    conditions: list[ColumnElement[bool]] = [
        workflows.c.name == name,
        workflows.c.correlation_id == correlation_id,
    ]
    if not closed:
        conditions.append(workflows.c.status.in_([WorkflowStatus.RUNNING.value, WorkflowStatus.PAUSED.value]))
    return [_document(engine, state, with_tasks=with_tasks) for state in _found(engine, conditions)]


def _found(engine: Hub, conditions: Sequence[ColumnElement[bool]]) -> list[WorkflowState]:
    page = engine.model.find(workflows, conditions, search.order_by(None, workflows), 0, MAX_PAGE)
    return [WORKFLOW_STATE.decode(value) for value in page.values]


def _page(size: int) -> int:
    if size > MAX_PAGE:
        raise BadRequest(f"size {size} is too large: a page holds at most {MAX_PAGE}")
    return size


# --- many at once


@router.put("/bulk/pause")
def bulk_pause(engine: Engine, ids: Ids) -> Response:
    return each(ids, lambda one: engine.ask(PauseWorkflow, one))


@router.put("/bulk/resume")
def bulk_resume(engine: Engine, ids: Ids) -> Response:
    return each(ids, lambda one: engine.ask(ResumeWorkflow, one))


@router.post("/bulk/terminate")
def bulk_terminate(
    engine: Engine,
    ids: Ids,
    reason: str | None = None,
    triggerFailureWorkflow: bool = False,  # noqa: ARG001 - the engine decides that by the definition
) -> Response:
    return each(ids, lambda one: engine.ask(TerminateWorkflow, one, reason=reason))


@router.delete("/bulk/terminate")
def bulk_terminate_by_delete(engine: Engine, ids: Ids, reason: str | None = None) -> Response:
    return each(ids, lambda one: engine.ask(TerminateWorkflow, one, reason=reason))


# --- one


@router.put("/decide/{workflow_id}")
def decide(engine: Engine, workflow_id: str) -> Response:
    """Nothing to do: the engine decides by itself. The workflow must exist."""
    engine.workflow(workflow_id)
    return empty_answer()


@router.get("/{workflow_id}")
def workflow(engine: Engine, workflow_id: str, includeTasks: bool = True) -> Response:
    """A workflow with the attempts of its present run."""
    return json_answer(_document(engine, engine.workflow(workflow_id), with_tasks=includeTasks))


@router.get("/{workflow_id}/status")
def status(
    engine: Engine,
    workflow_id: str,
    includeOutput: bool = False,
    includeVariables: bool = False,
) -> Response:
    state = engine.workflow(workflow_id)
    return json_answer(status_document(state, with_output=includeOutput, with_variables=includeVariables))


@router.get("/{workflow_id}/tasks")
def tasks_of(
    engine: Engine,
    workflow_id: str,
    start: Annotated[int, Query(ge=0)] = 0,
    count: Annotated[int, Query(ge=0, le=MAX_PAGE)] = 15,
    status: Annotated[list[TaskStatus] | None, Query()] = None,
) -> Response:
    """A page of the attempts of a workflow, of these statuses."""
    state, found = _look(engine, workflow_id)
    listed = [task for task in found if not status or task.status in status]
    snapshot = Snapshot(engine.definition_of(state), found)
    shown = [task_document(task, state, snapshot.step_of(task)) for task in listed[start : start + count]]
    return json_answer({"totalHits": len(listed), "results": shown})


@router.get("/{workflow_id}/stream")
async def stream(engine: Engine, workflow_id: str, request: Request) -> Response:
    """Server-sent events: the workflow now (event `workflow`) and after every change, until it has ended."""
    await asyncio.to_thread(engine.workflow, workflow_id)  # 404 before the stream begins
    return StreamingResponse(
        _events(engine, workflow_id, request), media_type="text/event-stream", headers={"Cache-Control": "no-store"}
    )


async def _events(engine: Hub, workflow_id: str, request: Request) -> AsyncIterator[bytes]:
    last = b""
    with engine.tail.watching(workflow_id) as changed:
        while not await request.is_disconnected():
            changed.clear()
            try:
                state, found = await asyncio.to_thread(_look, engine, workflow_id)
            except NotFound:
                yield b"event: removed\ndata: {}\n\n"
                return
            shown = workflow_document(state, found, engine.definition_of(state))
            shown.pop("workflowDefinition", None)  # the same every time
            data = orjson.dumps(shown)
            if data != last:
                last = data
                yield b"event: workflow\ndata: " + data + b"\n\n"
            if state.status.is_terminal:
                return
            try:
                await asyncio.wait_for(changed.wait(), STREAM_PULSE_SECONDS)
            except TimeoutError:
                yield b": still there\n\n"


@router.put("/{workflow_id}/pause")
def pause(engine: Engine, workflow_id: str, reason: str | None = None) -> Response:
    engine.ask(PauseWorkflow, workflow_id, reason=reason)
    return empty_answer()


@router.put("/{workflow_id}/resume")
def resume(engine: Engine, workflow_id: str) -> Response:
    engine.ask(ResumeWorkflow, workflow_id)
    return empty_answer()


@router.post("/{workflow_id}/messages")
def send_message(engine: Engine, workflow_id: str, message: Annotated[dict[str, Any], JsonBody()]) -> Response:
    """Send a message to a live workflow; the answer is the message's id (429 when it holds too many already)."""
    return text_answer(engine.ask(PushMessage, workflow_id, payload=orjson.dumps(message)))


@router.post("/{workflow_id}/resetcallbacks")
def reset_callbacks(engine: Engine, workflow_id: str) -> Response:
    """Hand out now what waits for a callback."""
    engine.ask(ResetCallbacks, workflow_id)
    return empty_answer(204)


@router.delete("/{workflow_id}")
def terminate(
    engine: Engine,
    workflow_id: str,
    reason: str | None = None,
    triggerFailureWorkflow: bool = False,  # noqa: ARG001 - the engine decides that by the definition
    compensate: bool = False,
) -> Response:
    """End a workflow; its live tasks are cancelled. With ``compensate`` what it has completed is undone."""
    engine.ask(TerminateWorkflow, workflow_id, reason=reason, compensate=compensate)
    return empty_answer()


@router.post("/{name}")
def start_by_name(
    engine: Engine,
    name: str,
    input: Input = None,
    version: int | None = None,
    correlationId: str | None = None,
    priority: Annotated[int, Query(ge=0, le=99)] = 0,
) -> Response:
    """Start a workflow whose input is the body; the answer is its id."""
    request = StartRequest(
        name=name, version=version, correlationId=correlationId, priority=priority, input=input or {}
    )
    return text_answer(_start(engine, request))


def _document(engine: Hub, state: WorkflowState, *, with_tasks: bool) -> dict[str, Any]:
    found = engine.model.tasks_of(state) if with_tasks else None
    return workflow_document(state, found, engine.definition_of(state))
