"""Random trees whose tasks fail once, or that are run again from somewhere: they come to the same in the end."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from broker_engine.model.commands import RerunWorkflow, RestartWorkflow, RetryWorkflow
from broker_engine.model.state import present
from tests.support.trees import Tree
from tests.unit.decider.test_random_trees import MAX_DEPTH, Interpreter, Json, Maker, work

pytestmark = pytest.mark.slow

SEEDS = 100
#: More runs than any of the trees needs.
MAX_RUNS = 200


class Mended(Interpreter):
    """What a tree comes to when everything that fails is mended."""

    def one(self, step: Json, suffix: str) -> None:
        name = step["taskReferenceName"]
        if step["type"] == "SIMPLE" and name.startswith("fail"):
            self.outputs[name + suffix] = work(name, {})
        else:
            super().one(step, suffix)


class Workers:
    """They do what waits in any order; some of it fails when it is done first."""

    def __init__(self, seed: int, chance: float) -> None:
        self.draw = Random(seed)
        self.chance = chance
        self.seen: set[str] = set()

    def run(self, tree: Tree) -> None:
        for _ in range(5_000):
            tree.go_on()
            if tree.workflow.status.is_terminal or not tree.waiting:
                return
            self.do(tree, self.draw.choice(tree.waiting))
        raise AssertionError("it runs on")

    def do(self, tree: Tree, reference: str) -> None:
        step = tree.execution_now.definition.task(reference)
        row = tree.take(reference).row(reference)
        mark = f"{reference}@{row.iteration}"
        if not step.optional and mark not in self.seen and self.draw.random() < self.chance:
            self.seen.add(mark)
            tree.failed_terminally("as it should", of=row)
        elif step.type == "DO_WHILE":
            tree.completed({"result": row.iteration < int(step.loop_condition or 0)}, of=row)
        else:
            tree.completed(work(step.name, tree.input(reference)), of=row)
        if self.draw.random() < 0.05 and tree.workflow.status == "RUNNING":
            assert tree.restored() == tree.execution, "rebuilt from its rows it is what it was"


def made(seed: int) -> tuple[Tree, dict[str, Any]]:
    """A tree that has begun, and what it has to come to."""
    steps = Maker(seed).steps(MAX_DEPTH)
    expected = Mended({"start": seed})
    expected.run(steps)
    return Tree(*steps).begin(start=seed), expected.outputs


def check(tree: Tree, expected: dict[str, Any]) -> None:
    assert tree.workflow.status == "COMPLETED"
    rows = {task.reference: task for task in present(tree.workflow, tree.stored)}
    assert set(rows) == set(expected)
    for name, output in expected.items():
        found = tree.output(name)
        if rows[name].task_type == "DO_WHILE":
            found = {"iteration": found["iteration"]}
        assert (found, rows[name].left_run) == (output, None), name


@pytest.mark.parametrize("seed", range(SEEDS))
def test_retried_until_nothing_fails_it_comes_to_the_same(seed: int) -> None:
    tree, expected = made(seed)
    workers = Workers(seed + 1, 0.15)
    for _ in range(MAX_RUNS):
        workers.run(tree)
        if tree.workflow.status == "COMPLETED":
            break
        done = {task.task_id for task in tree.rows.values() if task.status == "COMPLETED" and task.lease is not None}
        tree.operate(RetryWorkflow)
        assert tree.answered[0] == 200
        assert tree.restored() == tree.execution
        still = {task.task_id for task in tree.rows.values()}
        assert done <= still or tree.workflow.status == "RUNNING"

    check(tree, expected)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_run_again_from_anywhere_it_comes_to_the_same(seed: int) -> None:
    tree, expected = made(seed)
    workers = Workers(seed + 1, 0.0)
    workers.run(tree)
    for _ in range(3):
        task = workers.draw.choice(present(tree.workflow, tree.stored))
        tree.operate(RerunWorkflow, task_id=task.task_id)
        assert tree.answered[0] == 200
        if tree.workflow.status == "RUNNING":
            assert tree.restored() == tree.execution
        workers.run(tree)

        check(tree, expected)

    tree.operate(RestartWorkflow)
    workers.run(tree)
    check(tree, expected)
