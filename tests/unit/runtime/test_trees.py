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
from tests.support.looking import attempts, workflow
from tests.support.trees import each, fork, loop, operator, switch


def work(reference: str, **inputs: str) -> dict[str, Any]:
    return {"name": "work", "taskReferenceName": reference, "inputParameters": inputs}


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


def _partition(engine: Engine, workflow_id: str) -> int:
    return engine.log.partition_of(workflow_id, engine.partitions)
