"""Operations on workflows, as typed, and as Conductor's API has them."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.acceptance.conftest import Cli
from tests.support.gateway import running_gateway
from tests.support.roles import running_engine, until

pytestmark = pytest.mark.kafka


def status(engine: Cli, workflow_id: str) -> str:
    return str(engine("workflow", "get", workflow_id, "--json").json["status"])


def test_a_workflow_is_run_again_in_every_way(engine: Cli) -> None:
    name = f"again{uuid.uuid4().hex[:6]}"
    human = {"name": "h", "type": "HUMAN"}
    made = {"name": name, "tasks": [{**human, "taskReferenceName": ref} for ref in ("one", "two", "three")]}
    assert engine("workflow", "create", engine.file(made)).code == 0
    started = engine("workflow", "start", name).out.strip()

    assert engine("workflow", "retry", started).code == 4, "it runs"
    assert engine("task", "complete", started, "one", "--output", '{"n": 1}').code == 0
    assert engine("task", "fail", started, "two", "--final", "--reason", "no").code == 0
    until(lambda: status(engine, started) == "FAILED", what="the failure")
    assert engine("workflow", "retry", started, "--json").json == {"workflowId": started, "status": "retried"}
    assert engine("workflow", "skip-task", started, "three", "--output", '{"n": 3}').code == 0
    assert engine("workflow", "update-variables", started, '{"limit": 10}').code == 0
    assert engine("task", "complete", started, "two").code == 0
    until(lambda: status(engine, started) == "COMPLETED", what="the end")

    refused = engine("workflow", "retry", started)
    assert (refused.code, "rerun it from a task, or restart it" in refused.err) == (4, True)
    assert engine("workflow", "rerun", started, "--from", "two", "--task-input", '{"again": true}').code == 0
    view = engine("workflow", "get", started, "--json").json
    (two,) = [task for task in view["tasks"] if task["reference"] == "two" and task["run"] == 2]
    assert (view["status"], two["input"]) == ("RUNNING", {"again": True})
    assert engine("workflow", "terminate", started).code == 0
    assert engine("workflow", "restart", started).code == 0
    assert engine("workflow", "rerun", started, "--from", "nobody").code == 4, "it runs"
    assert engine("workflow", "terminate", started).code == 0
    assert engine("workflow", "remove", started, "--json").json == {"workflowId": started, "status": "removed"}
    assert engine("workflow", "get", started).code == 3
    started = engine("workflow", "start", name).out.strip()
    assert engine("workflow", "remove", started).code == 4, "it runs"
    assert engine("workflow", "terminate", started).code == 0
    unknown = engine("workflow", "rerun", started, "--from", "nobody")
    assert (unknown.code, "has the id nobody" in unknown.err) == (1, True)


def test_conductor_s_paths_do_the_same(bootstrap: str, namespace: str, tmp_path: Path) -> None:
    with running_engine(bootstrap, namespace, tmp_path) as engine, running_gateway(engine, tmp_path) as gateway:
        http = gateway.http
        made = {"name": "two", "tasks": [{"name": "h", "taskReferenceName": ref, "type": "HUMAN"} for ref in "ab"]}
        http.post("/metadata/workflow", json=made).raise_for_status()
        started = http.post("/workflow/two", json={}).text
        assert http.post(f"/workflow/{started}/retry").status_code == 409
        http.post(f"/tasks/{started}/a/COMPLETED", json={"n": 1}).raise_for_status()
        http.post(f"/tasks/{started}/b/FAILED_WITH_TERMINAL_ERROR", json={}).raise_for_status()
        until(lambda: http.get(f"/workflow/{started}").json()["status"] == "FAILED", what="the failure")

        assert http.post(f"/workflow/{started}/retry?resumeSubworkflowTasks=true").status_code == 204
        found = http.get(f"/workflow/{started}").json()
        shown = [(task["referenceTaskName"], task["status"], task.get("retried", False)) for task in found["tasks"]]
        assert (found["status"], shown) == (
            "RUNNING",
            [("a", "COMPLETED", False), ("b", "FAILED_WITH_TERMINAL_ERROR", True), ("b", "IN_PROGRESS", False)],
        )
        http.post(f"/workflow/{started}/variables", json={"v": 1}).raise_for_status()
        http.post(f"/tasks/{started}/b/COMPLETED", json={}).raise_for_status()
        until(lambda: http.get(f"/workflow/{started}").json()["status"] == "COMPLETED", what="the end")

        first = next(task["taskId"] for task in found["tasks"] if task["referenceTaskName"] == "a")
        again = http.post(f"/workflow/{started}/rerun", json={"reRunFromTaskId": first, "taskInput": {"x": 1}})
        assert (again.status_code, again.text) == (200, started)
        (only,) = http.get(f"/workflow/{started}").json()["tasks"]
        assert (only["referenceTaskName"], only["inputData"], only["status"]) == ("a", {"x": 1}, "IN_PROGRESS")
        http.put(f"/workflow/{started}/skiptask/b", json={"taskOutput": {"n": 2}}).raise_for_status()
        http.post(f"/tasks/{started}/a/COMPLETED", json={}).raise_for_status()
        until(lambda: http.get(f"/workflow/{started}").json()["status"] == "COMPLETED", what="the end")
        assert [task["status"] for task in http.get(f"/workflow/{started}").json()["tasks"]] == ["COMPLETED", "SKIPPED"]

        answer = http.post("/workflow/bulk/restart", json=[started, "nobody"]).json()
        assert (answer["bulkSuccessfulResults"], list(answer["bulkErrorResults"])) == ([started], ["nobody"])
        assert http.get(f"/workflow/{started}").json()["status"] == "RUNNING"
        other = http.post("/workflow/two", json={}).text
        assert http.delete(f"/workflow/{other}/remove").status_code == 409
        http.delete(f"/workflow/{other}").raise_for_status()
        http.delete(f"/workflow/{other}/remove").raise_for_status()
        assert http.get(f"/workflow/{other}").status_code == 404
        answer = http.post("/workflow/bulk/retry", json=[started]).json()
        assert "terminate it first" in answer["bulkErrorResults"][started]
