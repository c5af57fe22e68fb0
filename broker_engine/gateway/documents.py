"""States as Conductor's JSON: Workflow, Task, WorkflowSummary and what the API wraps around them.

Nulls are left out, zeros and empty objects stay, as Conductor's server writes them. Moments are epoch milliseconds.
Beyond Conductor, a task has ``phase``, ``waitingFor``, ``nextDeadline`` and ``steps``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson

from broker_engine.gateway.snapshots import Snapshot
from broker_engine.model.limits import DEFAULT_DOMAIN
from broker_engine.model.state import Step, TaskState, WorkflowState
from broker_engine.model.status import Phase
from broker_engine.wire.records import ScheduledTask

Document = dict[str, Any]

#: A workflow's one text field in a search result is cut here.
_SUMMARY_CHARACTERS = 2_000


def domain_shown(domain: str) -> str | None:
    """Conductor knows no name for the queue without a domain."""
    return None if domain == DEFAULT_DOMAIN else domain


def workflow_document(
    state: WorkflowState, tasks: Sequence[TaskState] | None = None, definition: bytes | None = None
) -> Document:
    """A Workflow; ``tasks`` None leaves them out."""
    snapshot = Snapshot(definition, tasks or ())
    document: Document = {
        "workflowId": state.workflow_id,
        "workflowName": state.name,
        "workflowType": state.name,
        "workflowVersion": state.version,
        "version": state.version,
        "status": state.status,
        "createTime": state.created_at_ms,
        "startTime": state.created_at_ms,
        "updateTime": state.updated_at_ms,
        "endTime": state.ended_at_ms or 0,
        "createdBy": state.created_by,
        "correlationId": state.correlation_id,
        "priority": state.priority,
        "input": _json(state.input),
        "output": _json(state.output),
        "variables": _json(state.variables),
        "reasonForIncompletion": state.reason,
        "failedReferenceTaskNames": [state.failed_reference] if state.failed_reference else [],
        "taskToDomain": _json(state.task_to_domain),
        "idempotencyKey": state.idempotency_key,
        "workflowDefinition": snapshot.document,
        "run": state.run,
        "compensationWorkflowId": state.compensated_by,
        "reasonCode": state.reason_code,
        "tenant": state.tenant,
        "source": state.source,
        "deadlineAt": state.deadline_at_ms,
        "pausedAt": state.paused_at_ms,
        "quarantine": state.quarantine,
    }
    if tasks is not None:
        document["tasks"] = [task_document(task, state, snapshot.step_of(task)) for task in tasks]
    return _without_nulls(document)


def task_document(
    task: TaskState, workflow: WorkflowState | None = None, definition: Mapping[str, Any] | None = None
) -> Document:
    """A Task; ``definition`` is its WorkflowTask in the workflow's snapshot."""
    task_definition = (definition or {}).get("taskDefinition") or {}
    started = task.started_at_ms or 0
    return _without_nulls(
        {
            "taskId": task.task_id,
            "taskType": task.task_type,
            "taskDefName": task.task_type,
            "referenceTaskName": task.reference,
            "status": task.status,
            "phase": task.phase,
            "workflowInstanceId": task.workflow_id,
            "workflowType": task.workflow_name,
            "correlationId": None if workflow is None else workflow.correlation_id,
            "workflowPriority": task.priority,
            "inputData": _json(task.input),
            "outputData": _json(task.output),
            "retryCount": task.attempt,
            "seq": task.seq,
            "iteration": task.iteration,
            "pollCount": task.poll_count,
            "scheduledTime": task.scheduled_at_ms,
            "firstScheduledTime": task.first_scheduled_at_ms,
            "startTime": started,
            "endTime": task.ended_at_ms or 0,
            "updateTime": task.updated_at_ms,
            "queueWaitTime": max(started - task.scheduled_at_ms, 0) if started else 0,
            "startDelayInSeconds": task.retry_delay_ms // 1_000,
            "callbackAfterSeconds": _callback_seconds(task),
            "callbackFromWorker": True,
            "responseTimeoutSeconds": task_definition.get("responseTimeoutSeconds", 3_600 if definition else 0),
            "rateLimitPerFrequency": task_definition.get("rateLimitPerFrequency", 0),
            "rateLimitFrequencyInSeconds": task_definition.get("rateLimitFrequencyInSeconds", 1),
            "retriedTaskId": task.retried_task_id,
            "retried": task.is_retried,
            "executed": task.is_terminal,
            "workerId": task.worker_id,
            "domain": domain_shown(task.domain),
            "reasonForIncompletion": task.reason,
            "workflowTask": definition,
            "taskDefinition": task_definition or None,
            "loopOverTask": task.iteration > 0,
            "reasonCode": task.reason_code,
            "errorCode": task.error_code,
            "waitingFor": task.waiting_for,
            "nextDeadline": None
            if task.next_deadline is None
            else {"kind": task.next_deadline, "at": task.next_deadline_at_ms},
            "steps": [_step(step) for step in task.steps],
            "currentStep": task.current_step,
            "progress": None
            if task.progress_done is None
            else {"done": task.progress_done, "total": task.progress_total},
            "run": task.run,
        }
    )


def polled_document(work: ScheduledTask, worker_id: str, started_at_ms: int) -> Document:
    """A Task as it is handed to the worker that polled it."""
    return _without_nulls(
        {
            "taskId": work.task_id,
            "taskType": work.task_type,
            "taskDefName": work.task_type,
            "referenceTaskName": work.reference,
            "status": "IN_PROGRESS",
            "phase": Phase.RUNNING,
            "workflowInstanceId": work.workflow_id,
            "workflowType": work.workflow_name,
            "correlationId": work.correlation_id,
            "workflowPriority": work.priority,
            "inputData": _json(work.input),
            "outputData": {},
            "retryCount": work.attempt,
            "pollCount": work.hand_out,
            "scheduledTime": work.scheduled_at_ms,
            "startTime": started_at_ms,
            "updateTime": started_at_ms,
            "endTime": 0,
            "queueWaitTime": max(started_at_ms - work.scheduled_at_ms, 0),
            "startDelayInSeconds": 0,
            "callbackAfterSeconds": 0,
            "callbackFromWorker": True,
            "responseTimeoutSeconds": work.response_timeout_ms // 1_000,
            "workerId": worker_id,
            "domain": domain_shown(work.domain),
            "retried": False,
            "executed": False,
            "run": work.run,
        }
    )


def summary_document(state: WorkflowState) -> Document:
    """A WorkflowSummary, as searches give it."""
    end = state.ended_at_ms
    return _without_nulls(
        {
            "workflowId": state.workflow_id,
            "workflowType": state.name,
            "version": state.version,
            "correlationId": state.correlation_id,
            "status": state.status,
            "startTime": _iso(state.created_at_ms),
            "updateTime": _iso(state.updated_at_ms),
            "endTime": None if end is None else _iso(end),
            "executionTime": 0 if end is None else end - state.created_at_ms,
            "input": _cut(state.input),
            "output": _cut(state.output or b"{}"),
            "inputSize": len(state.input),
            "outputSize": len(state.output or b""),
            "reasonForIncompletion": state.reason,
            "failedReferenceTaskNames": state.failed_reference or "",
            "failedTaskNames": [],
            "priority": state.priority,
            "createdBy": state.created_by,
            "idempotencyKey": state.idempotency_key,
            "taskToDomain": _json(state.task_to_domain),
        }
    )


def task_summary_document(task: TaskState) -> Document:
    """A TaskSummary, as searches give it."""
    started, ended = task.started_at_ms, task.ended_at_ms
    return _without_nulls(
        {
            "taskId": task.task_id,
            "taskType": task.task_type,
            "taskDefName": task.task_type,
            "taskReferenceName": task.reference,
            "workflowId": task.workflow_id,
            "workflowType": task.workflow_name,
            "status": task.status,
            "phase": task.phase,
            "domain": domain_shown(task.domain),
            "waitingFor": task.waiting_for,
            "scheduledTime": _iso(task.scheduled_at_ms),
            "startTime": None if started is None else _iso(started),
            "updateTime": _iso(task.updated_at_ms),
            "endTime": None if ended is None else _iso(ended),
            "executionTime": 0 if started is None or ended is None else ended - started,
            "queueWaitTime": 0 if started is None else max(started - task.scheduled_at_ms, 0),
            "input": _cut(task.input),
            "output": _cut(task.output or b"{}"),
            "workflowPriority": task.priority,
            "reasonForIncompletion": task.reason,
        }
    )


def status_document(state: WorkflowState, *, with_output: bool, with_variables: bool) -> Document:
    """A WorkflowStatus."""
    return _without_nulls(
        {
            "workflowId": state.workflow_id,
            "correlationId": state.correlation_id,
            "status": state.status,
            "output": _json(state.output) if with_output else None,
            "variables": _json(state.variables) if with_variables else None,
        }
    )


def run_document(
    state: WorkflowState, tasks: Sequence[TaskState], definition: bytes | None, request_id: str | None
) -> Document:
    """A WorkflowRun, the answer of `execute`."""
    document = workflow_document(state, tasks, definition)
    names = ("correlationId", "createTime", "createdBy", "input", "output", "priority", "status", "tasks", "updateTime")
    run = {name: document[name] for name in (*names, "variables", "workflowId") if name in document}
    ended = state.status.is_terminal
    return _without_nulls({**run, "requestId": request_id, "responseType": "TARGET_WORKFLOW", "isComplete": ended})


def bulk_document(done: Iterable[Any], failed: Mapping[str, str]) -> Document:
    """A BulkResponse."""
    listed = list(done)
    return {
        "bulkSuccessfulResults": listed,
        "bulkErrorResults": dict(failed),
        "message": f"{len(listed)} done, {len(failed)} failed",
    }


def _callback_seconds(task: TaskState) -> int:
    if task.due_at_ms is None or task.is_terminal:
        return 0
    return max(task.due_at_ms - task.updated_at_ms, 0) // 1_000


def _step(step: Step) -> Document:
    return _without_nulls(
        {
            "name": step.name,
            "status": step.status,
            "startTime": step.started_at_ms,
            "endTime": step.ended_at_ms,
            "tries": step.tries,
            "inputSize": step.input_size,
            "outputSize": step.output_size,
            "errorCode": step.error_code,
            "reason": step.reason,
        }
    )


def _json(value: bytes | None) -> Any:
    if not value:
        return {}
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return {}


def _cut(value: bytes) -> str:
    return value.decode(errors="replace")[:_SUMMARY_CHARACTERS]


def _iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _without_nulls(document: Mapping[str, Any]) -> Document:
    return {name: value for name, value in document.items() if value is not None}
