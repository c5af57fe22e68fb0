"""`task` and `workflow` commands about definitions."""

from __future__ import annotations

import json

import pytest

from tests.acceptance.conftest import Cli

pytestmark = pytest.mark.kafka

TASK = {"name": "charge", "ownerEmail": "test@example.com", "retryCount": 2, "retryDelaySeconds": 5}
WORKFLOW = {"name": "order", "version": 1, "tasks": [{"name": "charge", "taskReferenceName": "charge"}]}


def test_a_task_definition_is_created_read_changed_and_deleted(engine: Cli) -> None:
    assert engine("task", "create", engine.file(TASK)).code == 0
    assert engine("task", "get", "charge").json.items() >= TASK.items()

    changed = engine("task", "update", engine.file({**TASK, "retryCount": 7}), "--json")
    assert (changed.code, changed.json[0]["status"]) == (0, "updated")
    listed = {definition["name"]: definition for definition in engine("task", "list", "--json").json}
    assert listed["charge"]["retryCount"] == 7
    assert "charge" in engine("task", "list").out

    assert engine("task", "delete", "charge").code == 0
    assert engine("task", "get", "charge").code == 3
    assert engine("task", "delete", "charge").code == 3
    gone = engine("task", "update", engine.file(TASK))
    assert (gone.code, "create it first" in gone.err) == (3, True)


def test_an_array_is_reported_item_by_item_and_the_good_ones_are_stored(engine: Cli) -> None:
    bad = {"name": "", "retryCount": -1, "responseTimeoutSeconds": 0}
    content = json.dumps([{**TASK, "name": "good"}, bad, 7])

    ran = engine("task", "create", "-", "--json", stdin=content)

    assert ran.code == 1
    good, refused, no_object = ran.json
    assert (good["name"], good["status"]) == ("good", "created")
    assert {v["path"] for v in refused["error"]["violations"]} >= {"name", "retryCount"}
    assert all(set(v) == {"path", "message", "invalidValue"} for v in refused["error"]["violations"])
    assert no_object["status"] == "refused"
    assert ran.error["exitCode"] == 1
    assert engine("task", "get", "good").code == 0


def test_every_violation_is_shown_with_its_path_and_value(engine: Cli) -> None:
    ran = engine("task", "create", engine.file({"name": "x", "retryCount": -3, "timeoutPolicy": "MAYBE"}))

    assert ran.code == 1
    assert "retryCount:" in ran.err
    assert "(got -3)" in ran.err
    assert "timeoutPolicy:" in ran.err


def test_a_workflow_version_exists_once_unless_overwritten(engine: Cli) -> None:
    engine("task", "create", engine.file(TASK))
    file = engine.file(WORKFLOW)

    assert engine("workflow", "create", file).code == 0
    again = engine("workflow", "create", file)
    assert (again.code, "overwrite" in again.err) == (4, True)
    assert engine("workflow", "create", file, "--overwrite").code == 0
    assert "order" in [definition["name"] for definition in engine("workflow", "definitions", "--json").json]


@pytest.mark.parametrize("content", ["{", "7", "[]"])
def test_a_file_without_definitions_is_a_usage_error(engine: Cli, content: str) -> None:
    assert engine("task", "create", engine.file(content)).code == 2


def test_what_is_not_there_is_said_with_its_exit_code(cli: Cli) -> None:
    ran = cli("task", "list", "--json")  # the namespace does not exist
    assert (ran.code, ran.error["error"], ran.error["exitCode"]) == (3, "NotFound", 3)
    assert "start a decider" in ran.error["message"]

    nobody = cli("task", "list", "--kafka", "127.0.0.1:1", "--json")
    assert (nobody.code, nobody.error["error"]) == (5, "Unreachable")
