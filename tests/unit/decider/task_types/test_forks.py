"""FORK_JOIN and JOIN: lists side by side."""

from __future__ import annotations

from typing import Any

import pytest

from broker_engine.model.decision import Schedule
from tests.support.trees import Tree, each, fork, operator, simple, switch, violations


def test_the_branches_begin_together_and_the_join_waits_for_all() -> None:
    tree = Tree(*fork("f", [simple("a1"), simple("a2")], [simple("b1")]), simple("last")).begin()

    assert tree.waiting == ["a1", "b1"]
    assert (tree.statuses["f"], tree.statuses["f_join"]) == ("COMPLETED", "IN_PROGRESS")
    join = tree.row("f_join")
    assert (join.waiting_for, join.progress_done, join.progress_total) == ("tasks", 0, 2)

    tree.done("b1", {"n": 2})
    assert tree.row("f_join").progress_done == 1
    tree.done("a1")
    assert tree.waiting == ["a2"]
    tree.done("a2", {"n": 1})

    assert tree.statuses["f_join"] == "COMPLETED"
    assert tree.output("f_join") == {"a2": {"n": 1}, "b1": {"n": 2}}
    assert tree.waiting == ["last"]


def test_one_decision_hands_out_every_branch() -> None:
    tree = Tree(*fork("f", *([simple(f"t{number}")] for number in range(5)))).begin()

    assert sum(isinstance(output, Schedule) for output in tree.decision.outputs) == 5


def test_an_optional_branch_that_fails_leaves_the_join_with_errors() -> None:
    tree = Tree(*fork("f", [simple("a", optional=True)], [simple("b")]), simple("last")).begin()

    tree.fails("a").done("b")

    assert (tree.statuses["a"], tree.statuses["f_join"]) == ("COMPLETED_WITH_ERRORS", "COMPLETED_WITH_ERRORS")
    assert tree.waiting == ["last"]


def test_a_join_counts_what_was_done_before_it_appeared() -> None:
    tree = Tree(*fork("f", [operator("NOOP", "n")], [operator("NOOP", "m")]), simple("last")).begin()

    assert (tree.statuses["f_join"], tree.waiting) == ("COMPLETED", ["last"])


def test_a_join_counts_what_was_done_at_once_no_more_than_once() -> None:
    tree = Tree(*fork("f", [operator("NOOP", "n")], [simple("a")], [simple("b")])).begin().done("a")

    assert tree.statuses["f_join"] == "IN_PROGRESS"
    assert tree.done("b").workflow.status == "COMPLETED"


def test_a_branch_that_nobody_joins_is_waited_for_at_the_end() -> None:
    tree = Tree(*fork("f", [simple("a")], [simple("b")], join_on=["a"])).begin().done("a")

    assert (tree.statuses["f_join"], tree.workflow.status) == ("COMPLETED", "RUNNING")
    tree.done("b")
    assert tree.workflow.status == "COMPLETED"


def test_forks_stand_in_branches_of_forks() -> None:
    inner = fork("g", [simple("x")], [simple("y")])
    tree = Tree(*fork("f", [*inner, simple("after")], [simple("b")]), simple("last")).begin()

    assert tree.waiting == ["b", "x", "y"]
    tree.done("x").done("y").done("b")
    assert (tree.waiting, tree.statuses["f_join"]) == (["after"], "IN_PROGRESS")
    assert tree.done("after").waiting == ["last"]


def test_in_a_loop_each_round_has_a_join_of_its_own() -> None:
    body = fork("f", [simple("a", inputParameters={"n": "${l.output.loopItem}"})], [simple("b")])
    tree = Tree(each("l", [7, 8], body), simple("last")).begin()

    tree.done("a__1").done("b__1", {"k": 1})
    assert tree.output("f_join__1") == {"a": {}, "b": {"k": 1}}
    assert tree.waiting == ["a__2", "b__2"]
    assert tree.input("a__2") == {"n": 8}
    assert tree.done("a__2").done("b__2").waiting == ["last"]


def test_a_switch_in_a_branch_may_be_joined() -> None:
    choose = switch("s", "a", {"a": [simple("x")]})
    tree = Tree(*fork("f", [choose], [simple("b")], join_on=["s", "b"])).begin().done("b")

    assert (tree.statuses["f_join"], tree.workflow.status) == ("COMPLETED", "RUNNING"), "x is not joined"
    assert tree.done("x").workflow.status == "COMPLETED"


def test_a_time_out_of_a_branch_ends_the_workflow_in_its_way() -> None:
    late = simple("a", taskDefinition={"name": "a", "timeoutSeconds": 5, "responseTimeoutSeconds": 5})
    tree = Tree(*fork("f", [late], [simple("b")])).begin().take("a")
    tree.next_deadline()

    assert (tree.statuses["a"], tree.statuses["f_join"], tree.statuses["b"]) == ("TIMED_OUT", "FAILED", "CANCELED")
    assert tree.workflow.status == "TIMED_OUT"


def test_a_retry_in_a_branch_leaves_the_others_alone() -> None:
    again = simple("a", taskDefinition={"name": "a", "retryCount": 1, "retryDelaySeconds": 0})
    tree = Tree(*fork("f", [again], [simple("b")])).begin().fails("a")

    assert (tree.row("a").attempt, tree.waiting) == (1, ["b", "a"])
    tree.done("b").done("a")
    assert tree.workflow.status == "COMPLETED"


def test_a_canceled_branch_cancels_the_join() -> None:
    tree = Tree(*fork("f", [simple("a")], [simple("b")])).begin()
    tree.cancel("a")

    assert tree.statuses == {"f": "COMPLETED", "a": "CANCELED", "b": "CANCELED", "f_join": "CANCELED"}
    assert tree.workflow.status == "TERMINATED"


def test_the_engine_s_own_tasks_are_not_paused_one_by_one() -> None:
    tree = Tree(*fork("f", [simple("a")], [simple("b")])).begin()
    tree.pause("f_join", command_id="c", expires_at_ms=tree.now_ms + 1_000, reply_to="me")

    assert tree.answer.status == 409
    assert "JOIN that the engine runs: pause the workflow" in tree.answer.message


def test_a_join_can_be_canceled() -> None:
    tree = Tree(*fork("f", [simple("a")], [simple("b")])).begin()
    tree.cancel("f_join")

    assert (tree.statuses["f_join"], tree.workflow.status) == ("CANCELED", "TERMINATED")


def test_a_fork_of_many_branches_costs_the_same_for_each() -> None:
    """Each end looks at the JOIN's counter, not at all of its tasks."""
    tree = Tree(*fork("f", *([simple(f"t{number}")] for number in range(400)))).begin()

    for number in range(399):
        tree.done(f"t{number}")
        assert len(tree.decision.changed_tasks) == 2
    assert tree.row("f_join").progress_done == 399
    assert tree.done("t399").workflow.status == "COMPLETED"


@pytest.mark.parametrize(
    ("tasks", "path", "message"),
    [
        ([operator("FORK_JOIN", "f", forkTasks=[[simple("a")]])], "tasks[0]", "a FORK_JOIN must be followed by a JOIN"),
        ([operator("FORK_JOIN", "f")], "tasks[0].forkTasks", "is required by FORK_JOIN"),
        (
            fork("f", [simple("a")], join_on=["nobody"]),
            "tasks[1].joinOn[0]",
            "names a task that this workflow does not have",
        ),
        (fork("f", [simple("a")], join_on=["a", "a"]), "tasks[1].joinOn[1]", "is named twice"),
        (
            fork("f", [each("l", [1], [simple("a")])], join_on=["a"]),
            "tasks[1].joinOn[0]",
            "names a task of another loop: a JOIN waits for tasks of its own",
        ),
    ],
)
def test_what_does_not_fit_together_is_found_by_path(tasks: list[dict[str, object]], path: str, message: str) -> None:
    assert violations(*tasks)[path] == message


def test_a_fork_of_a_thousand_branches_runs() -> None:
    branches = [[simple(f"a{n}", inputParameters={"n": "${workflow.input.n}"})] for n in range(1_000)]
    tree = Tree(*fork("f", *branches), simple("last")).begin(n=1)
    assert len(tree.waiting) == 1_000

    for n in range(1_000):
        tree.done(f"a{n}", {"n": n})

    assert (tree.waiting, tree.output("f_join")["a999"]) == (["last"], {"n": 999})


# --- EXCLUSIVE_JOIN


def exclusive(*join_on: str, default: list[str] | None = None) -> dict[str, Any]:
    return operator("EXCLUSIVE_JOIN", "x", joinOn=list(join_on), defaultExclusiveJoinTask=default or [])


@pytest.mark.parametrize(("case", "taken"), [("a", "one"), ("b", "two")])
def test_an_exclusive_join_takes_the_output_of_the_case_that_ran(case: str, taken: str) -> None:
    choose = switch("s", "${workflow.input.case}", {"a": [simple("one")], "b": [simple("two")]})
    tree = Tree(choose, exclusive("one", "two"), simple("last", inputParameters={"n": "${x.output.n}"}))
    tree.begin(case=case).done(taken, {"n": taken})

    assert (tree.output("x"), tree.input("last")) == ({"n": taken}, {"n": taken})


def test_it_takes_its_default_when_none_of_them_has_run() -> None:
    choose = switch("s", "c", {"a": [simple("one")]})
    tree = Tree(simple("first"), choose, exclusive("one", default=["first"])).begin().done("first", {"n": 1})

    assert tree.result == ("COMPLETED", {"n": 1})


def test_it_waits_for_a_task_that_still_runs() -> None:
    tree = Tree(*fork("f", [simple("one")], [simple("two")], join_on=["two"]), exclusive("one", "two")).begin()
    tree.done("two")
    assert (tree.statuses["x"], tree.row("x").waiting_for) == ("IN_PROGRESS", "tasks")

    tree.done("one", {"n": 1})

    assert tree.result == ("COMPLETED", {"n": 1})


def test_it_fails_with_a_permissive_task_that_has_failed() -> None:
    tree = Tree(simple("one", permissive=True), exclusive("one")).begin().fails("one", "no stock")

    assert (tree.statuses["x"], tree.workflow.reason) == ("FAILED_WITH_TERMINAL_ERROR", "one FAILED: no stock")


def test_without_any_it_says_what_to_do() -> None:
    tree = Tree(switch("s", "c", {"a": [simple("one")]}), exclusive("one")).begin()

    assert tree.workflow.reason == ("none of one has begun: name a task that always runs in defaultExclusiveJoinTask")


def test_its_references_are_checked() -> None:
    assert violations(operator("EXCLUSIVE_JOIN", "x"))["tasks[0].joinOn"] == "is required by EXCLUSIVE_JOIN"
    found = violations(exclusive("nobody", default=["none"]))
    assert "names a task that this workflow does not have" in found["tasks[0].joinOn[0]"]
    assert "names a task that this workflow does not have" in found["tasks[0].defaultExclusiveJoinTask[0]"]
