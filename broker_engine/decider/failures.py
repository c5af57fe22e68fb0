"""The failure workflow: what a workflow that the engine ends starts by its definition, and what that is told.

Its input is the failed one's with ``workflowId``, ``reason``, ``failureStatus``, ``failureTaskId`` and
``failedWorkflow``, the failed execution as Conductor shows it. That may be more than an input can be: then parts are
left out until it fits, the largest and least needed first, and the reason says so. A start that is refused is told to
the failed workflow (``refused``), whose reason names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from broker_engine.decider.children import NO_TASK
from broker_engine.decider.definitions import is_too_deep
from broker_engine.decider.documents import ExecutionDocument
from broker_engine.decider.draft import MAX_REASON, Draft
from broker_engine.decider.expressions import resolve
from broker_engine.decider.identity import failure_workflow_id
from broker_engine.model.commands import IdempotencyStrategy, Parent, StartWorkflow, SubWorkflowEnded
from broker_engine.model.decision import Send
from broker_engine.model.state import TaskState, WorkflowState
from broker_engine.model.status import ReasonCode, WorkflowStatus

Json = dict[str, Any]


def start(
    draft: Draft,
    status: WorkflowStatus,
    code: ReasonCode,
    reason: str | None,
    failed: TaskState | None,
    output: bytes,
) -> bytes:
    """Start the definition's failure workflow if the engine ended this one; returns the output, which names it."""
    workflow, definition = draft.workflow, draft.execution.definition
    if not definition.failure_workflow or status is WorkflowStatus.COMPLETED or code is ReasonCode.CANCEL_REQUESTED:
        return output
    document = ExecutionDocument(draft.execution, None, draft.context.environment)
    name = resolve(definition.failure_workflow, document)
    workflow_id = failure_workflow_id(workflow.workflow_id, workflow.incarnation, workflow.run)
    command = StartWorkflow(
        key=workflow_id,
        operator=f"workflow:{workflow.workflow_id}",
        name=str(name),
        version=definition.failure_workflow_version,
        input=_input(draft, status, reason, failed, output),
        correlation_id=workflow.correlation_id,
        priority=workflow.priority,
        source=source_of(workflow.workflow_id),
        strategy=IdempotencyStrategy.RETURN_EXISTING,
        tenant=workflow.tenant,
        task_to_domain=workflow.task_to_domain,
        parent=Parent(workflow.workflow_id, NO_TASK, NO_TASK),
    )
    draft.outputs.append(Send(command=command))
    return orjson.dumps({**orjson.loads(output), "conductor.failure_workflow": workflow_id})


def source_of(workflow_id: str) -> str:
    return f"failure of {workflow_id}"[:200]


def refused(draft: Draft, command: SubWorkflowEnded) -> str | None:
    """The failure workflow did not start: its reason becomes a part of the failed one's."""
    workflow = draft.workflow
    is_compensation = command.operator == f"workflow:{workflow.compensated_by}"
    if not workflow.status.is_terminal or not (is_compensation or command.operator == f"workflow:{_own_id(workflow)}"):
        return "it is about a failure workflow of another run"
    field = "compensation" if is_compensation else "failureWorkflow"
    told = f"{field}: {command.reason}: correct it, then start it by hand with this workflow's document"
    if told in (workflow.reason or ""):
        return "the failed workflow names it already"
    before = f"{(workflow.reason or '')[: MAX_REASON // 2]}; " if workflow.reason else ""
    draft.change_workflow(reason=f"{before}{told}"[:MAX_REASON])
    draft.tell_workflow(workflow.status, ReasonCode.FAILURE_WORKFLOW_REFUSED, told[:MAX_REASON])
    return None


def _own_id(workflow: WorkflowState) -> str:
    return failure_workflow_id(workflow.workflow_id, workflow.incarnation, workflow.run)


# --- its input


def _input(draft: Draft, status: WorkflowStatus, reason: str | None, failed: TaskState | None, output: bytes) -> bytes:
    """The input as JSON that fits."""
    about: Json = {
        "workflowId": draft.workflow.workflow_id,
        "reason": reason,
        "failureStatus": status.value,
        "failureTaskId": failed.task_id if failed is not None else None,
    }
    limit, given = draft.context.max_payload_bytes, orjson.loads(draft.workflow.input)
    left_out: list[str] = []
    document = _document(draft, status, reason, output, limit, left_out)
    for part, leave in ((None, None), *_PARTS):
        if part is not None and leave is not None:
            leave(given, document)
            left_out.append(part)
        if left_out:
            about["reason"] = _said(reason, left_out, limit)
        data = {**given, **about, **({"failedWorkflow": document} if document else {})}
        encoded = orjson.dumps(data)
        if len(encoded) <= limit and not is_too_deep(data, encoded):
            return encoded
    return orjson.dumps({**about, "reason": _said(None, left_out, limit)})


def _said(reason: str | None, left_out: list[str], limit: int) -> str:
    parts = f"left out of this input, which would have more than {limit} bytes or 100 levels: {', '.join(left_out)}"
    return f"{reason[:MAX_REASON]} ({parts})" if reason else parts


def _leave_data(_given: Json, document: Json) -> None:
    for task in document.get("tasks", ()):
        task.pop("inputData", None)
        task.pop("outputData", None)


def _leave_tasks(_given: Json, document: Json) -> None:
    document.pop("tasks", None)


def _leave_payloads(_given: Json, document: Json) -> None:
    for name in ("input", "output", "variables"):
        document.pop(name, None)


def _leave_input(given: Json, document: Json) -> None:
    document.clear()
    given.clear()


#: What is left out, in this order, until the rest fits.
_PARTS: tuple[tuple[str, Callable[[Json, Json], None]], ...] = (
    ("inputs and outputs in failedWorkflow.tasks", _leave_data),
    ("failedWorkflow.tasks", _leave_tasks),
    ("input, output and variables of failedWorkflow", _leave_payloads),
    ("the failed workflow's input, and failedWorkflow", _leave_input),
)


def _document(
    draft: Draft, status: WorkflowStatus, reason: str | None, output: bytes, limit: int, left_out: list[str]
) -> Json:
    """The failed execution as Conductor shows it, by the latest attempt of each task."""
    workflow = draft.workflow
    rows = sorted(draft.execution.tasks.values(), key=lambda task: task.seq)
    is_large = sum(len(row.input) + len(row.output or b"") for row in rows) > limit
    if is_large:  # nobody has to write it to see that
        left_out.append(_PARTS[0][0])
    return {
        "workflowId": workflow.workflow_id,
        "workflowName": workflow.name,
        "workflowVersion": workflow.version,
        "status": status.value,
        "reasonForIncompletion": reason,
        "correlationId": workflow.correlation_id,
        "priority": workflow.priority,
        "createTime": workflow.created_at_ms,
        "endTime": draft.now_ms,
        "input": orjson.loads(workflow.input),
        "output": orjson.loads(output),
        "variables": orjson.loads(workflow.variables),
        "tasks": [_task(row, with_data=not is_large) for row in rows],
    }


def _task(row: TaskState, *, with_data: bool) -> Mapping[str, Any]:
    shown: Json = {
        "taskId": row.task_id,
        "referenceTaskName": row.reference,
        "taskType": row.task_type,
        "status": row.status.value,
        "reasonForIncompletion": row.reason,
        "retryCount": row.attempt,
        "seq": row.seq,
        "iteration": row.iteration,
        "workerId": row.worker_id,
        "scheduledTime": row.scheduled_at_ms,
        "startTime": row.started_at_ms or 0,
        "endTime": row.ended_at_ms or 0,
    }
    if with_data:
        shown |= {"inputData": orjson.loads(row.input), "outputData": orjson.loads(row.output or b"{}")}
    return shown
