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


# --- queues


def test_a_queue_is_listed_with_its_depth_and_without_workers(engine: Cli, waiting: dict[str, str]) -> None:
    (found,) = (queue for queue in engine("queue", "list", "--json").json if queue["taskType"] == waiting["type"])

    assert (found["domain"], found["depth"], found["waiting"], found["lag"]) == ("default", 1, {"worker": 1}, 1)
    assert (found["workers"], found["lastPoll"]) == ([], None)


def test_a_served_queue_shows_its_worker(engine: Cli) -> None:
    shown = engine("queue", "show", "greet", "--json").json

    (worker,) = shown["workers"]
    assert worker["capacity"] > 0
    assert (shown["depth"], shown["line"]) == (0, [])


def test_an_unknown_queue_is_not_found(engine: Cli) -> None:
    told = engine("queue", "show", "mars/greet", "--json")

    assert told.code == 3
    assert told.error["message"] == "there is no queue mars/greet; there is default/greet"


def test_a_move_is_about_a_task_or_a_queue(engine: Cli) -> None:
    assert engine("queue", "move", "--to", "eu").code == 2
    assert engine("queue", "move", "some", "--queue", "greet", "--to", "eu").code == 2


def test_an_ended_task_is_not_moved(engine: Cli) -> None:
    made = {"name": f"ended{uuid.uuid4().hex[:6]}", "tasks": [{"name": "fail", "taskReferenceName": "a"}]}
    engine("workflow", "create", engine.file(made))
    started = engine("workflow", "start", made["name"], "--wait", "--json").json
    told = engine("queue", "move", started["tasks"][0]["taskId"], "--to", "eu", "--json")

    assert told.code == 4
    assert told.error["message"] == "the task is FAILED already: only a waiting task can be moved"


def test_a_waiting_task_is_moved_and_its_queue_with_it(engine: Cli, waiting: dict[str, str]) -> None:
    moved = engine("queue", "move", waiting["task"], "--to", "eu", "--reason", "more room")
    assert (moved.code, moved.out.strip()) == (0, "alone: moved from default to eu"), moved.err
    back = engine("queue", "move", "--queue", f"eu/{waiting['type']}", "--to", "us", "--json")
    assert (back.json["moved"], back.json["refused"]) == (1, [])

    (head,) = engine("queue", "show", f"us/{waiting['type']}", "--json").json["line"]
    (task,) = engine("workflow", "get", waiting["workflow"], "--json").json["tasks"]
    assert head["taskId"] == waiting["task"]
    assert (task["domain"], task["handOut"], task["reasonCode"]) == ("us", 3, "MOVED")
