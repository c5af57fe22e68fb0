"""WAIT, HUMAN and PULL_WORKFLOW_MESSAGES: nothing to do but wait, for a moment, somebody, or messages."""

from __future__ import annotations

import re
from calendar import timegm
from collections.abc import Mapping, Sequence

import orjson

from broker_engine.decider.task_types.base import Begun, How, Seen, TaskType
from broker_engine.errors import Violation
from broker_engine.model.definitions import Json, WorkflowTask
from broker_engine.model.state import Message
from broker_engine.model.status import ReasonCode, WaitingFor

_UNITS = {"day": 86_400, "hour": 3_600, "hr": 3_600, "min": 60, "minute": 60, "sec": 1, "second": 1}
_UNITS |= {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_PART = re.compile(r"\s*(\d+)\s*([a-z]+)", re.IGNORECASE)
_UNTIL = re.compile(r"(\d{4})-(\d{2})-(\d{2})(?:[ T](\d{2}):(\d{2}))?(?:\s*(.+))?")
_ZONE = re.compile(r"(?:UTC|GMT|Z)?(?:([+-])(\d{1,2})(?::?(\d{2}))?)?", re.IGNORECASE)
#: A wait is a matter of days, perhaps of years.
MAX_SECONDS = 2**31 - 1
#: Messages that one task takes.
MAX_BATCH = 100


def _wait(_step: WorkflowTask, seen: Seen) -> Begun:
    duration, until = seen.input.get("duration"), seen.input.get("until")
    if duration is not None and until is not None:
        return _refused("duration and until exclude each other: give one of them")
    if duration is not None:
        seconds = duration_seconds(str(duration))
        if seconds is None:
            return _refused(f"duration {str(duration)[:50]!r} must read like '1 days 2 hours 3 mins 4 secs'")
        return _until_moment(seen.now_ms + seconds * 1_000)
    if until is not None:
        moment_ms = until_ms(str(until))
        if moment_ms is None:
            return _refused(f"until {str(until)[:50]!r} must read like '2030-12-31 23:59 UTC' (UTC or an offset)")
        return _until_moment(max(moment_ms, seen.now_ms))
    return _until_update()


def _pull(_step: WorkflowTask, seen: Seen) -> Begun:
    size = seen.input.get("batchSize", 1)
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= MAX_BATCH:
        return _refused(f"batchSize must be a whole number from 1 to {MAX_BATCH}, not {size!r}")
    workflow = seen.execution.workflow
    taken = workflow.messages[:size]
    if taken or seen.input.get("blocking") is False:
        return Begun(How.DONE, output=messages_output(workflow.workflow_id, taken), takes=len(taken))
    return Begun(How.RUNNING, code=ReasonCode.PREVIOUS_TASK_DONE, waiting_for=WaitingFor.MESSAGES)


def batch_size(data: Mapping[str, Json]) -> int:
    """How many messages a task takes at most, by its input."""
    return int(data.get("batchSize", 1))


def messages_output(workflow_id: str, taken: Sequence[Message]) -> Json:
    """What such a task gives (Conductor's names)."""
    listed = [
        {
            "id": message.message_id,
            "workflowId": workflow_id,
            "payload": orjson.loads(message.payload),
            "receivedAt": message.received_at_ms,
        }
        for message in taken
    ]
    return {"messages": listed, "count": len(listed)}


def _until_moment(at_ms: int) -> Begun:
    return Begun(How.RUNNING, code=ReasonCode.PREVIOUS_TASK_DONE, waiting_for=WaitingFor.TIME, due_at_ms=at_ms)


def _until_update() -> Begun:
    return Begun(How.RUNNING, code=ReasonCode.PREVIOUS_TASK_DONE, waiting_for=WaitingFor.UPDATE)


def _refused(reason: str) -> Begun:
    return Begun(How.FAILED, reason=reason, code=ReasonCode.TERMINAL_ERROR)


def duration_seconds(text: str) -> int | None:
    """``1 days 2 hours 3 mins 4 secs``, any part of it, as seconds; None when it reads otherwise."""
    position, total = 0, 0
    while match := _PART.match(text, position):
        unit = match.group(2).lower()
        seconds = _UNITS.get(unit) or _UNITS.get(unit.removesuffix("s"))
        if seconds is None:
            return None
        total += int(match.group(1)) * seconds
        position = match.end()
    return total if position and not text[position:].strip() and total <= MAX_SECONDS else None


def until_ms(text: str) -> int | None:
    """``yyyy-MM-dd[ HH:mm]`` with UTC (the default) or an offset, in ms; None when it reads otherwise."""
    match = _UNTIL.fullmatch(text.strip())
    zone = _ZONE.fullmatch((match.group(6) or "").strip()) if match is not None else None
    if match is None or zone is None:
        return None
    year, month, day, hour, minute = (int(part or 0) for part in match.groups()[:5])
    if not (year >= 1970 and 1 <= month <= 12 and 1 <= day <= 31 and hour <= 23 and minute <= 59):
        return None
    sign, hours, minutes = zone.groups()
    offset = (int(hours or 0) * 3_600 + int(minutes or 0) * 60) * (-1 if sign == "-" else 1)
    return (timegm((year, month, day, hour, minute, 0)) - offset) * 1_000


def _check(document: Mapping[str, Json], path: str) -> list[Violation]:
    inputs = document.get("inputParameters")
    if not isinstance(inputs, Mapping) or inputs.get("duration") is None or inputs.get("until") is None:
        return []
    message = "and duration exclude each other: give one of them"
    return [Violation(path=f"{path}inputParameters.until", message=message, invalid_value=inputs["until"])]


WAIT = TaskType(about="waits for a `duration`, `until` a moment, or for an update", begin=_wait, check=_check)
PULL_WORKFLOW_MESSAGES = TaskType(
    about="waits until messages are sent to the workflow, and takes up to `batchSize` of them", begin=_pull
)
HUMAN = TaskType(about="waits until somebody ends it", begin=lambda _step, _seen: _until_update())
