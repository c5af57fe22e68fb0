"""Random workflow trees, beside an interpreter that knows nothing of rows, records or time.

The interpreter runs a tree as a program would be run: recursively, one branch after the other. The decider must come to
the same end (status, what ran, every output), in whichever order its workers are.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from broker_engine.decider import rounds
from tests.support.trees import Tree, each, loop, operator, simple, switch

Json = dict[str, Any]
SEEDS = 300
MAX_DEPTH = 4


class Failure(Exception):
    """A task failed for good: the workflow ends."""


class Maker:
    """Makes trees. What a task does is told by its name: it fails, or gives its own reference."""

    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)
        self.number = 0
        self.items: list[str] = []

    def name(self, kind: str) -> str:
        self.number += 1
        return f"{kind}{self.number}"

    def steps(self, depth: int) -> list[Json]:
        return [step for _ in range(self.draw.choice([1, 1, 2, 3])) for step in self.step(depth)]

    def step(self, depth: int) -> list[Json]:
        draw = self.draw
        kind = draw.choice(
            ["task", "task", "set", "noop", "fail"] + ["switch", "fork", "loop", "each", "dag", "dynamic"] * (depth > 0)
        )
        match kind:
            case "task":
                return [simple(self.name("task"), inputParameters={"seen": self.seen()})]
            case "fail":
                return [simple(self.name("fail"), optional=draw.random() < 0.9)]
            case "set":
                name = self.name("set")
                return [operator("SET_VARIABLE", name, inputParameters={name: self.seen()})]
            case "noop":
                return [operator("NOOP", self.name("noop"))]
            case "switch":
                cases = {case: self.steps(depth - 1) if draw.random() < 0.8 else [] for case in "ab"}
                default = self.steps(depth - 1) if draw.random() < 0.5 else []
                return [switch(self.name("switch"), draw.choice(["a", "b", "c"]), cases, default)]
            case "fork":
                name = self.name("fork")
                branches = [self.steps(depth - 1) for _ in range(draw.choice([1, 2, 3]))]
                for branch in branches:  # so that the JOIN has one last task to wait for
                    is_quick = draw.random() < 0.3
                    branch.append(operator("NOOP", self.name("quick")) if is_quick else simple(self.name("end")))
                ends = [branch[-1]["taskReferenceName"] for branch in branches]
                return [
                    operator("FORK_JOIN", name, forkTasks=branches),
                    operator("JOIN", self.name("join"), joinOn=ends),
                ]
            case "dag":  # a list of one case, whose steps are told in any order
                name = self.name("choice")
                listed = [simple(self.name("task"), inputParameters={"seen": self.seen()}) for _ in range(3)]
                listed.append(switch(self.name("switch"), "a", {"a": self.steps(depth - 1)}))
                for place, step in enumerate(listed):
                    before = [each["taskReferenceName"] for each in listed[:place]]
                    step["dependsOn"] = draw.sample(before, draw.randint(0, len(before)))
                listed[-1]["dependsOn"] = listed[-1]["dependsOn"] or [listed[0]["taskReferenceName"]]
                draw.shuffle(listed)
                return [switch(name, "a", {"a": listed})]
            case "dynamic":
                name, join = self.name("dynamic"), self.name("join")
                inputs = [{"n": n} for n in range(draw.choice([0, 1, 3]))]
                fork = {"forkTaskName": f"task{name}", "forkTaskInputs": inputs}
                return [operator("FORK_JOIN_DYNAMIC", name, inputParameters=fork), operator("JOIN", join)]
            case "loop":
                name = self.name("loop")
                return [loop(name, self.steps(depth - 1), str(draw.choice([1, 2, 3])))]
            case _:
                name = self.name("each")
                self.items.append(name)
                body = self.steps(depth - 1)
                self.items.pop()
                return [each(name, [f"{name}-{n}" for n in range(draw.choice([0, 1, 3]))], body)]

    def seen(self) -> str:
        """An expression that every interpreter agrees on, whatever else runs at the time."""
        return f"${{{self.draw.choice(self.items)}.output.loopItem}}" if self.items else "${workflow.input.start}"


class Interpreter:
    """What a tree comes to."""

    def __init__(self, data: Json) -> None:
        self.data = data
        self.outputs: dict[str, Any] = {}
        self.items: dict[str, Any] = {}
        self.forked: list[str] = []

    def run(self, steps: list[Json], suffix: str = "") -> None:
        for step in steps:
            self.one(step, suffix)

    def value(self, template: Any) -> Any:
        if template == "${workflow.input.start}":
            return self.data["start"]
        is_item = isinstance(template, str) and template.startswith("${")
        return self.items[template.removeprefix("${").partition(".")[0]] if is_item else template

    def one(self, step: Json, suffix: str) -> None:
        name = step["taskReferenceName"]
        inputs = {key: self.value(value) for key, value in step.get("inputParameters", {}).items() if key != "value"}
        match step["type"]:
            case "SIMPLE" if name.startswith("fail"):
                self.outputs[name + suffix] = None
                if not step["optional"]:
                    raise Failure(name)
            case "SIMPLE":
                self.outputs[name + suffix] = work(name, inputs)
            case "SWITCH":
                case = step["inputParameters"]["value"]
                self.outputs[name + suffix] = {"evaluationResult": [case], "selectedCase": case}
                self.run(step["decisionCases"].get(case, step["defaultCase"]), suffix)
            case "FORK_JOIN":
                self.outputs[name + suffix] = {}
                for branch in step["forkTasks"]:
                    self.run(branch, suffix)
            case "FORK_JOIN_DYNAMIC":
                given, kind = step["inputParameters"]["forkTaskInputs"], step["inputParameters"]["forkTaskName"]
                self.forked = [f"_{kind}_{number}" for number in range(len(given))]
                for number, reference in enumerate(self.forked):
                    self.outputs[reference + suffix] = work(kind, {**given[number], "__index": number})
                self.outputs[name + suffix] = {"forkedTasks": self.forked}
            case "JOIN" if "joinOn" not in step:
                self.outputs[name + suffix] = {ref: self.outputs[ref + suffix] for ref in self.forked}
            case "JOIN":
                self.outputs[name + suffix] = {ref: self.outputs[ref + suffix] for ref in step["joinOn"]}
            case "DO_WHILE":
                self.loop(step, name, suffix)
            case _:
                self.outputs[name + suffix] = {}

    def loop(self, step: Json, name: str, suffix: str) -> None:
        items = step.get("items")
        rounds = len(items) if items is not None else int(step["loopCondition"])
        for number in range(1, rounds + 1):
            if items is not None:
                self.items[name] = items[number - 1]
            self.run(step["loopOver"], f"{suffix}__{number}")
        self.outputs[name + suffix] = {"iteration": rounds}


def work(name: str, inputs: Json) -> Json:
    return {"by": name, **inputs}


def references(steps: list[Json]) -> Iterator[str]:
    for step in steps:
        yield step["taskReferenceName"]
        lists = [*step.get("decisionCases", {}).values(), step.get("defaultCase", [])]
        for inner in [*lists, *step.get("forkTasks", []), step.get("loopOver", [])]:
            yield from references(inner)


def told(tree: Tree, draw: Random) -> None:
    """Workers take what waits in any order; now and then the whole is paused, or a worker reports twice."""
    for _ in range(5_000):
        tree.go_on()
        if not tree.waiting:
            return
        reference = draw.choice(tree.waiting)
        step = tree.execution_now.definition.task(reference)
        row = tree.take(reference).row(reference)
        if draw.random() < 0.05:
            tree.pause_workflow()
        if step.type == "DO_WHILE":
            goes_on = row.iteration < int(step.loop_condition or 0)
            tree.completed({"result": goes_on}, of=row)
        elif step.name.startswith("fail"):
            tree.failed("as it should", of=row)
        else:
            tree.completed(work(step.name, tree.input(reference)), of=row)
        if draw.random() < 0.1:
            before = tree.execution
            tree.completed({"late": True}, of=row)
            assert tree.execution == before, "a report that comes twice changes nothing"
        if tree.workflow.status == "PAUSED":
            tree.resume_workflow()
        if draw.random() < 0.05 and tree.workflow.status == "RUNNING":
            assert tree.restored() == tree.execution, "rebuilt from its rows it is what it was"
    raise AssertionError("it runs on")


@pytest.mark.parametrize("seed", [*range(100), *(pytest.param(n, marks=pytest.mark.slow) for n in range(100, SEEDS))])
def test_a_random_tree_comes_to_what_an_interpreter_makes_of_it(seed: int) -> None:
    steps = Maker(seed).steps(MAX_DEPTH)
    expected = Interpreter({"start": seed})
    try:
        expected.run(steps)
        status = "COMPLETED"
    except Failure:
        status = "FAILED"
    tree = Tree(*steps).begin(start=seed)

    told(tree, Random(seed + 1))

    assert tree.workflow.status == status
    if status == "FAILED":
        return  # which of the other branches had begun is a matter of order
    assert set(tree.statuses) == set(expected.outputs)
    for name, output in expected.outputs.items():
        found = tree.output(name)
        if tree.row(name).task_type == "DO_WHILE":
            found = {"iteration": found["iteration"]}
        assert found == output, name


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(0, SEEDS, 3))
def test_it_does_so_when_every_round_waits_for_its_turn(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "MAX_ROWS", 1)
    test_a_random_tree_comes_to_what_an_interpreter_makes_of_it(seed)


def test_the_trees_hold_every_kind_of_operator() -> None:
    kinds: set[str] = set()
    for seed in range(SEEDS):
        kinds |= {name.rstrip("0123456789") for name in references(Maker(seed).steps(MAX_DEPTH))}

    assert kinds >= {"task", "fail", "set", "noop", "switch", "fork", "join", "loop", "each", "choice", "dynamic"}
