"""Rerun and restart: an ended workflow runs again from a task on, or from the beginning."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from broker_engine.model.commands import RerunWorkflow, RestartWorkflow
from broker_engine.model.definitions import TaskDef
from tests.builders import Definitions
from tests.support.trees import Tree, each, fork, operator, simple, switch


def rerun(tree: Tree, reference: str, **fields: Any) -> Tree:
    return tree.operate(RerunWorkflow, task_id=tree.row(reference).task_id, **fields)


def live(tree: Tree) -> list[str]:
    return [task.reference for task in tree.execution_now.live_tasks()]


def test_a_fork_runs_again_with_all_its_branches() -> None:
    tree = Tree(simple("a"), *fork("f", [simple("b")], [simple("c")])).begin()
    tree.done("a").done("b").done("c")

    rerun(tree, "f")

    assert live(tree) == ["b", "c", "f_join"]
    assert tree.done("b").done("c").workflow.status == "COMPLETED"


def test_a_task_in_a_round_leads_to_later_rounds_but_not_back() -> None:
    tree = Tree(each("l", [1, 2, 3], [simple("a")]), simple("last")).begin()
    tree.done("a__1", {"n": 1}).done("a__2", {"n": 2}).done("a__3", {"n": 3}).done("last")

    rerun(tree, "a__2")

    assert live(tree) == ["l", "a__2"]
    tree.done("a__2", {"n": 20}).done("a__3", {"n": 30})
    assert [tree.output("l")[number]["a"]["n"] for number in "123"] == [1, 20, 30]
    assert tree.done("last").workflow.status == "COMPLETED"


def test_a_loop_runs_again_from_its_first_round() -> None:
    tree = Tree(each("l", [1, 2], [simple("a")])).begin().done("a__1").fails("a__2")
    first = tree.row("a__1").task_id

    tree.operate(RerunWorkflow, task_id=tree.row("l").task_id)

    assert tree.waiting == ["a__1"], "the failed task inside it goes with the loop"
    assert tree.row("a__1").task_id != first
    assert tree.done("a__1").done("a__2").workflow.status == "COMPLETED"


def dynamic(name: str) -> dict[str, Any]:
    given = {"type": "${workflow.input.type}"}
    return operator("DYNAMIC", name, dynamicTaskNameParam="type", inputParameters=given)


def test_a_dynamic_task_turns_out_anew() -> None:
    tree = Tree(dynamic("d"), simple("last"))
    kinds = [TaskDef(name=kind, document={"name": kind}) for kind in ("encode", "decode")]
    tree.definitions = Definitions.of(tree.definition, *kinds)
    tree.begin(type="encode").done("d").done("last")

    rerun(tree, "d", workflow_input=b'{"type":"decode"}')

    assert tree.row("d").task_type == "decode"
    assert tree.restored() == tree.execution
    assert tree.done("d").done("last").workflow.status == "COMPLETED"


def test_a_dynamic_fork_forks_anew() -> None:
    inputs = "${workflow.input.inputs}"
    fork_dynamic = operator(
        "FORK_JOIN_DYNAMIC", "f", inputParameters={"forkTaskName": "work", "forkTaskInputs": inputs}
    )
    tree = Tree(fork_dynamic, operator("JOIN", "j"), simple("last")).begin(inputs=[{}, {}, {}])
    while tree.workflow.status == "RUNNING":
        tree.done(tree.waiting[0])

    rerun(tree, "f", workflow_input=b'{"inputs":[{}]}')

    assert len(tree.waiting) == 1
    assert tree.restored() == tree.execution
    assert tree.done(tree.waiting[0]).done("last").workflow.status == "COMPLETED"


def test_a_switch_chooses_again() -> None:
    tree = Tree(switch("s", "${workflow.input.x}", {"p": [simple("a")], "q": [simple("b")]}), simple("last"))
    tree.begin(x="p").done("a").done("last")

    rerun(tree, "s", workflow_input=b'{"x":"q"}')

    assert live(tree) == ["b"]
    assert "a" not in tree.execution_now.tasks


def test_in_a_list_with_dependencies_only_what_depends_on_it_runs_again() -> None:
    tree = Tree(simple("a"), simple("b"), simple("c", dependsOn=["a"]), simple("d", dependsOn=["b", "c"])).begin()
    tree.done("a").done("b").done("c").done("d")

    rerun(tree, "a")

    assert sorted(live(tree)) == ["a", "c", "d"]
    assert tree.waiting == ["a"]
    tree.done("a").done("c")
    assert tree.waiting == ["d"]
    assert tree.done("d").workflow.status == "COMPLETED"


def test_what_failed_elsewhere_runs_again_too() -> None:
    tree = Tree(*fork("f", [simple("a")], [simple("b")])).begin().done("a").fails("b")

    rerun(tree, "a")

    assert sorted(live(tree)) == ["a", "b", "f_join"]
    assert tree.done("a").done("b").workflow.status == "COMPLETED"


def test_without_a_task_it_starts_over_with_the_new_input() -> None:
    tree = Tree(simple("a"), simple("b"), variables={"v": 1}).begin(n=1).done("a").fails("b")

    tree.operate(RerunWorkflow, workflow_input=b'{"n":2}', correlation_id="again")

    assert (live(tree), tree.workflow.input, tree.workflow.correlation_id) == (["a"], b'{"n":2}', "again")
    assert tree.done("a").done("b").workflow.status == "COMPLETED"


@pytest.mark.parametrize("field", ["task_input", "workflow_input"])
def test_an_input_that_is_no_object_is_refused_before_anything_changes(field: str) -> None:
    tree = Tree(simple("a")).begin().fails("a")

    status, message = rerun(tree, "a", **{field: b"[1]"}).answered

    assert (status, "must be a JSON object" in message, tree.workflow.run) == (400, True, 0)


# --- restart


def restart(tree: Tree, **fields: Any) -> Tree:
    return tree.operate(RestartWorkflow, **fields)


def test_a_restart_begins_anew_with_the_same_input_and_fresh_variables() -> None:
    tree = Tree(operator("SET_VARIABLE", "set", inputParameters={"v": 2}), simple("a"), variables={"v": 1})
    tree.begin(n=7).done("a")
    old = tree.row("a").task_id

    restart(tree)

    assert (tree.workflow.status, tree.workflow.run, tree.workflow.input) == ("RUNNING", 1, b'{"n":7}')
    assert tree.row("a").task_id != old
    assert tree.done("a").workflow.status == "COMPLETED"


def test_a_restart_after_a_rerun_forgets_both_runs() -> None:
    tree = Tree(simple("a"), simple("b")).begin().done("a").fails("b")
    rerun(tree, "b").fails("b")

    restart(tree)

    assert live(tree) == ["a"]
    assert tree.workflow.from_run == tree.workflow.run == 2
    assert orjson.loads(tree.row("a").input) == {}
