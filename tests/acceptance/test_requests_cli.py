"""`task cancel|pause|resume` and `workflow pause|resume`, as typed."""

from __future__ import annotations

import uuid

import pytest

from tests.acceptance.conftest import Cli
from tests.support.roles import until

pytestmark = pytest.mark.kafka


def lonely(engine: Cli) -> tuple[str, str]:
    """The ids of a workflow and of its task, which is on its queue and which nobody serves."""
    name = f"lonely{uuid.uuid4().hex[:6]}"
    made = {"name": name, "tasks": [{"name": "nobody-serves-it", "taskReferenceName": "alone"}]}
    assert engine("workflow", "create", engine.file(made)).code == 0
    workflow_id = engine("workflow", "start", name).out.strip()

    def on_its_queue() -> str:
        (task,) = engine("workflow", "get", workflow_id, "--json").json["tasks"]
        return str(task["taskId"]) if task["waitingFor"] == "worker" else ""

    return workflow_id, until(on_its_queue, 60, what="the hand-out")


def test_a_task_is_paused_explained_resumed_and_cancelled(engine: Cli) -> None:
    workflow_id, task_id = lonely(engine)

    paused = engine("task", "pause", workflow_id, "alone", "--reason", "look first")
    assert (paused.code, paused.out.strip()) == (0, "alone: paused")
    explained = engine("task", "explain", task_id).out
    assert "look first" in explained
    assert f"broker-engine task resume {workflow_id} alone" in explained
    assert engine("task", "resume", task_id, "--json").json == {"taskId": task_id, "answer": "resumed"}
    again = engine("task", "resume", workflow_id, "alone")
    assert (again.code, "only a paused task can be resumed" in again.err) == (4, True)

    canceled = engine("task", "cancel", workflow_id, "alone", "--reason", "wrong file", "--json")
    assert canceled.json == {"workflowId": workflow_id, "referenceTaskName": "alone", "answer": "canceled"}
    assert engine("task", "cancel", task_id).out.strip() == f"{task_id}: already CANCELED"
    shown = engine("workflow", "get", workflow_id, "--json").json
    assert (shown["status"], shown["tasks"][0]["status"]) == ("TERMINATED", "CANCELED")


def test_what_is_not_there_is_not_found(engine: Cli) -> None:
    workflow_id, _ = lonely(engine)

    unknown = engine("task", "cancel", workflow_id, "somebody")
    assert (unknown.code, "it has alone" in unknown.err) == (3, True)
    assert engine("task", "pause", "nobody").code == 3
    assert engine("workflow", "pause", "nobody").code == 3


def test_a_workflow_is_paused_once_and_resumed_once(engine: Cli) -> None:
    workflow_id, _ = lonely(engine)

    assert engine("workflow", "pause", workflow_id, "--reason", "maintenance").out.strip() == f"{workflow_id}: paused"
    twice = engine("workflow", "pause", workflow_id)
    assert (twice.code, twice.out.strip().endswith("maintenance already")) == (0, True)
    shown = engine("workflow", "get", workflow_id)
    assert "PAUSED" in shown.out
    assert "maintenance" in shown.out
    assert engine("workflow", "resume", workflow_id, "--json").json == {"workflowId": workflow_id, "answer": "resumed"}
    assert engine("workflow", "resume", workflow_id).code == 4


def test_a_message_is_sent_to_the_workflow_that_waits_for_it(engine: Cli) -> None:
    name = f"waits{uuid.uuid4().hex[:6]}"
    pull = {"name": "pull", "taskReferenceName": "pull", "type": "PULL_WORKFLOW_MESSAGES"}
    assert engine("workflow", "create", engine.file({"name": name, "tasks": [pull]})).code == 0
    workflow_id = engine("workflow", "start", name).out.strip()

    wrong = engine("workflow", "push-message", workflow_id, "[1]")
    assert (wrong.code, "must be a JSON object" in wrong.err) == (2, True)
    sent = engine("workflow", "push-message", workflow_id, '{"paid": true}', "--json").json

    def output() -> dict[str, object]:
        found = engine("workflow", "get", workflow_id, "--json").json
        return dict(found["output"] or {}) if found["status"] == "COMPLETED" else {}

    messages = until(output, 60, what="the message")["messages"]
    assert isinstance(messages, list)
    assert (messages[0]["id"], messages[0]["payload"]) == (sent["messageId"], {"paid": True})
    late = engine("workflow", "push-message", workflow_id, "{}")
    assert (late.code, "only a live workflow takes messages" in late.err) == (4, True)
