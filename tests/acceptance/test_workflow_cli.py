"""`workflow` commands about executions."""

from __future__ import annotations

import json
import uuid

import pytest

from broker_engine.wire.schemas import versions
from tests.acceptance.conftest import Cli

pytestmark = pytest.mark.kafka


def definition(*tasks: str, **more: object) -> dict[str, object]:
    steps = [{"name": name, "taskReferenceName": name, "inputParameters": more.get(name, {})} for name in tasks]
    return {"name": f"w{uuid.uuid4().hex[:6]}", "tasks": steps, "outputParameters": more.get("output", {})}


@pytest.fixture(scope="module")
def greeting(engine: Cli) -> str:
    """A workflow that greets after a first failure."""
    made = definition(
        "recover",
        "greet",
        greet={"name": "${workflow.input.name}"},
        output={"said": "${greet.output.greeting}"},
    )
    assert engine("workflow", "create", engine.file(made)).code == 0
    return str(made["name"])


def test_a_workflow_runs_to_its_result_and_is_shown_with_all_attempts(engine: Cli, greeting: str) -> None:
    ran = engine("workflow", "start", greeting, "--input", '{"name": "Ada"}', "--wait", "--json")

    assert ran.code == 0, ran.err
    shown = ran.json
    assert (shown["status"], shown["output"]) == ("COMPLETED", {"said": "Hello, Ada!"})
    assert [(t["reference"], t["attempt"], t["status"]) for t in shown["tasks"]] == [
        ("recover", 0, "FAILED"),
        ("recover", 1, "COMPLETED"),
        ("greet", 0, "COMPLETED"),
    ]
    assert [*shown] == [field["name"] for field in versions("workflow-state")[-1].schema["fields"]] + ["tasks"]
    assert [*shown["tasks"][0]] == [field["name"] for field in versions("task-state")[-1].schema["fields"]]

    again = engine("workflow", "get", shown["workflowId"])
    assert (again.code, "Hello, Ada!" in again.out, "not yet" in again.out) == (0, True, True)
    assert engine("workflow", "get", "nobody").code == 3


def test_an_own_id_starts_once_and_can_be_watched(engine: Cli, greeting: str) -> None:
    own = f"own-{uuid.uuid4().hex[:6]}"
    file = engine.file({"name": "Bo"})
    started = engine("workflow", "start", greeting, "--input-file", file, "--id", own)
    assert (started.code, started.out.strip()) == (0, own)

    watched = engine("workflow", "watch", own, "--json")
    assert watched.code == 0
    changes = [json.loads(line) for line in watched.out.splitlines()]
    assert changes[-1]["status"] == "COMPLETED"

    assert "workflow: COMPLETED" in engine("workflow", "watch", own).out
    assert engine("workflow", "watch", "nobody").code == 3
    assert engine("workflow", "start", greeting, "--id", own).code == 4
    ended = engine("workflow", "terminate", own)
    assert (ended.code, "COMPLETED" in ended.err) == (4, True)


def test_an_idempotency_key_gives_the_same_workflow_back(engine: Cli, greeting: str) -> None:
    start = ("workflow", "start", greeting, "--input", '{"name": "Cy"}', "--idempotency-key", "7", "--json")

    first = engine(*start)
    second = engine(*start, "--strategy", "return_existing")

    assert (first.code, second.code) == (0, 0)
    assert first.json == second.json
    assert engine(*start).code == 4


def test_a_failed_workflow_is_exit_code_1_and_found_by_status(engine: Cli) -> None:
    made = definition("fail")
    engine("workflow", "create", engine.file(made))

    ran = engine("workflow", "start", made["name"], "--wait")
    assert (ran.code, "never" in ran.out) == (1, True)

    listed = engine("workflow", "list", "--status", "failed", "--name", made["name"], "--json").json
    assert [(w["name"], w["status"]) for w in listed] == [(made["name"], "FAILED")]
    assert engine("workflow", "list", "--status", "completed", "--name", made["name"]).out == ""


def test_a_task_without_a_worker_waits_until_the_workflow_is_terminated(engine: Cli) -> None:
    made = definition("nobody-serves-this")
    engine("workflow", "create", engine.file(made))
    own = f"waits-{uuid.uuid4().hex[:6]}"

    ran = engine("workflow", "start", made["name"], "--id", own, "--wait", "--timeout", 1, "--json")
    assert (ran.code, ran.error["error"]) == (5, "NoAnswer")
    (task,) = engine("workflow", "get", own, "--json").json["tasks"]
    assert (task["status"], task["phase"]) == ("SCHEDULED", "QUEUED")

    assert engine("workflow", "terminate", own, "--reason", "not needed").code == 0
    shown = engine("workflow", "get", own, "--json").json
    assert (shown["status"], shown["reason"]) == ("TERMINATED", "not needed")


def test_what_cannot_be_started_is_refused(engine: Cli) -> None:
    assert engine("workflow", "start", "unheard-of").code == 3
    assert engine("workflow", "start", "x", "--input", "{").code == 2
    assert engine("workflow", "start", "x", "--input", "[]").code == 2
    assert engine("workflow", "start", "x", "--id", "a", "--idempotency-key", "b").code == 2
