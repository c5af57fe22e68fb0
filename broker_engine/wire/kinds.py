"""The kinds of commands and replies as they are named on the wire."""

from __future__ import annotations

from enum import StrEnum


class CommandType(StrEnum):
    """The name of each command class in its record (and of shell-made ones in events)."""

    UNKNOWN = "UNKNOWN"
    START_WORKFLOW = "START_WORKFLOW"
    TERMINATE_WORKFLOW = "TERMINATE_WORKFLOW"
    RELEASE_WORKFLOW = "RELEASE_WORKFLOW"
    TASK_STARTED = "TASK_STARTED"
    TASK_REPORTED = "TASK_REPORTED"
    DELAY_DUE = "DELAY_DUE"
    QUEUE_READY = "QUEUE_READY"
    TICK = "TICK"
    DEADLINE_REACHED = "DEADLINE_REACHED"
    PUT_TASK_DEF = "PUT_TASK_DEF"
    DELETE_TASK_DEF = "DELETE_TASK_DEF"
    PUT_WORKFLOW_DEF = "PUT_WORKFLOW_DEF"
    DELETE_WORKFLOW_DEF = "DELETE_WORKFLOW_DEF"


class ReplyKind(StrEnum):
    UNKNOWN = "UNKNOWN"
    ANSWER = "ANSWER"
    STARTS = "STARTS"
