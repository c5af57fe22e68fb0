"""Cron schedules: a delay that comes due starts workflows and waits for the next moment, in one transaction.

A schedule stands on ``<ns>.cron`` under its name and is decided by the decider of ``partition_of(name)``, its only
writer. Where it has got to is in the same record, so that a takeover starts nothing twice: a delay that fires again
finds ``nextRunTime`` moved on. The start is a command to the workflow in the same transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Any, assert_never
from zoneinfo import ZoneInfo

import orjson
from cronsim import CronSim, CronSimError

from broker_engine.decider.context import Context
from broker_engine.decider.definitions import AUDIT_FIELDS, Parsed, Rule, parse_json, read_fields
from broker_engine.decider.domains import domains_problem
from broker_engine.decider.draft import reply
from broker_engine.decider.registry import check_key, check_size, refusal, stamp
from broker_engine.errors import BadRequest, Conflict, NotFound, Violation
from broker_engine.model.commands import (
    DeleteSchedule,
    PauseSchedule,
    PutSchedule,
    ResumeSchedule,
    ScheduleDue,
    ScheduleRefused,
    StartWorkflow,
)
from broker_engine.model.decision import Decision, Delay, Output, Send, WriteDefinition
from broker_engine.model.schedules import (
    SCHEDULE_DELAY,
    CatchUp,
    CronSchedule,
    WorkflowRequest,
    operator_of,
)

#: A moment that is not later than this is not missed: a takeover takes some seconds.
GRACE_MS = 60_000
#: Starts in one decision; with ALL the rest follows in the next ones.
MAX_AT_ONCE = 100
#: Names stand in workflow ids.
MAX_NAME = 200
MAX_ERROR = 1_000

#: Bounds moments.
_FAR_MS = 2**53

ScheduleCommand = PutSchedule | DeleteSchedule | PauseSchedule | ResumeSchedule | ScheduleDue | ScheduleRefused

_KEPT = Rule(kind="text")
_MOMENT = Rule(kind="integer", maximum=_FAR_MS)
#: The fields of a schedule (the names are those of Orkes Conductor's scheduler).
SCHEDULE_FIELDS: Mapping[str, Rule] = {
    "name": Rule(kind="text", attribute="name", is_required=True),
    "description": _KEPT,
    "cronExpression": Rule(kind="text", attribute="expression", is_required=True),
    "zoneId": Rule(kind="text", attribute="zone"),
    "startWorkflowRequest": Rule(kind="object", is_required=True),
    "catchUp": Rule(kind="choice", attribute="catch_up", choices=CatchUp),
    "runCatchupScheduleInstances": Rule(kind="boolean"),
    "scheduleStartTime": Rule(kind="integer", attribute="starts_at_ms", minimum=0, maximum=_FAR_MS),
    "scheduleEndTime": Rule(kind="integer", attribute="ends_at_ms", minimum=0, maximum=_FAR_MS),
    "paused": Rule(kind="boolean", attribute="is_paused"),
    **AUDIT_FIELDS,
}
#: Written by the engine; in a document that is registered they are dropped.
STATE_FIELDS: Mapping[str, Rule] = {
    "generation": Rule(kind="integer", attribute="generation", maximum=2**31 - 1),
    "nextRunTime": Rule(kind="integer", attribute="next_ms", maximum=_FAR_MS),
    "lastRunTime": _MOMENT,
    "lastWorkflowId": _KEPT,
    "pausedReason": _KEPT,
    "lastError": _KEPT,
    "lastErrorTime": _MOMENT,
}
REQUEST_FIELDS: Mapping[str, Rule] = {
    "name": Rule(kind="text", attribute="name", is_required=True),
    "version": Rule(kind="integer", attribute="version", minimum=1, maximum=2**31 - 1),
    "input": Rule(kind="object", attribute="input"),
    "correlationId": Rule(kind="text", attribute="correlation_id"),
    "priority": Rule(kind="integer", attribute="priority", minimum=0, maximum=99),
    "taskToDomain": Rule(kind="object", attribute="task_to_domain"),
    "tenant": Rule(kind="text", attribute="tenant"),
    "createdBy": _KEPT,
}


def parse_schedule(document: Mapping[str, Any]) -> Parsed[CronSchedule]:
    """Check a schedule and read it."""
    violations: list[Violation] = []
    warnings: list[str] = []
    attributes = read_fields(document, {**SCHEDULE_FIELDS, **STATE_FIELDS}, "", violations, warnings)
    given = document.get("startWorkflowRequest")
    request: dict[str, Any] = {}
    if isinstance(given, Mapping):
        request = read_fields(given, REQUEST_FIELDS, "startWorkflowRequest.", violations, warnings)
    if document.get("catchUp") is None and isinstance(document.get("runCatchupScheduleInstances"), bool):
        attributes["catch_up"] = CatchUp.ALL if document["runCatchupScheduleInstances"] else CatchUp.SKIP
    violations += _problems(attributes, request)
    if violations:
        return Parsed(value=None, violations=tuple(violations), warnings=tuple(warnings))
    schedule = CronSchedule(**attributes, request=WorkflowRequest(**request), document=document)
    return Parsed(value=schedule, warnings=tuple(warnings))


def _problems(attributes: Mapping[str, Any], request: Mapping[str, Any]) -> Iterator[Violation]:
    name, zone, expression = attributes.get("name", ""), attributes.get("zone", "UTC"), attributes.get("expression")
    if len(name) > MAX_NAME:
        yield Violation(path="name", message=f"may have {MAX_NAME} characters", invalid_value=name)
    if not _is_zone(zone):
        message = "must be the name of a time zone such as Europe/Berlin or UTC"
        yield Violation(path="zoneId", message=message, invalid_value=zone)
    if expression is not None:
        try:
            CronSim(_plain(expression), datetime(2000, 1, 1, tzinfo=UTC))
        except CronSimError as error:
            message = (
                f"must be five cron fields (minute hour day month weekday), or six with seconds first: {error}".lower()
            )
            yield Violation(path="cronExpression", message=message, invalid_value=expression)
    starts, ends = attributes.get("starts_at_ms"), attributes.get("ends_at_ms")
    if starts is not None and ends is not None and ends <= starts:
        message = f"must be later than scheduleStartTime ({starts})"
        yield Violation(path="scheduleEndTime", message=message, invalid_value=ends)
    wrong = None
    if request.get("task_to_domain") is not None:
        wrong = domains_problem(orjson.dumps(request["task_to_domain"]))
    if wrong is not None:
        yield Violation(
            path="startWorkflowRequest.taskToDomain", message=wrong, invalid_value=request["task_to_domain"]
        )


def _is_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (ValueError, OSError):  # not found is a kind of KeyError in some versions, of OSError in others
        return False
    except KeyError:
        return False
    return True


def _plain(expression: str) -> str:
    """The expression without Quartz's ``?``, which says nothing."""
    return expression.replace("?", "*")


def moments(schedule: CronSchedule, after_ms: int) -> Iterator[int]:
    """The moments of a schedule after one of them, in order.

    Times that daylight saving skips or repeats are treated as Debian's cron does: a daily job runs once on such days.
    """
    after_ms = max(after_ms, (schedule.starts_at_ms or 0) - 1)
    for moment in CronSim(_plain(schedule.expression), _local(after_ms, schedule)):
        at_ms = round(moment.timestamp() * 1_000)
        if schedule.ends_at_ms is not None and at_ms > schedule.ends_at_ms:
            return
        yield at_ms


def _newest(schedule: CronSchedule, until_ms: int) -> int | None:
    """The last moment that is not after this one."""
    until_ms = min(until_ms, schedule.ends_at_ms or until_ms)
    back = CronSim(_plain(schedule.expression), _local(until_ms + 1_000, schedule), reverse=True)
    return next(
        (round(moment.timestamp() * 1_000) for moment in islice(back, 2) if moment.timestamp() * 1_000 <= until_ms),
        None,
    )


def _local(at_ms: int, schedule: CronSchedule) -> datetime:
    return datetime.fromtimestamp(at_ms // 1_000, ZoneInfo(schedule.zone))


# --- decisions


def decide_schedule(command: ScheduleCommand, context: Context) -> Decision:
    """Register, change or fire a schedule."""
    outputs: tuple[Output, ...] = ()
    ignored: str | None = None
    try:
        match command:
            case PutSchedule():
                outputs, message = _put(command, context)
            case DeleteSchedule():
                _known(command.key, context)
                outputs, message = (WriteDefinition(kind="schedule", key=command.key, document=None),), command.key
            case PauseSchedule() | ResumeSchedule():
                outputs, message = _switched(command, context), command.key
            case ScheduleDue():
                outputs, message = _fired(command, context), command.key
                ignored = None if outputs else "the schedule has changed, or has started this moment already"
            case ScheduleRefused():
                outputs, message = _told(command, context), command.key
            case _:
                assert_never(command)
        status = 200
    except BadRequest as error:
        status, message, ignored = error.status, refusal(error), str(error)
    if command.reply_to is not None:
        outputs += (reply(command, status, message),)
    return Decision(execution=None, outputs=outputs, ignored=ignored)


def _known(name: str, context: Context) -> CronSchedule:
    found = context.definitions.schedule(name)
    if found is None:
        raise NotFound(f"there is no schedule {name}")
    return found


def _put(command: PutSchedule, context: Context) -> tuple[tuple[Output, ...], str]:
    given = parse_json(command.document, what="the schedule")
    parsed = parse_schedule({name: value for name, value in given.items() if name not in STATE_FIELDS})
    schedule = parsed.unwrap()
    check_key(command, schedule.name)
    known = context.definitions.schedule(schedule.name)
    if known is not None and not command.overwrite:
        raise Conflict(f"schedule {schedule.name} exists: delete it first, or overwrite it")
    if next(moments(schedule, context.now_ms), None) is None:
        path = "cronExpression" if schedule.ends_at_ms is None else "scheduleEndTime"
        raise BadRequest(
            violations=(Violation(path=path, message="leaves no moment in the future", invalid_value=given.get(path)),)
        )
    before = known.document if known is not None else {}
    document = {**schedule.document, **{name: before[name] for name in STATE_FIELDS if name in before}}
    stamped = orjson.loads(stamp(document, known.document if known else None, command, context))
    outputs = _from_now(stamped, schedule, known.generation + 1 if known else 1, context)
    return outputs, orjson.dumps({"warnings": list(parsed.warnings)}).decode()


def _switched(command: PauseSchedule | ResumeSchedule, context: Context) -> tuple[Output, ...]:
    """What passes during a pause is never caught up: a pause means that it should not run."""
    schedule = _known(command.key, context)
    is_paused = isinstance(command, PauseSchedule)
    if schedule.is_paused == is_paused:
        raise Conflict(f"schedule {command.key} is {'paused already' if is_paused else 'not paused'}")
    reason = command.reason if isinstance(command, PauseSchedule) else None
    document = {**schedule.document, "paused": is_paused, "pausedReason": reason}
    audited = {**document, "updateTime": context.now_ms, "updatedBy": command.operator}
    return _from_now(audited, schedule, schedule.generation + 1, context)


def _from_now(
    document: Mapping[str, Any], schedule: CronSchedule, generation: int, context: Context
) -> tuple[Output, ...]:
    """The record and the delay of a schedule whose next moment is the first after now."""
    next_ms = None if document.get("paused") else next(moments(schedule, context.now_ms), None)
    return _written({**document, "generation": generation, "nextRunTime": next_ms}, context)


def _written(document: Mapping[str, Any], context: Context) -> tuple[Output, ...]:
    name, next_ms = document["name"], document["nextRunTime"]
    stored = orjson.dumps({key: value for key, value in document.items() if value is not None})
    check_size(stored, context)
    write = WriteDefinition(kind="schedule", key=name, document=stored)
    if next_ms is None:
        return (write,)
    return write, Delay(reference=name, task_id=SCHEDULE_DELAY, hand_out=document["generation"], due_at_ms=next_ms)


def _fired(command: ScheduleDue, context: Context) -> tuple[Output, ...]:
    schedule = context.definitions.schedule(command.key)
    if schedule is None or schedule.next_ms is None or schedule.generation != command.generation:
        return ()
    if command.due_at_ms < schedule.next_ms:
        return ()
    now_ms = context.now_ms
    if schedule.next_ms > now_ms:  # clocks differ
        return (
            Delay(
                reference=schedule.name,
                task_id=SCHEDULE_DELAY,
                hand_out=schedule.generation,
                due_at_ms=schedule.next_ms,
            ),
        )
    due, next_ms = _due(schedule, now_ms)
    document = {**schedule.document, "nextRunTime": next_ms}
    if due:
        document |= {"lastRunTime": due[-1], "lastWorkflowId": workflow_id(schedule, due[-1])}
    starts = tuple(Send(command=_start(schedule, moment, now_ms)) for moment in due)
    # What is left to catch up is due at once, in a decision of its own.
    return (*starts, *_written(document, context))


def _due(schedule: CronSchedule, now_ms: int) -> tuple[list[int], int | None]:
    """The moments to start now, and the one to wait for then."""
    assert schedule.next_ms is not None
    first_ms = schedule.next_ms
    if schedule.catch_up is not CatchUp.ALL:
        first_ms = max(first_ms, now_ms - GRACE_MS)
    due: list[int] = []
    for moment in moments(schedule, first_ms - 1):
        if moment > now_ms or len(due) == MAX_AT_ONCE:
            break
        due.append(moment)
    if not due and schedule.catch_up is CatchUp.LATEST:
        newest = _newest(schedule, now_ms)
        if newest is not None and newest >= schedule.next_ms:
            due = [newest]
    return due, next(moments(schedule, due[-1] if due else now_ms), None)


def _start(schedule: CronSchedule, moment: int, now_ms: int) -> StartWorkflow:
    request, operator = schedule.request, operator_of(schedule.name)
    told = {"_startedByScheduler": schedule.name, "_scheduledTime": moment, "_executedTime": now_ms}
    return StartWorkflow(
        key=workflow_id(schedule, moment),
        operator=operator,
        name=request.name,
        version=request.version,
        input=orjson.dumps({**request.input, **told}),
        correlation_id=request.correlation_id,
        priority=request.priority,
        created_by=operator,
        source=operator,
        tenant=request.tenant,
        task_to_domain=None if request.task_to_domain is None else orjson.dumps(request.task_to_domain),
    )


def workflow_id(schedule: CronSchedule, moment: int) -> str:
    """The id of the workflow of one moment: ``nightly-20261201T020000Z``."""
    return f"{schedule.name}-{datetime.fromtimestamp(moment // 1_000, UTC):%Y%m%dT%H%M%SZ}"


def _told(command: ScheduleRefused, context: Context) -> tuple[Output, ...]:
    """Keep why a start was refused where somebody sees it."""
    schedule = context.definitions.schedule(command.key)
    if schedule is None:
        return ()
    document = {**schedule.document, "lastError": command.reason[:MAX_ERROR], "lastErrorTime": context.now_ms}
    stored = orjson.dumps(document)
    return (WriteDefinition(kind="schedule", key=schedule.name, document=stored),)
