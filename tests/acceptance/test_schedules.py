"""Cron schedules as typed, and over HTTP."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.acceptance.conftest import Cli
from tests.support.gateway import running_gateway
from tests.support.roles import running_engine, until

pytestmark = pytest.mark.kafka


def test_a_schedule_is_tried_out_registered_seen_paused_and_deleted(engine: Cli) -> None:
    name = f"tick{uuid.uuid4().hex[:6]}"
    made = {"name": name, "tasks": [{"name": "pass", "taskReferenceName": "pass", "type": "NOOP"}]}
    assert engine("workflow", "create", engine.file(made)).code == 0

    tried = engine("schedule", "next", "--cron", "0 9 * * MON", "--zone", "Europe/Berlin", "--count", "2")
    assert [line[:3] for line in tried.out.splitlines()] == ["Mon", "Mon"]
    wrong = engine("schedule", "create", name, "--cron", "61 * * * *", "--workflow", name)
    assert ("cronExpression" in wrong.err, "bad minute" in wrong.err) == (True, True)
    assert wrong.code == 1

    assert engine("schedule", "create", name, "--cron", "* * * * * *", "--workflow", name, "--input", "{}").code == 0
    assert engine("schedule", "create", name, "--cron", "* * * * * *", "--workflow", name).code == 4

    def last() -> str:
        return str(engine("schedule", "get", name).json.get("lastWorkflowId", ""))

    until(last, what="the first moment")
    assert engine("schedule", "pause", name, "--reason", "enough").code == 0
    until(lambda: engine("workflow", "get", last(), "--json").json["status"] == "COMPLETED", what="the workflow's end")
    (listed,) = [one for one in engine("schedule", "list", "--json").json if one["name"] == name]
    assert (listed["paused"], listed["pausedReason"]) == (True, "enough")
    assert "paused" in engine("schedule", "list").out
    assert engine("schedule", "resume", name).code == 0
    assert engine("schedule", "delete", name, "--json").json == {"name": name, "status": "deleted"}
    gone = engine("schedule", "get", name)
    assert (gone.code, "schedule list" in gone.err) == (3, True)


def test_the_scheduler_s_api_is_that_of_orkes(bootstrap: str, namespace: str, tmp_path: Path) -> None:
    with running_engine(bootstrap, namespace, tmp_path) as engine, running_gateway(engine, tmp_path) as gateway:
        http = gateway.http
        made = {"name": "pass", "tasks": [{"name": "pass", "taskReferenceName": "pass", "type": "NOOP"}]}
        http.post("/metadata/workflow", json=made).raise_for_status()
        wanted = {"name": "tick", "cronExpression": "* * * * * ?", "startWorkflowRequest": {"name": "pass"}}
        http.post("/scheduler/schedules", json=wanted).raise_for_status()
        until(lambda: http.get("/scheduler/schedules/tick").json().get("lastWorkflowId"), what="the first moment")
        http.get("/scheduler/schedules/tick/pause").raise_for_status()

        (found,) = http.get("/scheduler/schedules", params={"workflowName": "pass"}).json()
        assert found["paused"]
        until(lambda: http.get(f"/workflow/{found['lastWorkflowId']}").status_code == 200, what="the workflow")
        assert http.get(f"/workflow/{found['lastWorkflowId']}").json()["createdBy"] == "schedule:tick"
        ahead = http.get("/scheduler/nextFewSchedules", params={"cronExpression": "0 0 * * *", "limit": 2}).json()
        assert ahead[1] - ahead[0] == 86_400_000
        refused = http.post("/scheduler/schedules", json={**wanted, "zoneId": "Mars"})
        assert (refused.status_code, refused.json()["validationErrors"][0]["path"]) == (400, "zoneId")

        http.delete("/scheduler/schedules/tick").raise_for_status()
        assert http.get("/scheduler/schedules/tick").status_code == 404
