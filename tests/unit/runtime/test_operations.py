"""Operations on ended workflows in a whole engine: whatever dies between, nothing runs twice and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from broker_engine.errors import BadRequest, Conflict
from broker_engine.model import state
from broker_engine.model.commands import RemoveWorkflow, RerunWorkflow, RestartWorkflow, RetryWorkflow
from broker_engine.model.state import TaskState
from broker_engine.testing import Engine
from broker_engine.topics import Topic
from broker_engine.worker import TaskFailedForGood
from tests.support.crashing import crash
from tests.support.trees import each, fork, operator


@pytest.fixture
def engine() -> Iterator[Engine]:
    with structlog.testing.capture_logs(), Engine() as engine:
        engine.run()
        for name in ("work", "brittle"):
            engine.register_task({"name": name, "retryCount": 0, "ownerEmail": "a@b.c"})
        yield engine


class Brittle:
    """A task that fails for good until it is mended."""

    def __init__(self, engine: Engine) -> None:
        self.is_mended = False
        self.ran: list[str] = []
        engine.serve("brittle", self._brittle, takes_ms=lambda _work: 1_000)  # the others are done before it fails
        engine.serve("work", lambda _input, work: self.ran.append(work.reference) or {"ref": work.reference})

    def _brittle(self, _input: Any, work: Any) -> dict[str, Any]:
        self.ran.append(work.reference)
        if not self.is_mended:
            raise TaskFailedForGood("not yet")
        return {"mended": True}


def work(reference: str, name: str = "work") -> dict[str, Any]:
    return {"name": name, "taskReferenceName": reference}


def rows(engine: Engine, workflow_id: str) -> dict[str, TaskState]:
    """The latest attempts of the present run."""
    view = engine.workflow(workflow_id)
    return {task.reference: task for task in state.present(view.workflow, view.tasks)}


TREE = {"name": "tree", "tasks": [*fork("f", [work("a")], [work("b", "brittle")]), work("last")]}


def restarted(engine: Engine) -> None:
    """Another process takes over: what it knows, it has read from the topics."""
    (node,) = engine.nodes
    node.kill()
    node.bury()
    node.start()
    engine.run()


@pytest.mark.parametrize("moment", ["clean", "restored", "before", "after"])
def test_a_retry_is_carried_out_once(engine: Engine, moment: str) -> None:
    brittle = Brittle(engine)
    engine.register_workflow(TREE)
    started = engine.start("tree")
    engine.run(5)
    assert engine.workflow(started).status == "FAILED"
    brittle.is_mended = True
    if moment == "restored":
        restarted(engine)

    engine.send(RetryWorkflow(key=started, **engine.asked()))
    if moment in ("before", "after"):
        crash(engine, moment).start()
    engine.run(40)

    view = engine.workflow(started)
    assert (view.status, view.workflow.run) == ("COMPLETED", 1)
    assert brittle.ran == ["a", "b", "b", "last"]
    assert [task.reference for task in view.tasks if task.run == 0] == ["f", "a", "b", "f_join"], "the first run stays"


def test_what_runs_again_is_restored_as_it_was(engine: Engine) -> None:
    brittle = Brittle(engine)
    tree = {"name": "loops", "tasks": [each("l", [1, 2, 3], [work("a"), work("b", "brittle")]), work("last")]}
    brittle.is_mended = True
    engine.register_workflow(tree)
    started = engine.start("loops")
    engine.run(5)
    engine.ask(RerunWorkflow(key=started, task_id=rows(engine, started)["a__2"].task_id, **engine.asked()))
    before = rows(engine, started).keys()

    restarted(engine)
    engine.run(5)

    assert "a__1" in before
    assert brittle.ran == [
        "a__1",
        "b__1",
        "a__2",
        "b__2",
        "a__3",
        "b__3",
        "last",
        "a__2",
        "b__2",
        "a__3",
        "b__3",
        "last",
    ]
    assert engine.workflow(started).status == "COMPLETED"
    loop = rows(engine, started)["l"]
    assert b'"1":{"a":{"ref":"a__1"}' in (loop.output or b""), "the round before is in the output"


def test_an_operation_in_the_same_turn_as_the_end_finds_every_task(engine: Engine) -> None:
    """The workflow ends and is retried in one batch of the decider, before its tasks are in the store."""
    brittle = Brittle(engine)
    engine.register_workflow(TREE)
    started = engine.submit("tree")
    engine.run(0.5)
    engine.send(RetryWorkflow(key=started, **engine.asked()))
    brittle.is_mended = True

    engine.run(10)

    assert engine.workflow(started).status == "COMPLETED"


def test_refused_operations_say_what_to_do(engine: Engine) -> None:
    Brittle(engine).is_mended = True
    engine.register_workflow(TREE)
    started = engine.start("tree")
    engine.run(5)

    with pytest.raises(Conflict, match="rerun it from a task"):
        engine.ask(RetryWorkflow(key=started, **engine.asked()))
    with pytest.raises(BadRequest, match="no task of the workflow's present run"):
        engine.ask(RerunWorkflow(key=started, task_id="x", **engine.asked()))


CHILD = {"name": "child", "tasks": [work("c", "brittle")]}
PARENT = {"name": "parent", "tasks": [operator("SUB_WORKFLOW", "p", subWorkflowParam={"name": "child"}), work("pl")]}
GRAND = {"name": "grand", "tasks": [operator("SUB_WORKFLOW", "g", subWorkflowParam={"name": "parent"}), work("gl")]}


def family(engine: Engine) -> tuple[str, str, str]:
    for definition in (CHILD, PARENT, GRAND):
        engine.register_workflow(definition)
    grand = engine.start("grand")
    engine.run(10)
    parent = rows(engine, grand)["g"].sub_workflow_id or ""
    child = rows(engine, parent)["p"].sub_workflow_id or ""
    assert {engine.workflow(each).status for each in (grand, parent, child)} == {"FAILED"}
    return grand, parent, child


@pytest.mark.parametrize("moment", ["clean", "before", "after"])
def test_a_grandchild_that_is_retried_brings_its_family_to_its_end(engine: Engine, moment: str) -> None:
    brittle = Brittle(engine)
    grand, parent, child = family(engine)
    brittle.is_mended = True

    engine.send(RetryWorkflow(key=child, **engine.asked()))
    if moment != "clean":
        crash(engine, moment).start()
    engine.run(40)

    assert {engine.workflow(each).status for each in (grand, parent, child)} == {"COMPLETED"}
    assert brittle.ran == ["c", "c", "pl", "gl"]


@pytest.mark.parametrize("moment", ["clean", "before", "after"])
def test_a_retry_from_above_resumes_down_to_what_failed(engine: Engine, moment: str) -> None:
    brittle = Brittle(engine)
    grand, parent, child = family(engine)
    brittle.is_mended = True

    engine.send(RetryWorkflow(key=grand, resume_children=True, **engine.asked()))
    if moment != "clean":
        crash(engine, moment).start()
    engine.run(40)

    assert {engine.workflow(each).status for each in (grand, parent, child)} == {"COMPLETED"}
    assert brittle.ran == ["c", "c", "pl", "gl"]
    assert rows(engine, grand)["g"].sub_workflow_id == parent, "no other one was started"


def test_a_retry_from_above_starts_children_anew(engine: Engine) -> None:
    brittle = Brittle(engine)
    grand, parent, _ = family(engine)
    brittle.is_mended = True

    engine.ask(RetryWorkflow(key=grand, **engine.asked()))
    engine.run(20)

    assert engine.workflow(grand).status == "COMPLETED"
    assert engine.workflow(parent).status == "FAILED"
    assert rows(engine, grand)["g"].sub_workflow_id != parent


def test_a_restarted_workflow_leaves_its_first_run_readable_and_forgets_all_at_its_end(engine: Engine) -> None:
    brittle = Brittle(engine)
    engine.register_workflow(TREE)
    started = engine.start("tree")
    engine.run(5)
    brittle.is_mended = True

    engine.ask(RestartWorkflow(key=started, **engine.asked()))
    engine.run(5)

    view = engine.workflow(started)
    assert (view.status, view.workflow.run) == ("COMPLETED", 1)
    assert {task.run for task in view.tasks} == {0, 1}
    assert {task.run for task in rows(engine, started).values()} == {1}


@pytest.mark.parametrize("moment", ["clean", "before", "after"])
def test_what_was_done_is_undone_once(engine: Engine, moment: str) -> None:
    brittle = Brittle(engine)
    undone: list[Any] = []
    engine.serve("undo", lambda data, work: undone.append((work.reference, data["output"])) or {})
    step = {**work("a"), "compensation": {"task": "undo"}}
    engine.register_workflow(
        {"name": "trade", "tasks": [step, {**step, "taskReferenceName": "b"}, work("c", "brittle")]}
    )
    started = engine.submit("trade")
    engine.run(0.5)
    if moment != "clean":
        engine.clock.advance(1_000)
        for worker in engine.workers:
            worker.step()
        crash(engine, moment).start()
    engine.run(40)

    view = engine.workflow(started)
    assert (view.status, brittle.ran) == ("FAILED", ["a", "b", "c"])
    assert undone == [("undo_1_b", {"ref": "b"}), ("undo_2_a", {"ref": "a"})]
    assert engine.workflow(view.workflow.compensated_by or "").status == "COMPLETED"


@pytest.mark.parametrize("moment", ["clean", "before", "after"])
def test_a_removed_workflow_leaves_tombstones_of_every_run_and_attempt(engine: Engine, moment: str) -> None:
    brittle = Brittle(engine)
    engine.register_task({"name": "brittle", "retryCount": 1, "retryDelaySeconds": 0, "ownerEmail": "a@b.c"})
    engine.register_workflow(TREE)
    started = engine.start("tree")
    engine.run(5)
    brittle.is_mended = True
    engine.ask(RetryWorkflow(key=started, **engine.asked()))
    engine.run(5)
    assert engine.workflow(started).status == "COMPLETED"

    engine.send(RemoveWorkflow(key=started, **engine.asked()))
    if moment != "clean":
        crash(engine, moment).start()
    engine.run(40)

    for topic in (Topic.TASK_STATE, Topic.WORKFLOW_STATE):
        last = {record.key: record.value for record in engine.records(topic)}
        assert len(last) > 0
        assert set(last.values()) == {None}
    assert engine.start("tree", workflow_id=started) == started, "its id is free again"


def test_a_workflow_that_runs_is_not_removed(engine: Engine) -> None:
    engine.register_workflow({"name": "waits", "tasks": [operator("HUMAN", "h")]})
    started = engine.start("waits")

    with pytest.raises(Conflict, match="terminate it first"):
        engine.ask(RemoveWorkflow(key=started, **engine.asked()))
