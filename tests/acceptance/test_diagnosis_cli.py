"""`task explain`, `task extend-lease` and `workflow reset-callbacks`."""

from __future__ import annotations

import uuid

import pytest

from tests.acceptance.conftest import Cli
from tests.support.roles import until

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def waiting(engine: Cli) -> dict[str, str]:
    """The ids of a workflow and of its task, which nobody serves."""
    name = f"lonely{uuid.uuid4().hex[:6]}"
    made = {"name": name, "tasks": [{"name": name, "taskReferenceName": "alone"}]}
    assert engine("workflow", "create", engine.file(made)).code == 0
    workflow_id = engine("workflow", "start", name).out.strip()

    def on_its_queue() -> str:
        (task,) = engine("workflow", "get", workflow_id, "--json").json["tasks"]
        return str(task["taskId"]) if task["waitingFor"] == "worker" else ""

    return {"workflow": workflow_id, "task": until(on_its_queue, 60, what="the hand-out"), "type": name}


def test_explain_says_that_nobody_serves_the_queue(engine: Cli, waiting: dict[str, str]) -> None:
    told = engine("task", "explain", waiting["task"])

    assert told.code == 0, told.err
    assert told.out.strip() == f"alone: no worker has polled task type {waiting['type']} in domain default yet"


def test_explain_as_json_names_the_workflow(engine: Cli, waiting: dict[str, str]) -> None:
    told = engine("task", "explain", waiting["task"], "--json").json

    assert (told["workflowId"], told["status"], told["waitingFor"]) == (waiting["workflow"], "SCHEDULED", "worker")


def test_explain_of_an_unknown_task_is_not_found(engine: Cli) -> None:
    assert engine("task", "explain", "nobody").code == 3


def test_a_lease_is_extended_by_id_and_only_of_a_known_task(engine: Cli, waiting: dict[str, str]) -> None:
    assert engine("task", "extend-lease", waiting["task"]).out.strip() == f"{waiting['task']}: lease extended"
    assert engine("task", "extend-lease", "nobody").code == 3


def test_callbacks_are_reset_of_live_workflows_only(engine: Cli, waiting: dict[str, str]) -> None:
    assert engine("workflow", "reset-callbacks", waiting["workflow"]).code == 0
    assert engine("workflow", "reset-callbacks", "nobody").code == 3


def test_what_waits_is_listed_moved_and_shown_where_it_went(engine: Cli) -> None:
    name = f"moved{uuid.uuid4().hex[:6]}"
    steps = [{"name": name, "taskReferenceName": "a", "optional": True}]
    engine("workflow", "create", engine.file({"name": name, "tasks": steps}))
    workflow_id = engine("workflow", "start", name).out.strip()

    (found,) = (queue for queue in engine("queue", "list", "--json").json if queue["taskType"] == name)
    assert (found["domain"], found["depth"], found["workers"], found["lastPoll"]) == ("default", 1, [], None)
    moved = engine("queue", "move", "--queue", name, "--to", "eu", "--reason", "more room", "--json")
    assert (moved.json["moved"], moved.json["refused"]) == (1, []), moved.err
    (head,) = engine("queue", "show", f"eu/{name}", "--json").json["line"]
    assert head["workflowId"] == workflow_id

    engine("workflow", "terminate", workflow_id)
    refused = engine("queue", "move", head["taskId"], "--to", "us", "--json")
    assert refused.code == 4
    assert refused.error["message"] == "the task is CANCELED already: only a waiting task can be moved"


def test_a_served_queue_shows_its_worker_and_an_unknown_one_is_not_found(engine: Cli) -> None:
    (worker,) = engine("queue", "show", "greet", "--json").json["workers"]
    assert worker["capacity"] > 0

    told = engine("queue", "show", "mars/greet", "--json")
    assert (told.code, told.error["message"]) == (3, "there is no queue mars/greet; there is default/greet")
