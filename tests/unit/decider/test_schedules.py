"""Cron schedules: which moments start a workflow, and what a late, early or repeated delay does."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice, pairwise
from typing import Any
from zoneinfo import ZoneInfo

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_engine.decider.schedules import MAX_AT_ONCE, decide_schedule, moments, parse_schedule
from broker_engine.model.commands import (
    DeleteSchedule,
    PauseSchedule,
    PutSchedule,
    ResumeSchedule,
    ScheduleDue,
    ScheduleRefused,
    StartWorkflow,
)
from broker_engine.model.decision import Answer, Decision, Delay, Send, WriteDefinition
from broker_engine.model.schedules import SCHEDULE_DELAY, CronSchedule
from tests.builders import Definitions, a_context, asked

MINUTE = 60_000
HOUR = 60 * MINUTE


def at(text: str, zone: str = "UTC") -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp() * 1_000)


def told(at_ms: int, zone: str = "UTC") -> str:
    return datetime.fromtimestamp(at_ms / 1_000, ZoneInfo(zone)).strftime("%m-%d %H:%M:%S")


NOW = at("2026-12-01T10:30:00")


def a_document(**fields: Any) -> dict[str, Any]:
    request = {"name": "report", "input": {"kind": "daily"}}
    return {"name": "hourly", "cronExpression": "0 * * * *", "startWorkflowRequest": request, **fields}


class Cron:
    """One schedule, told command by command."""

    def __init__(self, **fields: Any) -> None:
        self.definitions = Definitions()
        self.now_ms = NOW
        self.delays: list[Delay] = []
        self.answer = self.decide(
            PutSchedule(key="hourly", document=orjson.dumps(a_document(**fields)), operator="user:ann", **asked())
        )

    def decide(self, command: Any, now_ms: int | None = None) -> Decision:
        self.now_ms = max(self.now_ms, now_ms or 0)
        decision = decide_schedule(command, a_context(self.now_ms, definitions=self.definitions))
        for output in decision.outputs:
            if isinstance(output, WriteDefinition):
                assert output.kind == "schedule"
                self.definitions.schedules.pop(output.key, None)
                if output.document is not None:
                    self.definitions.schedules[output.key] = parse_schedule(orjson.loads(output.document)).unwrap()
            elif isinstance(output, Delay):
                assert output.task_id == SCHEDULE_DELAY
                self.delays.append(output)
        return decision

    def due(self, delay: Delay | None = None, *, now_ms: int | None = None) -> list[StartWorkflow]:
        """The last delay (or another) fires; returns what is started."""
        delay = delay or self.delays[-1]
        command = ScheduleDue(key="hourly", generation=delay.hand_out, due_at_ms=delay.due_at_ms)
        decision = self.decide(command, delay.due_at_ms if now_ms is None else now_ms)
        return [
            one.command for one in decision.outputs if isinstance(one, Send) and isinstance(one.command, StartWorkflow)
        ]

    @property
    def schedule(self) -> CronSchedule:
        return self.definitions.schedules["hourly"]

    @property
    def document(self) -> dict[str, Any]:
        return dict(self.schedule.document)


def status_of(decision: Decision) -> int:
    return next(output.status for output in decision.outputs if isinstance(output, Answer))


# --- firing


def test_a_schedule_waits_for_its_next_moment_and_starts_the_workflow_then() -> None:
    cron = Cron()

    assert cron.document["nextRunTime"] == cron.delays[-1].due_at_ms == at("2026-12-01T11:00:00")
    (start,) = cron.due()

    assert (start.key, start.name, start.operator) == ("hourly-20261201T110000Z", "report", "schedule:hourly")
    assert orjson.loads(start.input) == {
        "kind": "daily",
        "_startedByScheduler": "hourly",
        "_scheduledTime": at("2026-12-01T11:00:00"),
        "_executedTime": at("2026-12-01T11:00:00"),
    }
    assert cron.document["lastWorkflowId"] == start.key
    assert cron.delays[-1].due_at_ms == at("2026-12-01T12:00:00")


def test_a_delay_that_fires_again_starts_nothing() -> None:
    cron = Cron()
    first = cron.delays[-1]
    assert len(cron.due()) == 1
    count = len(cron.delays)

    assert cron.due(first) == []
    assert len(cron.delays) == count, "and there is one delay, not two"


def test_a_delay_that_fires_early_waits_for_the_rest() -> None:
    cron = Cron()

    assert cron.due(now_ms=at("2026-12-01T10:59:59")) == []
    assert cron.delays[-1].due_at_ms == at("2026-12-01T11:00:00")
    assert len(cron.due()) == 1


def test_the_delay_of_an_earlier_version_starts_nothing() -> None:
    cron = Cron()
    old = cron.delays[-1]
    changed = a_document(cronExpression="*/10 * * * *")
    cron.decide(PutSchedule(key="hourly", document=orjson.dumps(changed), overwrite=True, **asked()))

    assert cron.due(old) == []
    assert cron.document["nextRunTime"] == at("2026-12-01T10:40:00")


@pytest.mark.parametrize(
    ("catch_up", "started"),
    [
        ({}, ["12-01 14:00:00"]),
        ({"catchUp": "LATEST"}, ["12-01 14:00:00"]),
        ({"catchUp": "SKIP"}, []),
        ({"catchUp": "ALL"}, ["12-01 11:00:00", "12-01 12:00:00", "12-01 13:00:00", "12-01 14:00:00"]),
        (
            {"runCatchupScheduleInstances": True},
            ["12-01 11:00:00", "12-01 12:00:00", "12-01 13:00:00", "12-01 14:00:00"],
        ),
        ({"runCatchupScheduleInstances": False}, []),
    ],
)
def test_moments_that_were_missed_are_caught_up_as_the_schedule_says(
    catch_up: dict[str, Any], started: list[str]
) -> None:
    cron = Cron(**catch_up)

    starts = cron.due(now_ms=at("2026-12-01T14:20:00"))

    assert [told(orjson.loads(start.input)["_scheduledTime"]) for start in starts] == started
    assert told(cron.delays[-1].due_at_ms) == "12-01 15:00:00"


def test_a_moment_of_some_seconds_ago_was_not_missed() -> None:
    cron = Cron(catchUp="SKIP")

    assert len(cron.due(now_ms=at("2026-12-01T11:00:20"))) == 1


def test_very_many_missed_moments_are_started_in_bounded_decisions() -> None:
    cron = Cron(catchUp="ALL", cronExpression="* * * * *")
    until = at("2026-12-01T15:00:00")
    counts = []
    while cron.delays[-1].due_at_ms <= until:
        counts.append(len(cron.due(now_ms=until)))

    assert counts == [MAX_AT_ONCE, MAX_AT_ONCE, 270 - 2 * MAX_AT_ONCE]
    assert told(cron.delays[-1].due_at_ms) == "12-01 15:01:00"


def test_a_schedule_ends_with_its_end_time() -> None:
    cron = Cron(scheduleEndTime=at("2026-12-01T11:30:00"))
    assert len(cron.due()) == 1

    assert "nextRunTime" not in cron.document
    assert len(cron.delays) == 1


def test_a_schedule_begins_with_its_start_time() -> None:
    cron = Cron(scheduleStartTime=at("2027-01-01T00:00:00"))

    assert cron.delays[-1].due_at_ms == at("2027-01-01T00:00:00")


# --- pausing, deleting, being refused


def test_a_paused_schedule_starts_nothing_and_goes_on_from_the_moment_of_its_resumption() -> None:
    cron = Cron(catchUp="ALL")
    cron.decide(PauseSchedule(key="hourly", reason="moving", **asked()))
    assert cron.due() == []
    assert (cron.document["paused"], cron.document["pausedReason"]) == (True, "moving")

    cron.decide(ResumeSchedule(key="hourly", **asked()), at("2026-12-01T20:15:00"))

    assert told(cron.delays[-1].due_at_ms) == "12-01 21:00:00"
    assert "pausedReason" not in cron.document
    assert len(cron.due()) == 1


def test_what_is_paused_or_goes_on_already_is_a_conflict() -> None:
    cron = Cron()

    assert status_of(cron.decide(ResumeSchedule(key="hourly", **asked()))) == 409
    cron.decide(PauseSchedule(key="hourly", **asked()))
    assert status_of(cron.decide(PauseSchedule(key="hourly", **asked()))) == 409


def test_a_deleted_schedule_starts_nothing() -> None:
    cron = Cron()
    delay = cron.delays[-1]

    assert status_of(cron.decide(DeleteSchedule(key="hourly", **asked()))) == 200
    assert cron.due(delay) == []
    assert status_of(cron.decide(DeleteSchedule(key="hourly", **asked()))) == 404


def test_a_start_that_was_refused_is_seen_in_the_schedule() -> None:
    cron = Cron()
    cron.due()

    cron.decide(ScheduleRefused(key="hourly", reason="there is no workflow definition report"), NOW + 2 * HOUR)

    assert cron.document["lastError"] == "there is no workflow definition report"
    assert cron.document["lastErrorTime"] == NOW + 2 * HOUR
    assert len(cron.due()) == 1, "and it goes on"


def test_a_change_keeps_who_made_it_and_what_was_last() -> None:
    cron = Cron()
    cron.due()
    last = cron.document["lastRunTime"]
    command = PutSchedule(
        key="hourly", document=orjson.dumps(a_document()), overwrite=True, operator="user:bo", **asked()
    )
    cron.decide(command)

    assert (cron.document["createdBy"], cron.document["updatedBy"]) == ("user:ann", "user:bo")
    assert cron.document["lastRunTime"] == last


def test_a_name_that_is_taken_is_a_conflict() -> None:
    cron = Cron()

    again = cron.decide(PutSchedule(key="hourly", document=orjson.dumps(a_document()), **asked()))

    assert status_of(again) == 409


# --- bad input


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"cronExpression": "61 * * * *"}, "cronExpression"),
        ({"cronExpression": "every day"}, "cronExpression"),
        ({"cronExpression": "0 0 30 2 *"}, "cronExpression"),
        ({"cronExpression": None}, "cronExpression"),
        ({"zoneId": "Mars/Olympus"}, "zoneId"),
        ({"zoneId": "../etc/passwd"}, "zoneId"),
        ({"zoneId": ""}, "zoneId"),
        ({"catchUp": "SOME"}, "catchUp"),
        ({"startWorkflowRequest": {}}, "startWorkflowRequest.name"),
        ({"startWorkflowRequest": None}, "startWorkflowRequest"),
        ({"startWorkflowRequest": {"name": "a", "priority": 100}}, "startWorkflowRequest.priority"),
        ({"startWorkflowRequest": {"name": "a", "taskToDomain": {"*": 5}}}, "startWorkflowRequest.taskToDomain"),
        ({"scheduleStartTime": 5, "scheduleEndTime": 4}, "scheduleEndTime"),
        ({"scheduleEndTime": NOW - 1}, "scheduleEndTime"),
        ({"name": "x" * 201}, "name"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(fields: dict[str, Any], path: str) -> None:
    document = a_document(**fields)
    decision = decide_schedule(
        PutSchedule(key=document["name"], document=orjson.dumps(document), **asked()),
        a_context(NOW, definitions=Definitions()),
    )

    answer = next(output for output in decision.outputs if isinstance(output, Answer))
    assert answer.status == 400
    assert [v["path"] for v in orjson.loads(answer.message)["validationErrors"]] == [path]


def test_the_state_of_a_schedule_cannot_be_registered() -> None:
    cron = Cron(nextRunTime=5, generation=77, lastWorkflowId="mine")

    assert cron.schedule.generation == 1
    assert "lastWorkflowId" not in cron.document


# --- moments


def listed(expression: str, zone: str, after: str, count: int) -> list[str]:
    document = a_document(cronExpression=expression, zoneId=zone)
    schedule = parse_schedule(document).unwrap()
    return [told(moment, zone) for moment in islice(moments(schedule, at(after, zone)), count)]


def test_a_daily_job_keeps_its_local_time_over_daylight_saving() -> None:
    found = listed("0 9 * * *", "Europe/Berlin", "2027-03-27T12:00", 2)

    assert found == ["03-28 09:00:00", "03-29 09:00:00"]


def test_a_time_that_daylight_saving_skips_runs_once_that_day() -> None:
    found = listed("30 2 * * *", "Europe/Berlin", "2027-03-27T12:00", 2)

    assert found == ["03-28 03:00:00", "03-29 02:30:00"]


def test_a_time_that_daylight_saving_repeats_runs_once_that_day() -> None:
    found = listed("30 2 * * *", "Europe/Berlin", "2027-10-30T12:00", 2)

    assert found == ["10-31 02:30:00", "11-01 02:30:00"]


def test_six_fields_begin_with_seconds_and_a_question_mark_says_nothing() -> None:
    assert listed("*/20 0 12 ? * MON", "UTC", "2026-12-01T00:00", 2) == ["12-07 12:00:00", "12-07 12:00:20"]


@given(
    minute=st.sampled_from(["0", "*/7", "59", "*"]),
    hour=st.sampled_from(["*", "1-3", "2", "*/5"]),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata"]),
    after=st.integers(at("2027-03-01T00:00"), at("2027-11-30T00:00")),
)
def test_moments_only_go_forward(minute: str, hour: str, zone: str, after: int) -> None:
    schedule = parse_schedule(a_document(cronExpression=f"{minute} {hour} * * *", zoneId=zone)).unwrap()

    found = [after, *islice(moments(schedule, after), 30)]

    assert all(earlier < later for earlier, later in pairwise(found))
    assert next(moments(replace(schedule, ends_at_ms=found[3]), found[3]), None) is None


def test_a_moment_is_in_epoch_milliseconds() -> None:
    schedule = parse_schedule(a_document()).unwrap()

    assert next(moments(schedule, NOW)) == int(datetime(2026, 12, 1, 11, tzinfo=UTC).timestamp() * 1_000)
