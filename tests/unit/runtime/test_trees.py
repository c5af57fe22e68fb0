"""Trees in the whole engine: a decider that dies between any two transactions changes nothing about what comes out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import pytest
import structlog

from broker_engine.log.memory import Crashed
from broker_engine.model.commands import TaskReported
from broker_engine.model.limits import SYSTEM_DOMAIN
from broker_engine.model.status import ReportStatus
from broker_engine.testing import Engine
from broker_engine.testing.worker import SteppedWorker
from broker_engine.worker import TaskFailed
from tests.support.looking import attempts, workflow
from tests.support.trees import each, fork, loop, operator, switch


def work(reference: str, **inputs: str) -> dict[str, Any]:
    return {"name": "work", "taskReferenceName": reference, "inputParameters": inputs}


def sub_workflow(name: str) -> dict[str, Any]:
    return operator(
        "SUB_WORKFLOW",
        f"run_{name}",
        subWorkflowParam={"name": name},
        inputParameters={"n": "${workflow.input.n}"},
    )


TREE = [
    operator("SET_VARIABLE", "vars", inputParameters={"who": "${workflow.input.who}"}),
    *fork(
        "f",
        [each("items", [1, 2], [work("item", n="${items.output.loopItem}")])],
        [loop("again", [work("round")], "two rounds")],
    ),
    switch("choose", "b", {"b": [work("chosen")]}),
    operator("WAIT", "pause", inputParameters={"duration": "3 secs"}),
    operator("HUMAN", "approve"),
    work("last", who="${workflow.variables.who}"),
]  # fmt: skip
DONE = [
    "vars", "f", "items", "item__1", "again", "round__1", "f_join", "item__2", "round__2", "choose", "chosen", "pause",
    "approve", "last",
]  # fmt: skip


@pytest.fixture
def engine() -> Iterator[Engine]:
    with structlog.testing.capture_logs(), Engine() as engine:
        engine.run()
        engine.register_workflow({"name": "tree", "tasks": TREE, "outputParameters": {"last": "${last.input.who}"}})
        engine.serve("work", lambda data, _work: {"got": data.get("n")})
        engine.workers.append(system_worker(engine, "DO_WHILE", lambda data, _work: {"result": rounds(data) < 2}))
        engine.run()
        yield engine


def rounds(data: dict[str, Any]) -> int:
    assert data["expression"] == "two rounds"
    return int(data["again"]["iteration"])


def system_worker(engine: Engine, kind: str, handler: Any) -> SteppedWorker:
    name = f"system-{kind}"
    worker = SteppedWorker(
        engine.log, engine.namespace, engine.partitions, engine.clock, kind, handler, name, domain=SYSTEM_DOMAIN
    )
    return worker


def approve(engine: Engine, started: str) -> None:
    row = next(task for task in attempts(engine, started) if task.reference == "approve")
    about: dict[str, Any] = {"reference": "approve", "task_id": row.task_id, "hand_out": row.hand_out}
    engine.ask(TaskReported(key=started, status=ReportStatus.COMPLETED, sequence=1, **about, **engine.asked()))


def test_a_tree_runs_to_its_end(engine: Engine) -> None:
    started = engine.start("tree", {"who": "Ada"})
    engine.run(1)
    (pause,) = [task for task in attempts(engine, started) if task.reference == "pause"]
    assert (pause.status, pause.due_at_ms) == ("IN_PROGRESS", (pause.started_at_ms or 0) + 3_000)
    engine.run(5)
    approve(engine, started)
    engine.run()

    assert sorted(task.reference for task in attempts(engine, started)) == sorted(DONE)
    assert {task.status for task in attempts(engine, started)} == {"COMPLETED"}
    assert workflow(engine, started).output == b'{"last":"Ada"}'


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("number", range(1, 14, 2))
def test_a_decider_that_dies_at_any_commit_changes_nothing(engine: Engine, number: int, moment: str) -> None:
    left = number

    def die(_transactional_id: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            engine.log.before_commit = engine.log.on_commit = None
            raise Crashed

    engine.submit("tree", {"who": "Ada"}, workflow_id="w")
    if moment == "before":
        engine.log.before_commit = die
    else:
        engine.log.on_commit = die
    engine.run(4)
    (node,) = engine.nodes
    if left <= 0:
        assert not node.is_up
        node.bury()
        node.start()
    engine.log.before_commit = engine.log.on_commit = None
    engine.run(30)
    approve(engine, "w")
    engine.run()

    rows = attempts(engine, "w")
    assert sorted(task.reference for task in rows) == sorted(DONE), "each once"
    assert {task.status for task in rows} == {"COMPLETED"}
    outputs = {task.reference: orjson.loads(task.output or b"null") for task in rows}
    assert outputs["items"] == {"iteration": 2, "1": {"item": {"got": 1}}, "2": {"item": {"got": 2}}}


def test_what_stands_still_goes_on_after_everything_was_lost(engine: Engine) -> None:
    """Rebuilt from the compacted topics: rows of ended rounds, counters of JOINs, the moment of a WAIT."""
    started = engine.start("tree", {"who": "Ada"})
    engine.run(1)
    (node,) = engine.nodes
    before = node.partitions[_partition(engine, started)].live[started]

    node.kill()
    node.bury()
    node.start()
    engine.run(0.5)

    after = node.partitions[_partition(engine, started)].live[started]
    assert (after.workflow, dict(after.tasks), after.live) == (before.workflow, dict(before.tasks), before.live)
    engine.run(30)
    approve(engine, started)
    engine.run()
    assert workflow(engine, started).status == "COMPLETED"


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("number", [2, 3])
def test_a_long_loop_survives_a_decider_that_dies_between_its_turns(engine: Engine, number: int, moment: str) -> None:
    steps = [each("l", "${workflow.input.items}", [operator("NOOP", "n")], inputParameters={"keepLastN": 1})]
    engine.register_workflow({"name": "long", "tasks": [*steps, work("after")]})
    left = number

    def die(_transactional_id: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            engine.log.before_commit = engine.log.on_commit = None
            raise Crashed

    engine.submit("long", {"items": list(range(1_200))}, workflow_id="w")
    if moment == "before":
        engine.log.before_commit = die
    else:
        engine.log.on_commit = die
    engine.run(1)
    (node,) = engine.nodes
    assert not node.is_up
    node.bury()
    node.start()
    engine.run(30)

    rows = attempts(engine, "w")
    assert workflow(engine, "w").status == "COMPLETED"
    assert len(rows) == len({task.reference for task in rows}) == 1_202, "each round once, and all of them stand there"
    assert rows[0].output == b'{"iteration":1200,"1200":{"n":{}}}'


DYNAMIC: list[dict[str, Any]] = [
    {**operator("DYNAMIC", "which", dynamicTaskNameParam="t", inputParameters={"t": "work"}), "dependsOn": ["first"]},
    {
        **operator("FORK_JOIN_DYNAMIC", "f", inputParameters={"forkTaskName": "work", "forkTaskInputs": [{}, {}]}),
        "dependsOn": ["which"],
    },
    {**operator("JOIN", "j"), "dependsOn": ["f"]},
    {**work("last"), "dependsOn": ["j", "alone"]},
    work("alone"),
    work("first"),
]


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("number", range(1, 12, 2))
def test_steps_that_are_known_only_as_they_begin_survive_a_decider_that_dies(
    engine: Engine, number: int, moment: str
) -> None:
    engine.register_task({"name": "work", "ownerEmail": "a@example.com"})
    engine.register_workflow({"name": "dynamic", "tasks": DYNAMIC})
    left = number

    def die(_transactional_id: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            engine.log.before_commit = engine.log.on_commit = None
            raise Crashed

    engine.submit("dynamic", {}, workflow_id="w")
    if moment == "before":
        engine.log.before_commit = die
    else:
        engine.log.on_commit = die
    engine.run(4)
    (node,) = engine.nodes
    if left <= 0:
        assert not node.is_up
        node.bury()
        node.start()
    engine.log.before_commit = engine.log.on_commit = None
    engine.run(30)

    rows = attempts(engine, "w")
    assert workflow(engine, "w").status == "COMPLETED"
    assert sorted(task.reference for task in rows) == [
        "_work_0", "_work_1", "alone", "f", "first", "j", "last", "which",
    ]  # fmt: skip
    assert {task.status for task in rows} == {"COMPLETED"}


def test_the_steps_that_one_workflow_has_got_are_not_another_s(engine: Engine) -> None:
    fork = operator("FORK_JOIN_DYNAMIC", "f", inputParameters={"forkTaskName": "none", "forkTaskInputs": [{}]})
    engine.register_workflow({"name": "own", "tasks": [fork, operator("JOIN", "j")]})
    started = engine.start("own", {})
    engine.run(0.5)

    (node,) = engine.nodes
    partition = node.partitions[_partition(engine, started)]
    live = partition.live[started]
    assert live.definition.dynamic.nodes
    assert not partition.snapshots[live.definition.content_hash].dynamic.nodes


def _partition(engine: Engine, workflow_id: str) -> int:
    return engine.log.partition_of(workflow_id, engine.partitions)


# --- workflows that start workflows

FAMILY: list[dict[str, Any]] = [
    {"name": "parent", "tasks": [sub_workflow("child"), work("after")]},
    {"name": "child", "tasks": [sub_workflow("grandchild")]},
    {"name": "grandchild", "tasks": [work("deep", n="${workflow.input.n}")]},
]


def family(engine: Engine, started: str) -> list[str]:
    """A workflow, its child and its grandchild."""
    found = [started]
    while (
        child := next((t.sub_workflow_id for t in attempts(engine, found[-1]) if t.sub_workflow_id), None)
    ) is not None:
        found.append(child)
    return found


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("number", range(1, 12))
def test_a_family_survives_a_decider_that_dies_at_any_commit(engine: Engine, number: int, moment: str) -> None:
    for definition in FAMILY:
        engine.register_workflow(definition)
    left = number

    def die(_transactional_id: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            engine.log.before_commit = engine.log.on_commit = None
            raise Crashed

    engine.submit("parent", {"n": 7}, workflow_id="w")
    if moment == "before":
        engine.log.before_commit = die
    else:
        engine.log.on_commit = die
    engine.run(1)
    (node,) = engine.nodes
    if left <= 0:
        assert not node.is_up
        node.bury()
        node.start()
    engine.log.before_commit = engine.log.on_commit = None
    engine.run(30)

    ids = family(engine, "w")
    assert [workflow(engine, each_).status for each_ in ids] == ["COMPLETED"] * 3
    assert [len(attempts(engine, each_)) for each_ in ids] == [2, 1, 1], "nothing is started twice"
    output = orjson.loads(attempts(engine, "w")[0].output or b"")
    assert output == {"subWorkflowId": ids[1], "got": 7}


def test_a_termination_goes_down_to_the_last_descendant(engine: Engine) -> None:
    for definition in FAMILY:
        engine.register_workflow(definition)
    engine.workers.clear()
    started = engine.start("parent", {"n": 7})
    engine.run(1)
    ids = family(engine, started)
    assert len(ids) == 3

    engine.terminate(started, "enough")
    engine.run(1)

    assert [workflow(engine, each_).status for each_ in ids] == ["TERMINATED"] * 3
    assert attempts(engine, ids[2])[0].status == "CANCELED"


def test_a_child_without_a_definition_fails_its_parent(engine: Engine) -> None:
    engine.register_workflow({"name": "alone", "tasks": [sub_workflow("nobody")]})

    started = engine.start("alone", {})
    engine.run(1)

    assert workflow(engine, started).status == "FAILED"
    assert "there is no workflow definition nobody" in (workflow(engine, started).reason or "")


def test_a_failure_workflow_that_does_not_exist_is_named_by_the_failed_one(engine: Engine) -> None:
    ends = operator("TERMINATE", "t", inputParameters={"terminationStatus": "FAILED", "terminationReason": "no stock"})
    engine.register_workflow({"name": "alone", "tasks": [ends], "failureWorkflow": "nobody"})

    started = engine.start("alone", {})
    engine.run(1)

    found = workflow(engine, started)
    assert found.status == "FAILED"
    assert "no stock; failureWorkflow: the failure workflow could not start" in (found.reason or "")


def test_a_failed_child_is_started_again_in_the_engine(engine: Engine) -> None:
    seen: list[str] = []

    def flaky(_data: dict[str, Any], _work: Any) -> dict[str, Any]:
        seen.append("tried")
        if len(seen) == 1:
            raise TaskFailed("boom")
        return {"n": 5}

    engine.register_workflow({"name": "child", "tasks": [{**work("x"), "name": "flaky", "retryCount": 0}]})
    again = {"name": "run_child", "retryCount": 1, "retryDelaySeconds": 1}
    engine.register_workflow({"name": "parent", "tasks": [{**sub_workflow("child"), "taskDefinition": again}]})
    engine.serve("flaky", flaky)

    started = engine.start("parent", {})
    engine.run(5)

    assert workflow(engine, started).status == "COMPLETED"
    assert [task.status for task in attempts(engine, started)] == ["FAILED", "COMPLETED"]
    assert len({task.sub_workflow_id for task in attempts(engine, started)}) == 2
