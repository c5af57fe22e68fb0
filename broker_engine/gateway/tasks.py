"""`/api/tasks`: polling, results, logs, queues and search of tasks."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import orjson
import structlog
from fastapi import APIRouter, Query, Request, Response
from fastapi import Body as JsonBody

from broker_engine.errors import BadRequest, NoAnswer, NotFound, PayloadTooLarge, Violation
from broker_engine.gateway import search
from broker_engine.gateway.answers import Engine, check_unknown, empty_answer, json_answer, text_answer
from broker_engine.gateway.bodies import TaskResult
from broker_engine.gateway.documents import (
    domain_shown,
    polled_document,
    task_document,
    task_summary_document,
    workflow_document,
)
from broker_engine.gateway.hub import Hub, json_bytes
from broker_engine.gateway.polling import Attempt
from broker_engine.gateway.read_model import tasks
from broker_engine.gateway.snapshots import Snapshot
from broker_engine.model.commands import ExtendLease, TaskProgressed, TaskReported
from broker_engine.model.limits import DEFAULT_DOMAIN, MAX_PAYLOAD_BYTES
from broker_engine.model.state import TaskState
from broker_engine.model.status import ReportStatus
from broker_engine.wire.codecs import TASK_STATE

_log = structlog.get_logger(__name__)

router = APIRouter(prefix="/api/tasks", tags=["tasks"])

#: As Conductor: a longer poll is refused.
MAX_POLL_MS = 5_000
DEFAULT_POLL_MS = 100
MAX_COUNT = 1_000
#: How long the answer to a result waits for the next task: as long as a client would poll (a start that has to be
#: confirmed takes 40 ms).
NEXT_SECONDS = 0.1
#: How long a result may take to get into the log.
ARRIVE_SECONDS = 30.0
MAX_PAGE = 5_000
IN_PROGRESS = "IN_PROGRESS"
#: What a worker may say (D18).
STATUSES = (IN_PROGRESS, *(status.value for status in ReportStatus))

Output = Annotated[dict[str, Any] | None, JsonBody()]
Domain = Annotated[str | None, Query()]


# --- polling


@router.get("/poll/batch/{task_type}")
async def poll_batch(
    engine: Engine,
    request: Request,
    task_type: str,
    workerid: str = "",
    domain: Domain = None,
    count: Annotated[int, Query(ge=1)] = 1,
    timeout: Annotated[int, Query(ge=0, le=MAX_POLL_MS)] = DEFAULT_POLL_MS,  # noqa: ASYNC109 - the contract's name
) -> Response:
    """Up to `count` tasks; waits up to `timeout` ms for the first."""
    found = await _poll(engine, request, task_type, workerid, domain, count, timeout / 1_000)
    return json_answer(found)


@router.get("/poll/{task_type}")
async def poll(
    engine: Engine,
    request: Request,
    task_type: str,
    workerid: str = "",
    domain: Domain = None,
    timeout: Annotated[int, Query(ge=0, le=MAX_POLL_MS)] = DEFAULT_POLL_MS,  # noqa: ASYNC109
) -> Response:
    """One task, or 204."""
    found = await _poll(engine, request, task_type, workerid, domain, 1, timeout / 1_000)
    return json_answer(found[0]) if found else empty_answer(204)


async def _poll(
    engine: Hub, request: Request, task_type: str, worker_id: str, domain: str | None, count: int, seconds: float
) -> list[dict[str, Any]]:
    worker_id = worker_id or (request.client.host if request.client is not None else "unknown")
    queue = domain or DEFAULT_DOMAIN
    engine.namespace.schedule(queue, task_type)  # refuses names that no queue can have
    attempts = await engine.pollers.poll(queue, task_type, worker_id, min(count, MAX_COUNT), seconds)
    if attempts and await request.is_disconnected():
        engine.pollers.put_back(attempts)
        return []
    engine.pollers.deliver(attempts, worker_id)
    now_ms = time.time_ns() // 1_000_000
    return [polled_document(attempt.work, worker_id, now_ms) for attempt in attempts]


# --- results


@router.post("")
def update(engine: Engine, result: TaskResult, strict: bool = False) -> Response:
    """A task's result, interim result (status IN_PROGRESS) or extended lease; the answer is its id."""
    warnings = check_unknown(result.unknown(), strict=strict)
    task_id = _checked(result).taskId
    attempt = engine.pollers.in_hand(task_id)
    if attempt is not None and result.status == IN_PROGRESS:
        _not_done(engine, attempt, result)
    elif attempt is not None:
        _keep_lines(engine, result, attempt.work.workflow_id)
        _report_in_hand(engine, attempt, result)
    else:
        task = engine.model.task(task_id)
        _keep_lines(engine, result, task.workflow_id)
        _apply(engine, task, result)
    return text_answer(task_id, warnings=warnings)


@router.post("/update-v2")
async def update_and_poll(engine: Engine, request: Request, result: TaskResult, strict: bool = False) -> Response:
    """As the above, but the answer is the next task of the same queue, or 204."""
    warnings = check_unknown(result.unknown(), strict=strict)
    task_id = _checked(result).taskId
    attempt = engine.pollers.in_hand(task_id)
    if attempt is not None:
        _keep_lines(engine, result, attempt.work.workflow_id)
        queue = (attempt.work.domain, attempt.work.task_type)
        if result.status == IN_PROGRESS:
            _not_done(engine, attempt, result)
        else:
            await _send_report(engine, attempt, result)
    else:
        try:
            task = await asyncio.to_thread(engine.model.task, task_id)
        except NotFound as error:  # 404 makes a client give this endpoint up for good
            raise BadRequest(str(error)) from error
        await asyncio.to_thread(_keep_lines, engine, result, task.workflow_id)
        await asyncio.to_thread(_apply, engine, task, result)
        queue = (task.domain, task.task_type)
    if result.extendLease or result.status == IN_PROGRESS:
        return empty_answer(204, warnings=warnings)
    worker_id = result.workerId or (attempt.worker_id if attempt is not None else None) or ""
    found = await _poll(engine, request, queue[1], worker_id, queue[0], 1, NEXT_SECONDS)
    return json_answer(found[0], warnings=warnings) if found else empty_answer(204, warnings=warnings)


async def _send_report(engine: Hub, attempt: Attempt, result: TaskResult) -> None:
    """Hand a result over and wait until it is in the log."""
    loop, arrived = asyncio.get_running_loop(), asyncio.Event()

    def in_log() -> None:
        with contextlib.suppress(RuntimeError):  # the server has stopped, nobody waits any more
            loop.call_soon_threadsafe(arrived.set)

    engine.pollers.report(attempt, **_told(result), on_arrival=in_log)
    try:
        await asyncio.wait_for(arrived.wait(), ARRIVE_SECONDS)
    except TimeoutError as error:
        raise NoAnswer(f"the result could not be stored within {ARRIVE_SECONDS:g} s; send it again") from error


def _report_in_hand(engine: Hub, attempt: Attempt, result: TaskResult) -> None:
    """The same for who wants to see what came of it."""
    work, told = attempt.work, _told(result)
    engine.pollers.let_go(attempt)
    engine.ask(
        TaskReported,
        work.workflow_id,
        reference=work.reference,
        task_id=work.task_id,
        hand_out=work.hand_out,
        lease=attempt.lease,
        sequence=attempt.signals.end(),
        **told,
    )


def _not_done(engine: Hub, attempt: Attempt, result: TaskResult) -> None:
    if result.extendLease:
        engine.pollers.extend(attempt)
        return
    after_ms = round(result.callbackAfterSeconds * 1_000)
    engine.pollers.put_away(attempt, after_ms, json_bytes(result.outputData), result.reasonForIncompletion)


def _told(result: TaskResult) -> dict[str, Any]:
    return {
        "status": ReportStatus(result.status),
        "worker_id": result.workerId,
        "output": json_bytes(result.outputData),
        "reason": result.reasonForIncompletion,
        "error_code": result.errorCode,
    }


def _apply(engine: Hub, task: TaskState, result: TaskResult) -> None:
    """A result of a task that this gateway did not hand out: as if an operator had sent it."""
    if result.extendLease:
        engine.ask_about(ExtendLease, task)
    elif result.status == IN_PROGRESS:
        engine.ask_about(
            TaskProgressed,
            task,
            callback_after_ms=max(round(result.callbackAfterSeconds * 1_000), 1),
            worker_id=result.workerId,
            output=json_bytes(result.outputData),
            reason=result.reasonForIncompletion,
        )
    else:
        engine.ask_about(TaskReported, task, **_told(result))


def _checked(result: TaskResult) -> TaskResult:
    if result.status not in STATUSES:
        raise BadRequest(
            violations=(
                Violation(path="status", message=f"must be one of {', '.join(STATUSES)}", invalid_value=result.status),
            )
        )
    size = len(json_bytes(result.outputData) or b"")
    if size > MAX_PAYLOAD_BYTES:
        raise PayloadTooLarge(
            f"outputData has {size} bytes, the limit is {MAX_PAYLOAD_BYTES}: store it elsewhere and return a reference"
        )
    return result


def _keep_lines(engine: Hub, result: TaskResult, workflow_id: str) -> None:
    lines = result.lines()
    if lines:
        engine.log_lines(result.taskId, workflow_id, lines)


# --- queues (before the paths with parameters that would swallow them)


@router.get("/queue/sizes")
def queue_sizes(engine: Engine, taskType: Annotated[list[str] | None, Query()] = None) -> Response:
    """How many tasks wait, by task type; of all domains together."""
    sizes = dict.fromkeys(taskType or (), 0)
    for (_, task_type), count in engine.model.waiting().items():
        if taskType is None or task_type in sizes:
            sizes[task_type] = sizes.get(task_type, 0) + count
    return json_answer(sizes)


@router.get("/queue/size")
def queue_size(engine: Engine, taskType: str, domain: Domain = None) -> Response:
    return json_answer(engine.model.waiting().get((domain or DEFAULT_DOMAIN, taskType), 0))


@router.get("/queue/all")
def all_queues(engine: Engine) -> Response:
    """How many tasks wait on each queue; a queue of a domain is `domain:type`."""
    return json_answer({_queue_name(*queue): count for queue, count in sorted(engine.model.waiting().items())})


@router.get("/queue/all/verbose")
def all_queues_verbose(engine: Engine) -> Response:
    """The same in Conductor's verbose shape."""
    found = sorted(engine.model.waiting().items())
    return json_answer({_queue_name(*queue): {"shard": {"size": count, "uacked": 0}} for queue, count in found})


@router.get("/queue/polldata")
def poll_data(engine: Engine, taskType: str) -> Response:
    """Who polled a task type last, and when."""
    return json_answer([entry for entry in _poll_data(engine) if entry["queueName"] == taskType])


@router.get("/queue/polldata/all")
def all_poll_data(engine: Engine) -> Response:
    return json_answer(_poll_data(engine))


@router.post("/queue/requeue/{task_type}")
def requeue(engine: Engine, task_type: str) -> Response:
    """Nothing to do: the engine hands out again by itself what was lost. The answer is how many tasks wait."""
    count = sum(count for (_, name), count in engine.model.waiting().items() if name == task_type)
    return text_answer(str(count))


def _queue_name(domain: str, task_type: str) -> str:
    return task_type if domain == DEFAULT_DOMAIN else f"{domain}:{task_type}"


def _poll_data(engine: Hub) -> list[dict[str, Any]]:
    """HTTP workers of this gateway by their polls, those on Kafka (and other gateways) by their signs of life."""
    found: dict[tuple[str, str, str], int] = engine.pollers.polled()
    for heard in engine.tail.presence():
        word = heard.presence
        if word.worker_id != engine.gateway_id:
            found[word.task_types, word.domain, word.worker_id] = heard.at_ms
    shown = []
    for (task_type, domain, worker_id), at_ms in sorted(found.items()):
        entry: dict[str, Any] = {"queueName": task_type, "workerId": worker_id, "lastPollTime": at_ms}
        if domain_shown(domain) is not None:
            entry["domain"] = domain
        shown.append(entry)
    return shown


# --- search


@router.get("/search")
def find_tasks(
    engine: Engine,
    query: str = "",
    freeText: str = "*",
    sort: str | None = None,
    start: Annotated[int, Query(ge=0)] = 0,
    size: Annotated[int, Query(ge=0)] = 100,
) -> Response:
    """A page of attempts; the grammar is that of workflows."""
    return _page_of(engine, query, freeText, sort, start, size, task_summary_document)


@router.get("/search-v2")
def find_whole_tasks(
    engine: Engine,
    query: str = "",
    freeText: str = "*",
    sort: str | None = None,
    start: Annotated[int, Query(ge=0)] = 0,
    size: Annotated[int, Query(ge=0)] = 100,
) -> Response:
    """The same with whole tasks."""
    return _page_of(engine, query, freeText, sort, start, size, task_document)


def _page_of(
    engine: Hub,
    query: str,
    text: str,
    sort: str | None,
    start: int,
    size: int,
    show: Callable[[TaskState], Mapping[str, Any]],
) -> Response:
    if size > MAX_PAGE:
        raise BadRequest(f"size {size} is too large: a page holds at most {MAX_PAGE}")
    conditions = [*search.parse(query, tasks), *search.free_text(text, tasks)]
    page = engine.model.find(tasks, conditions, search.order_by(sort, tasks), start, size)
    return json_answer({"totalHits": page.total, "results": [show(TASK_STATE.decode(value)) for value in page.values]})


# --- one task


@router.get("/{task_id}")
def task(engine: Engine, task_id: str) -> Response:
    found = engine.model.task(task_id)
    state = engine.workflow(found.workflow_id)
    definition = engine.definition_of(state)
    step = Snapshot(definition).step_of(found) or Snapshot(definition, engine.model.tasks_of(state)).step_of(found)
    return json_answer(task_document(found, state, step))


@router.post("/{task_id}/log")
async def add_log(engine: Engine, task_id: str, request: Request) -> Response:
    """Keep a line; the body is text, as JSON or as it is."""
    line = _line(await request.body())
    attempt = engine.pollers.in_hand(task_id)
    workflow_id = (
        attempt.work.workflow_id
        if attempt is not None
        else (await asyncio.to_thread(engine.model.task, task_id)).workflow_id
    )
    await asyncio.to_thread(engine.log_lines, task_id, workflow_id, [line])
    return empty_answer()


@router.get("/{task_id}/log")
def logs(engine: Engine, task_id: str) -> Response:
    found = engine.model.log_lines(task_id)
    if not found:
        return empty_answer(204)
    return json_answer([{"taskId": task_id, "createdTime": at_ms, "log": line} for at_ms, line in found])


@router.post("/{workflow_id}/{status}/signal")
def signal(workflow_id: str, status: str) -> Response:  # noqa: ARG001
    raise BadRequest("signal: not yet supported here")


@router.post("/{workflow_id}/{status}/signal/sync")
def signal_and_wait(workflow_id: str, status: str) -> Response:  # noqa: ARG001
    raise BadRequest("signal: not yet supported here")


@router.post("/{workflow_id}/{reference}/{status}")
def update_by_reference(
    engine: Engine, workflow_id: str, reference: str, status: str, output: Output = None, workerid: str | None = None
) -> Response:
    """End the pending task of a reference by hand; the output is laid over what it has. The answer is its id."""
    found = _by_reference(engine, workflow_id, reference, status, output, workerid)
    return text_answer("" if found is None else found.task_id)


@router.post("/{workflow_id}/{reference}/{status}/sync")
def update_by_reference_and_look(
    engine: Engine, workflow_id: str, reference: str, status: str, output: Output = None, workerid: str | None = None
) -> Response:
    """The same; the answer is the workflow afterwards."""
    if _by_reference(engine, workflow_id, reference, status, output, workerid) is None:
        raise NotFound(f"no task {reference} is pending in workflow {workflow_id}")
    state = engine.workflow(workflow_id)
    found = engine.model.tasks_of(state)
    return json_answer(workflow_document(state, found, engine.definition_of(state)))


def _by_reference(
    engine: Hub, workflow_id: str, reference: str, status: str, output: dict[str, Any] | None, worker_id: str | None
) -> TaskState | None:
    found = engine.live_task(workflow_id, reference)
    if found is None:
        return None
    before = orjson.loads(found.output) if found.output else {}
    result = TaskResult(
        taskId=found.task_id, status=status, outputData={**before, **(output or {})}, workerId=worker_id
    )
    _apply(engine, found, _checked(result))
    return found


def _line(body: bytes) -> str:
    """Clients send the text bare, as a JSON string, or JSON-escaped without its quotes."""
    text = body.decode(errors="replace")
    quoted = text if text.startswith('"') else f'"{text}"'
    try:
        parsed = orjson.loads(quoted)
    except orjson.JSONDecodeError:
        return text
    return parsed if isinstance(parsed, str) else text
