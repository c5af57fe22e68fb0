"""`/api/scheduler`: cron schedules, at the paths of Orkes Conductor's scheduler."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Response

from broker_engine.decider.schedules import parse_schedule
from broker_engine.errors import NotFound
from broker_engine.gateway.answers import Engine, empty_answer, json_answer
from broker_engine.worker.schedules import ahead

router = APIRouter(prefix="/api/scheduler", tags=["scheduler"])


@router.post("/schedules")
def save_schedule(engine: Engine, schedule: Annotated[dict[str, Any], Body()], overwrite: bool = True) -> Response:
    """Register a schedule, or change the one of that name."""
    warnings = engine.client.schedules.register(schedule, overwrite=overwrite)
    engine.tail.see_definitions()
    return empty_answer(warnings=warnings)


@router.get("/schedules")
def all_schedules(engine: Engine, workflowName: str | None = None) -> Response:
    """The schedules, with what is next and what was last."""
    found = sorted(engine.tail.schedules().items())
    return json_answer([one for _, one in found if workflowName in (None, one["startWorkflowRequest"]["name"])])


@router.get("/nextFewSchedules")
def next_few(
    cronExpression: str,
    scheduleStartTime: int | None = None,
    scheduleEndTime: int | None = None,
    zoneId: str = "UTC",
    limit: Annotated[int, Query(ge=1, le=1_000)] = 3,
) -> Response:
    """The next moments of an expression, in epoch milliseconds."""
    document = {
        "name": "-",
        "cronExpression": cronExpression,
        "zoneId": zoneId,
        "scheduleStartTime": scheduleStartTime,
        "scheduleEndTime": scheduleEndTime,
        "startWorkflowRequest": {"name": "-"},
    }
    return json_answer(ahead(parse_schedule(document).unwrap(), limit))


@router.get("/schedules/{name}")
def schedule(engine: Engine, name: str) -> Response:
    found = engine.tail.schedules().get(name)
    if found is None:
        raise NotFound(f"there is no schedule {name}")
    return json_answer(found)


@router.delete("/schedules/{name}")
def delete_schedule(engine: Engine, name: str) -> Response:
    """Remove a schedule; what it has started goes on."""
    engine.client.schedules.delete(name)
    engine.tail.see_definitions()
    return empty_answer()


@router.put("/schedules/{name}/pause")
@router.get("/schedules/{name}/pause", include_in_schema=False)
def pause_schedule(engine: Engine, name: str, reason: str | None = None) -> Response:
    """Start nothing until it is resumed. (By GET, too: so do the clients of Orkes Conductor.)"""
    engine.client.schedules.pause(name, reason)
    engine.tail.see_definitions()
    return empty_answer()


@router.put("/schedules/{name}/resume")
@router.get("/schedules/{name}/resume", include_in_schema=False)
def resume_schedule(engine: Engine, name: str) -> Response:
    """Go on with the first moment from now."""
    engine.client.schedules.resume(name)
    engine.tail.see_definitions()
    return empty_answer()
