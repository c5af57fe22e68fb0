"""Cron schedules: what starts a workflow again and again, as it is registered and how far it has got."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from broker_engine.model.definitions import Json

#: In place of a task id: the delay record waits for a schedule. No task id is spelled so.
SCHEDULE_DELAY: Final = "schedule"
#: Starts of a schedule carry this and its name as their operator, and are told about when they are refused.
_OPERATOR = "schedule:"


class CatchUp(StrEnum):
    """What is started of the moments that passed while no decider or delay role ran."""

    #: Nothing.
    SKIP = "SKIP"
    #: Once, for the newest of them.
    LATEST = "LATEST"
    #: Each of them, the oldest first.
    ALL = "ALL"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowRequest:
    """What a schedule starts (Conductor's StartWorkflowRequest)."""

    name: str
    version: int | None = None
    input: Mapping[str, Json] = field(default_factory=dict)
    correlation_id: str | None = None
    priority: int = 0
    task_to_domain: Mapping[str, Json] | None = None
    tenant: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CronSchedule:
    """A schedule. Moments are epoch milliseconds."""

    name: str
    #: Five fields, or six with seconds first.
    expression: str
    #: A name of the IANA time zone database.
    zone: str = "UTC"
    request: WorkflowRequest
    catch_up: CatchUp = CatchUp.LATEST
    starts_at_ms: int | None = None
    ends_at_ms: int | None = None
    is_paused: bool = False
    #: Counts the changes: a delay of an earlier one means nothing any more.
    generation: int = 0
    #: The next moment that is to be started; None: there is none, or the schedule is paused.
    next_ms: int | None = None
    #: The JSON that it was read from.
    document: Mapping[str, Any]


def operator_of(name: str) -> str:
    """Who starts the workflows of a schedule."""
    return _OPERATOR + name


def schedule_of(operator: str) -> str | None:
    """The schedule that acts under this name."""
    return operator.removeprefix(_OPERATOR) if operator.startswith(_OPERATOR) else None
