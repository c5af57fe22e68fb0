"""What each field of a task definition does here: the table of TASK_DEFINITIONS.md, made from the fields themselves.

``python -m broker_engine.decider.field_docs > broker_engine/TASK_DEFINITIONS.md`` writes it; a test compares, and holds
that no field is missing and that a field called enforced reaches the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from enum import StrEnum
from typing import NamedTuple

from broker_engine.decider.definitions import TASK_DEF_FIELDS
from broker_engine.model.definitions import TaskDef


class Effect(StrEnum):
    """Whether the engine acts on a field."""

    ENFORCED = "enforced"
    SHOWN = "shown"
    STORED = "checked and stored, not enforced yet"
    DOCUMENTATION = "documentation only"


class FieldDoc(NamedTuple):
    """One row of the table."""

    effect: Effect
    text: str


def _enforced(text: str) -> FieldDoc:
    return FieldDoc(Effect.ENFORCED, text)


def _stored(text: str) -> FieldDoc:
    return FieldDoc(Effect.STORED, text)


def _only_kept(text: str) -> FieldDoc:
    return FieldDoc(Effect.DOCUMENTATION, text)


FIELD_DOCS: Mapping[str, FieldDoc] = {
    "name": _enforced("The task type: names the queue. Required."),
    "description": FieldDoc(Effect.SHOWN, "In lists and details."),
    "retryCount": _enforced("Attempts after the first. More than 10 warns, more than 10,000 is refused."),
    "retryLogic": _enforced("How the wait grows: FIXED, LINEAR_BACKOFF (times the attempt), EXPONENTIAL_BACKOFF."),
    "retryDelaySeconds": _enforced("The first wait before a retry."),
    "backoffScaleFactor": _enforced("Factor of LINEAR_BACKOFF."),
    "maxRetryDelaySeconds": _enforced("Longest wait before a retry, for every logic; 0: none."),
    "backoffJitterMs": _enforced("Up to so much is added to each wait, evenly spread by task id."),
    "timeoutSeconds": _enforced("Longest run of one attempt, from its first start; 0: none."),
    "responseTimeoutSeconds": _enforced("Longest silence of a worker (the lease). Always retried."),
    "pollTimeoutSeconds": _enforced("Longest wait on the queue, from the hand-out; 0: none."),
    "totalTimeoutSeconds": _enforced("Longest time over all attempts; no retry is scheduled behind it; 0: none."),
    "timeoutPolicy": _enforced("What a poll, task or total time-out does: RETRY, TIME_OUT_WF, ALERT_ONLY (an event)."),
    "concurrentExecLimit": _stored("At most so many in progress; 0: no limit."),
    "rateLimitPerFrequency": _stored("At most so many starts in any window; 0: no limit."),
    "rateLimitFrequencyInSeconds": _stored("Length of that sliding window."),
    "limitScope": _stored("What the limits count together: TYPE (all domains) or TYPE_AND_DOMAIN."),
    "resourceLock": _stored("An expression; one task per resolved value is in progress."),
    "inputKeys": _only_kept("The input keys that are expected; use inputSchema to require them."),
    "outputKeys": _only_kept("The output keys that are expected; use outputSchema to require them."),
    "inputTemplate": _enforced("Input values for keys that the workflow does not give."),
    "inputSchema": _enforced("JSON Schema of the input, with enforceSchema: checked before the task is handed out."),
    "outputSchema": _enforced("JSON Schema of the output, with enforceSchema: checked before it is accepted."),
    "enforceSchema": _enforced("Whether the two are enforced."),
    "retryableErrors": _enforced("Error codes: when given, failures with another code or none are not retried."),
    "fatalErrors": _enforced("Error codes that are never retried."),
    "onWorkerLost": _stored("A worker that vanishes: TIME_OUT (after 10 s of silence) or WAIT (its own time-outs)."),
    "runtimeMetadata": _stored("Names of secrets: resolved in the worker, stored nowhere."),
    "queuePartitions": _enforced("Partitions of the queue's topic when it is made: so many workers side by side."),
    "sharedQueue": _enforced("For rare types: hand-outs go to one topic per domain, unless the queue has its own."),
    "ownerEmail": FieldDoc(Effect.SHOWN, "Whom to ask; checked to be an address. Missing: a warning."),
    "isolationGroupId": _only_kept("Use domains to isolate work."),
    "executionNameSpace": _only_kept("Use a namespace of the engine or domains."),
    "baseType": _only_kept("Kept."),
    "taskStatusListenerEnabled": _only_kept("Every transition is an event record, for all tasks."),
    "createTime": _only_kept("Kept."),
    "updateTime": _only_kept("Kept."),
    "createdBy": _only_kept("Kept."),
    "updatedBy": _only_kept("Kept."),
    "ownerApp": _only_kept("Kept."),
    "accessPolicy": _only_kept("Kept; who may do what is decided by Kafka's ACLs and the namespace key."),
}


def markdown() -> str:
    """The document as it stands in the tree."""
    defaults = {
        field.name: field.default if field.default is not MISSING else None for field in fields(TaskDef) if field.init
    }
    rows = []
    for name in FIELD_DOCS:
        default = defaults.get(TASK_DEF_FIELDS[name].attribute or "")
        shown = f"`{default}`" if isinstance(default, bool | int | str) and default is not None else ""
        rows.append(f"| `{name}` | {shown} | {FIELD_DOCS[name].effect} | {FIELD_DOCS[name].text} |")
    return "\n".join(
        (
            "# Task definitions",
            "",
            "Every field that a task definition may have, and what it does here. Made from the code by",
            "`python -m broker_engine.decider.field_docs`. Unknown fields are kept, with a warning.",
            "",
            "| field | default | effect | |",
            "|---|---|---|---|",
            *rows,
            "",
        )
    )


if __name__ == "__main__":
    print(markdown(), end="")  # noqa: T201 - the docs build reads stdout
