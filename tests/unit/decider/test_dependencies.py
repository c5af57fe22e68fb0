"""Lists in the order of dependencies (B7)."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from broker_engine.model.commands import SkipTask
from broker_engine.model.decision import Answer
from broker_engine.worker.diagnosis import explain
from tests.builders import asked
from tests.support.trees import Tree, each, fork, operator, simple, switch, violations

Json = dict[str, Any]


def after(step: Json, *names: str) -> Json:
    return {**step, "dependsOn": list(names)}


def diamond() -> Tree:
    """a, then b and c side by side, then d."""
    last = after(simple("d", inputParameters={"b": "${b.output.n}", "c": "${c.output.n}"}), "b", "c")
    return Tree(last, after(simple("c"), "a"), after(simple("b"), "a"), simple("a"))


def test_what_depends_on_nothing_begins_at_once_wherever_it_stands() -> None:
    tree = diamond().begin()

    assert tree.waiting == ["a"]


def test_a_step_begins_when_all_that_it_depends_on_has_ended() -> None:
    tree = diamond().begin().done("a")
    assert sorted(tree.waiting) == ["b", "c"]

    tree.done("c", {"n": 3})
    assert tree.waiting == ["b"]
    tree.done("b", {"n": 2})

    assert (tree.waiting, tree.input("d")) == (["d"], {"b": 2, "c": 3})
    assert tree.done("d", {"n": 4}).result == ("COMPLETED", {"n": 4})


def test_a_step_that_waits_is_there_and_counts_what_is_left() -> None:
    tree = diamond().begin()
    row = tree.row("d")
    assert (row.phase, row.status, row.waiting_for) == ("CREATED", "SCHEDULED", "dependencies")
    assert (row.progress_done, row.progress_total, row.reason) == (0, 2, "waits for b, c")

    tree.done("a").done("b")

    row = tree.row("d")
    assert (row.progress_done, row.progress_total, row.reason) == (1, 2, "waits for c")
    assert explain(row, None, tree.now_ms) == "waits for c; 1 of the 2 tasks that it depends on have ended"
    ready = tree.done("c").row("d")
    assert (ready.task_id, ready.reason, ready.progress_total) == (row.task_id, None, None)


def test_a_list_without_dependencies_keeps_its_order() -> None:
    assert Tree(simple("a"), simple("b")).begin().waiting == ["a"]
    assert Tree(after(simple("a")), simple("b")).begin().waiting == ["a"], "an empty list says nothing"


def test_operators_begin_when_their_turn_has_come() -> None:
    steps = [
        after(operator("NOOP", "n"), "a"),
        after(operator("SET_VARIABLE", "v", inputParameters={"x": "${a.output.x}"}), "n"),
        after(operator("HUMAN", "h"), "v"),
        simple("a"),
    ]
    tree = Tree(*steps).begin().done("a", {"x": 5})

    assert tree.statuses == {"a": "COMPLETED", "n": "COMPLETED", "v": "COMPLETED", "h": "IN_PROGRESS"}
    assert orjson.loads(tree.workflow.variables) == {"x": 5}


def test_a_fork_and_its_join_may_stand_in_such_a_list() -> None:
    begins, join = fork("f", [simple("x")], [simple("y")])
    tree = Tree(simple("a"), after(begins, "a"), join, after(simple("last"), "f_join")).begin()
    assert tree.waiting == ["a"]

    tree.done("a").done("y").done("x")

    assert tree.waiting == ["last"]


def test_a_join_does_not_begin_before_its_fork() -> None:
    begins = operator("FORK_JOIN_DYNAMIC", "f", inputParameters={"forkTaskName": "x", "forkTaskInputs": [{}, {}]})
    tree = Tree(simple("a"), after(begins, "a"), operator("JOIN", "j"), after(simple("last"), "j")).begin()
    assert (tree.row("j").waiting_for, tree.row("j").reason) == ("dependencies", "waits for f")

    tree.done("a").done("_x_0")
    assert tree.waiting == ["_x_1"]

    assert tree.done("_x_1").waiting == ["last"]


def test_a_list_in_a_case_is_over_when_all_of_it_is() -> None:
    case = [after(simple("c"), "a", "b"), simple("a"), simple("b")]
    tree = Tree(switch("s", "x", {"x": case}), simple("last")).begin().done("a").done("b")
    assert tree.waiting == ["c"]

    assert tree.done("c").waiting == ["last"]


def test_what_a_switch_in_such_a_list_chose_counts_for_the_end_of_the_list() -> None:
    choose = after(switch("s", "x", {"x": [simple("in")]}), "a")
    tree = Tree(each("l", [1, 2], [choose, simple("a"), after(simple("b"), "a")]), simple("last")).begin()
    tree.done("a__1").done("b__1")
    assert tree.waiting == ["in__1"]

    tree.done("in__1")
    assert tree.waiting == ["a__2"]
    tree.done("a__2").done("in__2").done("b__2")
    assert tree.waiting == ["last"]


def test_an_optional_failure_counts_as_an_end_and_a_failure_ends_the_workflow() -> None:
    tree = Tree(simple("a", optional=True), after(simple("b"), "a")).begin().fails("a")
    assert tree.waiting == ["b"]

    tree = Tree(simple("a"), after(simple("b"), "a")).begin().fails("a", "no stock")
    assert (tree.statuses, tree.workflow.reason) == ({"b": "CANCELED", "a": "FAILED"}, "no stock")


def test_a_pause_lets_it_wait_and_holds_what_is_ready() -> None:
    tree = Tree(simple("a"), after(simple("b"), "a")).begin().take("a")
    tree.pause_workflow()
    assert tree.row("b").phase == "CREATED"
    tree.completed({}, of=tree.row("a"))
    assert tree.row("b").phase == "PAUSED"

    tree.resume_workflow()

    assert tree.waiting == ["b"]


def test_what_has_not_begun_can_be_canceled_but_neither_paused_nor_moved() -> None:
    tree = Tree(simple("a"), after(simple("b", optional=True), "a"), after(simple("c"), "b")).begin()
    tree.pause("b", **asked("1"))
    (answer,) = tree.now(Answer)
    assert answer.status == 409
    assert answer.message == "task b has not begun, it waits for a: pause those, or the workflow"
    tree.moved("eu", of=tree.row("b"))
    assert "only a task on its way to a queue can be moved" in (tree.ignored or "")

    tree.cancel("b")

    assert (tree.statuses["b"], tree.waiting) == ("COMPLETED_WITH_ERRORS", ["a", "c"])
    assert tree.done("c").done("a").workflow.status == "COMPLETED"


def test_what_has_not_begun_can_be_skipped() -> None:
    tree = Tree(simple("a"), after(simple("b"), "a"), after(simple("c"), "b")).begin()
    tree.send(SkipTask(key="w", reference="b"))

    tree.done("a")

    assert (tree.statuses["b"], tree.waiting) == ("SKIPPED", ["c"])


def test_the_clock_over_all_attempts_begins_when_the_task_does() -> None:
    limit = {"name": "b", "totalTimeoutSeconds": 10, "retryCount": 0}
    tree = Tree(simple("a"), after(simple("b", taskDefinition=limit), "a")).begin()
    assert tree.row("b").next_deadline is None

    tree.later(60_000)
    tree.done("a")

    assert tree.row("b").next_deadline_at_ms == tree.now_ms + 10_000


def test_it_is_rebuilt_as_it_was() -> None:
    tree = diamond().begin().done("a").done("b")

    assert tree.restored() == tree.execution


@pytest.mark.parametrize("reverse", [False, True])
def test_a_hundred_layers_begin_one_after_the_other(reverse: bool) -> None:
    steps = [after(operator("NOOP", f"n{k}"), *([f"n{k - 1}"] if k else [])) for k in range(100)]
    tree = Tree(*(reversed(steps) if reverse else steps)).begin()

    assert tree.workflow.status == "COMPLETED"
    assert max(tree.rows.values(), key=lambda row: row.seq).reference == "n99"


def test_names_and_circles_are_violations_with_their_path() -> None:
    found = violations(after(simple("a"), "nobody", "b"), after(simple("b"), "c"), after(simple("c"), "b", "b"))

    assert found["tasks[0].dependsOn[0]"] == "names no task of its list; there are a, b, c"
    assert found["tasks[1].dependsOn"] == "closes a circle: b -> c -> b"
    assert found["tasks[2].dependsOn[1]"] == "is named twice"
    assert "closes a circle: a -> a" in violations(after(simple("a"), "a"))["tasks[0].dependsOn"]


def test_an_exclusive_join_says_what_it_comes_after() -> None:
    join = operator("EXCLUSIVE_JOIN", "x", joinOn=["a"])

    found = violations(simple("a"), after(simple("b"), "a"), join)
    assert found["tasks[2].dependsOn"].startswith("is required by an EXCLUSIVE_JOIN")
    tree = Tree(simple("a"), after(simple("b"), "a"), after(join, "a")).begin().done("a", {"n": 1})
    assert tree.output("x") == {"n": 1}


def test_dependencies_are_among_the_steps_of_one_list() -> None:
    inner = switch("s", "x", {"x": [after(simple("b"), "a")]})

    assert "tasks[1].decisionCases.x[0].dependsOn[0]" in violations(simple("a"), inner)
