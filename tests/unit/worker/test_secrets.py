"""Secrets named by a definition: resolved in the worker, handed to the function, missing ones told before it runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker_engine.decider.definitions import parse_task_def
from broker_engine.errors import BadRequest
from broker_engine.worker import TaskFailed
from broker_engine.worker.secrets import PREFIX, resolved, resolver
from tests.builders import Story, a_step
from tests.unit.worker.test_task import CONTEXT


def test_they_come_from_the_environment_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{PREFIX}TOKEN", "t0p")

    assert resolved("TOKEN", resolver(None)) == {"TOKEN": "t0p"}


@pytest.mark.parametrize("source", [{"A": "1", "B": "2"}, lambda name: {"A": "1", "B": "2"}.get(name)])
def test_they_come_from_what_the_worker_was_given(source: object) -> None:
    assert resolved("A,B", resolver(source)) == {"A": "1", "B": "2"}  # type: ignore[arg-type]  # both kinds in turn


def test_a_missing_one_fails_the_attempt_before_the_function_runs() -> None:
    with pytest.raises(TaskFailed, match="no secret TOKEN") as refused:
        resolved("TOKEN", resolver({}))

    assert refused.value.code == "INIT_SECRET"


def test_the_function_gets_those_that_the_definition_names() -> None:
    context = replace(CONTEXT, _secrets={"TOKEN": "t0p"})

    assert context.secret("TOKEN") == "t0p"
    assert "t0p" not in repr(context)
    with pytest.raises(BadRequest, match="does not name OTHER"):
        context.secret("OTHER")


def test_only_their_names_go_out_with_the_task() -> None:
    story = Story(a_step("a", runtime_metadata=("TOKEN", "URL"))).start()

    assert story.schedules[0].secrets == ("TOKEN", "URL")


@pytest.mark.parametrize("name", ["", "a,b", "x" * 300])
def test_a_name_that_cannot_be_one_is_refused(name: str) -> None:
    (violation,) = parse_task_def({"name": "pay", "runtimeMetadata": [name]}).violations

    assert violation.path == "runtimeMetadata"
