"""Looking into encoded states without decoding them.

Restore reads every record of a partition but needs only the live ones; the fields it sorts by come first in their
schemas (status of a workflow; phase, status, task id and workflow id of a task), so they sit at fixed places.
"""

from __future__ import annotations

from typing import NamedTuple

from broker_engine.errors import DecodeError
from broker_engine.model.status import LIVE_WORKFLOW_STATUSES, TERMINAL_PHASES, Phase
from broker_engine.wire.avro import read_long
from broker_engine.wire.codecs import FRAME_BYTES, TASK_STATE, WORKFLOW_STATE
from broker_engine.wire.schemas import registered_schemas


def _enum_bytes(subject: str, field: str, members: frozenset[str]) -> frozenset[int]:
    """The first bytes that these members of a schema's first field are written as, in all released versions."""
    found = set()
    for schema in registered_schemas().values():
        if schema.subject != subject:
            continue
        first = schema.plain["fields"][0]
        assert first["name"] == field, f"{subject} must begin with {field}"
        found |= {index << 1 for index, symbol in enumerate(first["type"]["symbols"]) if symbol in members}
    return frozenset(found)


_LIVE_WORKFLOW = _enum_bytes(WORKFLOW_STATE.subject, "status", frozenset(LIVE_WORKFLOW_STATUSES))
_TERMINAL_TASK = _enum_bytes(TASK_STATE.subject, "phase", frozenset(Phase(p) for p in TERMINAL_PHASES))


def is_live_workflow(value: bytes) -> bool:
    """Whether an encoded WorkflowState has a live status."""
    return value[FRAME_BYTES] in _LIVE_WORKFLOW


class TaskPeek(NamedTuple):
    """What can be seen of an encoded task state."""

    is_terminal: bool
    task_id: str
    workflow_id: str


def peek_task(value: bytes) -> TaskPeek:
    """The identity of an encoded TaskState.

    Raises:
        DecodeError: the bytes are no task state.
    """
    try:
        task_id, end = _text(value, FRAME_BYTES + 2)
        workflow_id, _ = _text(value, end)
        return TaskPeek(value[FRAME_BYTES] in _TERMINAL_TASK, task_id, workflow_id)
    except (IndexError, ValueError) as error:
        raise DecodeError(f"not a task state: {error}") from error


def _text(value: bytes, position: int) -> tuple[str, int]:
    """The string at a position, and the position after it."""
    size = value[position]
    if size < 128:  # the usual case, without a call: ids are shorter than 64 bytes
        start, size = position + 1, size >> 1
    else:
        size, start = read_long(value, position)
    return value[start : start + size].decode(), start + size
