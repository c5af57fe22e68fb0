"""Compensation: a workflow that undoes what another one has done, when that one fails (B12).

A step may name a task that undoes it (``compensation: {"task": "refund"}``). When the engine ends the workflow other
than COMPLETED, or somebody terminates it with ``compensate``, a workflow of those tasks is started in the same
transaction: one for each completed task, in the reverse order of their ends, with their own retries. Its input holds
what was done; each task gets ``input`` and ``output`` of the one that it undoes.
"""

from __future__ import annotations

from typing import Any

import orjson

from broker_engine.decider.children import NO_TASK
from broker_engine.decider.draft import Draft
from broker_engine.decider.identity import compensation_workflow_id
from broker_engine.model.commands import IdempotencyStrategy, Parent, StartWorkflow
from broker_engine.model.decision import Send
from broker_engine.model.state import TaskState, WorkflowState
from broker_engine.model.status import TaskStatus

#: The largest fields are left out of the input first when it does not fit.
_LEAVABLE = ("input", "output")


def start(draft: Draft, reason: str | None) -> str | None:
    """Start the workflow that undoes what was completed; returns its id, None when there is nothing to undo."""
    done = _to_undo(draft)
    if not done:
        return None
    workflow, workflow_id = draft.workflow, own_id(draft.workflow)
    command = StartWorkflow(
        key=workflow_id,
        operator=f"workflow:{workflow.workflow_id}",
        name=f"{workflow.name}.compensation",
        definition=orjson.dumps(_definition(draft, done)),
        input=_input(draft, done, reason),
        correlation_id=workflow.correlation_id,
        priority=workflow.priority,
        created_by=workflow.created_by,
        source=f"compensation of {workflow.workflow_id}"[:200],
        strategy=IdempotencyStrategy.RETURN_EXISTING,
        tenant=workflow.tenant,
        task_to_domain=workflow.task_to_domain,
        parent=Parent(workflow.workflow_id, NO_TASK, NO_TASK),
    )
    draft.outputs.append(Send(command=command))
    return workflow_id


def own_id(workflow: WorkflowState) -> str:
    """The id of the workflow that undoes the present run."""
    return compensation_workflow_id(workflow.workflow_id, workflow.incarnation, workflow.run)


def _to_undo(draft: Draft) -> list[TaskState]:
    """The completed tasks that can be undone, the last one first."""
    execution = draft.execution
    if not execution.definition.has_compensation:
        return []
    rows = [row for row in execution.tasks.values() if row.status is TaskStatus.COMPLETED]
    found = [row for row in rows if execution.definition.task(row.reference).compensation is not None]
    return sorted(found, key=lambda row: (row.ended_at_ms or 0, row.seq), reverse=True)


def _definition(draft: Draft, done: list[TaskState]) -> dict[str, Any]:
    steps = []
    for number, row in enumerate(done):
        task = draft.execution.definition.task(row.reference).compensation
        place = f"${{workflow.input.compensates[{number}]"
        about = {name: f"{place}.{name}}}" for name in ("input", "output", "taskId", "referenceTaskName")}
        about |= {name: f"${{workflow.input.{name}}}" for name in ("workflowId", "reason")}
        steps.append(
            {"name": task, "taskReferenceName": f"undo_{number + 1}_{row.reference}", "inputParameters": about}
        )
    return {"name": f"{draft.workflow.name}.compensation", "tasks": steps}


def _input(draft: Draft, done: list[TaskState], reason: str | None) -> bytes:
    """What was done, as JSON that fits: inputs, then outputs are left out, which ``leftOut`` says."""
    listed: list[dict[str, Any]] = [
        {
            "referenceTaskName": row.reference,
            "taskId": row.task_id,
            "taskType": row.task_type,
            "input": orjson.loads(row.input),
            "output": orjson.loads(row.output or b"{}"),
        }
        for row in done
    ]
    data: dict[str, Any] = {"workflowId": draft.workflow.workflow_id, "reason": reason, "compensates": listed}
    left_out: list[str] = []
    for name in (*_LEAVABLE, None):
        encoded = orjson.dumps({**data, **({"leftOut": left_out} if left_out else {})})
        if name is None or len(encoded) <= draft.context.max_payload_bytes:
            return encoded
        for one in listed:
            one.pop(name)
        left_out.append(f"{name} of the tasks, which would be more than {draft.context.max_payload_bytes} bytes")
    raise AssertionError("the last turn returns")
