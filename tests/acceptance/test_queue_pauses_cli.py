"""`queue pause` and `queue resume`, as typed."""

from __future__ import annotations

import uuid

import pytest

from tests.acceptance.conftest import Cli
from tests.support.roles import until

pytestmark = pytest.mark.kafka


def test_a_queue_is_paused_shown_explained_and_resumed(engine: Cli) -> None:
    name = f"held{uuid.uuid4().hex[:6]}"
    made = {"name": name, "tasks": [{"name": name, "taskReferenceName": "alone"}]}
    assert engine("workflow", "create", engine.file(made)).code == 0
    workflow_id = engine("workflow", "start", name).out.strip()

    def waits_for(what: str) -> bool:
        (task,) = engine("workflow", "get", workflow_id, "--json").json["tasks"]
        return bool(task["waitingFor"] == what)

    until(lambda: waits_for("worker"), 60, what="the hand-out")

    paused = engine("queue", "pause", name, "--reason", "no licence")
    assert (paused.code, f"broker-engine queue resume {name}" in paused.out, paused.err) == (0, True, "")
    until(lambda: waits_for("resume"), 30, what="the hand-out to be taken back")
    assert "no licence" in engine("queue", "show", name).out
    shown = [view for view in engine("queue", "list", "--json").json if view["taskType"] == name]
    assert [view["pause"]["reason"] for view in shown] == ["no licence"]
    explained = engine("task", "explain", workflow_id, "alone").out
    assert "its queue is paused by" in explained
    assert f"broker-engine queue resume {name}" in explained

    assert engine("queue", "resume", name, "--json").json == {"queue": name, "stillPausedBy": []}
    until(lambda: waits_for("worker"), 30, what="the next hand-out")


def test_what_is_not_there_is_told(engine: Cli) -> None:
    unknown = engine("queue", "pause", "nowhere/typo", "--json")
    assert (unknown.code, unknown.json["isKnown"], "there is no queue nowhere/typo yet" in unknown.err) == (
        0,
        False,
        True,
    )
    again = engine("queue", "resume", "typo")
    assert (again.code, "paused: nowhere/typo" in again.err) == (3, True)
    assert engine("queue", "resume", "nowhere/typo").code == 0
    assert engine("queue", "pause", "eu/").code == 2
