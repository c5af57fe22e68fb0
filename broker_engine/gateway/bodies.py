"""What requests hold, as Conductor writes it and with our extensions: only the shape is checked here."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pydantic import Field, field_validator

from broker_engine.errors import BadRequest
from broker_engine.gateway.answers import Body
from broker_engine.model.commands import IdempotencyStrategy

#: Conductor's own bound on one bulk request.
MAX_BULK = 1_000


class StartRequest(Body):
    """StartWorkflowRequest; ``workflowId``, ``deadlineAt``, ``source`` and ``tenant`` are extensions."""

    name: str = Field(min_length=1)
    version: int | None = Field(default=None, ge=0)
    correlationId: str | None = None
    input: dict[str, Any] = Field(default_factory=dict)
    taskToDomain: dict[str, str] | None = None
    workflowDef: dict[str, Any] | None = None
    externalInputPayloadStoragePath: str | None = None
    priority: int = Field(default=0, ge=0, le=99)
    createdBy: str | None = None
    idempotencyKey: str | None = None
    idempotencyStrategy: IdempotencyStrategy = IdempotencyStrategy.FAIL
    workflowId: str | None = None
    deadlineAt: datetime | None = None
    source: str | None = None
    tenant: str | None = None

    @field_validator("input", "priority", "idempotencyStrategy", mode="before")
    @classmethod
    def _null_is_default(cls, value: Any, info: Any) -> Any:
        return cls.model_fields[info.field_name].get_default(call_default_factory=True) if value is None else value

    @field_validator("deadlineAt")
    @classmethod
    def _in_utc(cls, value: datetime | None) -> datetime | None:
        return value if value is None or value.tzinfo is not None else value.replace(tzinfo=UTC)


class LogLine(Body):
    """TaskExecLog, as workers send it."""

    log: str = ""
    taskId: str | None = None
    createdTime: float | None = None


class TaskResult(Body):
    """TaskResult; ``errorCode`` is an extension."""

    taskId: str = Field(min_length=1)
    workflowInstanceId: str = ""
    status: str = "IN_PROGRESS"
    outputData: dict[str, Any] | None = None
    reasonForIncompletion: str | None = None
    callbackAfterSeconds: float = Field(default=0, ge=0, le=2**31)
    workerId: str | None = None
    logs: list[LogLine | str] | None = None
    extendLease: bool = False
    subWorkflowId: str | None = None
    externalOutputPayloadStoragePath: str | None = None
    errorCode: str | None = None

    @field_validator("callbackAfterSeconds", "extendLease", mode="before")
    @classmethod
    def _null_is_default(cls, value: Any, info: Any) -> Any:
        return cls.model_fields[info.field_name].get_default() if value is None else value

    def lines(self) -> list[str]:
        return [line if isinstance(line, str) else line.log for line in self.logs or ()]


def bounded(ids: list[str]) -> list[str]:
    """The ids of a bulk request.

    Raises:
        BadRequest: too many.
    """
    if len(ids) > MAX_BULK:
        raise BadRequest(f"one request may name {MAX_BULK} workflows, not {len(ids)}: send several requests")
    return ids
