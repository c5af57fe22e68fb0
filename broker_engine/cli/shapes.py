"""Records as JSON: the field names of their Avro schemas, user payloads as the JSON that they hold.

Moments stay what they are in the record, milliseconds since the epoch.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Any

import orjson

from broker_engine.model.state import TaskState, WorkflowState
from broker_engine.wire.codecs import TASK_STATE, WORKFLOW_STATE, Codec
from broker_engine.wire.schemas import versions
from broker_engine.worker.diagnosis import Explanation
from broker_engine.worker.views import WorkflowView

#: Of a limit with many slots not every holder is named.
MAX_HOLDERS = 20


def record_json(codec: Codec[Any], record: tuple[Any, ...]) -> dict[str, Any]:
    """A record by the field names of its newest schema."""
    return _record(versions(codec.subject)[-1].plain, record)


def workflow_json(workflow: WorkflowState) -> dict[str, Any]:
    return record_json(WORKFLOW_STATE, workflow)


def task_json(task: TaskState) -> dict[str, Any]:
    return record_json(TASK_STATE, task)


def view_json(view: WorkflowView) -> dict[str, Any]:
    """A workflow with its attempts under ``tasks``."""
    return workflow_json(view.workflow) | {"tasks": [task_json(task) for task in view.tasks]}


def explanation_json(found: Explanation) -> dict[str, Any]:
    """Why a task is where it is. What a worker has waits for its ``result``."""
    task, place = found.task, found.standing
    limit = place.limit if place is not None else None
    return {
        "taskId": task.task_id,
        "workflowId": task.workflow_id,
        "referenceTaskName": task.reference,
        "phase": task.phase,
        "status": task.status,
        "waitingFor": task.waiting_for or (None if task.is_terminal else "result"),
        "nextDeadline": None
        if task.next_deadline is None
        else {"kind": task.next_deadline, "at": task.next_deadline_at_ms},
        "domain": task.domain,
        "lastPoll": found.last_poll_ms,
        "otherDomains": [{"domain": domain, "isPolled": domain in found.live_choices} for domain in found.choices],
        "inLine": None
        if place is None
        else {
            "position": place.position,
            "limit": limit.key if limit is not None else None,
            "capacity": limit.capacity if limit is not None else None,
            "opensAt": place.opens_at_ms,
            "heldBy": [{"taskId": h.task_id, "workflowId": h.workflow_id} for h in place.holders[:MAX_HOLDERS]],
        },
        "quarantine": found.quarantine,
        "explanation": found.sentence,
    }


def _record(schema: Mapping[str, Any], record: tuple[Any, ...]) -> dict[str, Any]:
    return {field["name"]: _value(field["type"], value) for field, value in zip(schema["fields"], record, strict=True)}


def _value(schema: Any, value: Any) -> Any:
    if isinstance(value, bytes):
        return payload(value)
    if isinstance(value, tuple):
        return [_record(schema["items"], item) for item in value]
    return value


def payload(value: bytes) -> Any:
    """User JSON as it is, other bytes in base64."""
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return b64encode(value).decode()
