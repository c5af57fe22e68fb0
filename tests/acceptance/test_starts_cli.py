"""`starts` commands: stopping new workflows, draining, and allowing them again."""

from __future__ import annotations

import json
import uuid

import pytest

from tests.acceptance.conftest import Cli

pytestmark = pytest.mark.kafka


def test_a_stopped_definition_drains_refuses_and_starts_again(engine: Cli) -> None:
    name = f"w{uuid.uuid4().hex[:6]}"
    steps = [{"name": "greet", "taskReferenceName": "a", "inputParameters": {"name": "Ada"}}]
    engine("workflow", "create", engine.file({"name": name, "tasks": steps}))
    running = engine("workflow", "start", name).out.strip()

    stopped = engine("starts", "stop", "--workflow", name, "--reason", "closed", "--drain", "--json")
    assert stopped.code == 0, stopped.err
    assert (stopped.json["key"], stopped.json["reason"]) == (f"workflow:{name}", "closed")
    assert json.loads(engine("workflow", "get", running, "--json").out)["status"] == "COMPLETED"

    refused = engine("workflow", "start", name, "--json")
    assert refused.code == 4
    assert f"has stopped workflow {name} from starting: closed" in refused.error["message"]
    assert f"workflow {name}" in engine("starts", "list").out

    assert engine("starts", "allow", "--workflow", name).code == 0
    assert engine("workflow", "start", name, "--wait").code == 0
    assert engine("starts", "allow", "--workflow", name).code == 3


def test_a_stop_is_about_one_thing(engine: Cli) -> None:
    ran = engine("starts", "stop", "--workflow", "a", "--tenant", "b")

    assert ran.code == 2
    assert "one of --workflow, --tenant and --all" in ran.err.replace("\n", " ").replace("│", "")


def test_a_start_carries_its_tenant_and_deadline(engine: Cli) -> None:
    name = f"w{uuid.uuid4().hex[:6]}"
    engine("workflow", "create", engine.file({"name": name, "tasks": [{"name": name, "taskReferenceName": "a"}]}))

    late = engine("workflow", "start", name, "--deadline-at", "2020-01-01T00:00:00+00:00", "--json")
    assert late.code == 1
    assert "has passed" in late.error["message"]

    promised = engine("workflow", "start", name, "--tenant", "acme", "--deadline-at", "2100-01-01T00:00:00+00:00")
    shown = json.loads(engine("workflow", "get", promised.out.strip(), "--json").out)
    assert (shown["tenant"], shown["deadlineAt"]) == ("acme", 4_102_444_800_000)


def test_a_start_carries_the_domains_of_its_tasks(engine: Cli) -> None:
    name = f"w{uuid.uuid4().hex[:6]}"
    engine("workflow", "create", engine.file({"name": name, "tasks": [{"name": name, "taskReferenceName": "a"}]}))

    wrong = engine("workflow", "start", name, "--task-to-domain", '{"*": "NO_DOMAIN, eu"}', "--json")
    assert "NO_DOMAIN must be the last entry" in wrong.error["message"]

    started = engine("workflow", "start", name, "--task-to-domain", '{"*": "eu, us"}')
    (task,) = json.loads(engine("workflow", "get", started.out.strip(), "--json").out)["tasks"]
    assert (task["domain"], task["domainChoices"]) == ("us", "eu,us")
