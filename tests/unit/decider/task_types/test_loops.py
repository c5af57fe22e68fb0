"""DO_WHILE: a list again and again."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tests.support.trees import Tree, each, fork, loop, operator, simple, switch, violations


def less_than(limit: int, reference: str = "l") -> Any:
    """What the condition `$.<reference>.iteration < limit` gives."""
    return lambda data: {"result": data[reference]["iteration"] < limit}


def test_the_body_runs_while_the_condition_holds() -> None:
    body = [simple("a"), simple("b", inputParameters={"n": "${a.output.n}"})]
    tree = Tree(loop("l", body), simple("last")).begin()

    tree.run(l=less_than(3), a=lambda _: {"n": 5})

    assert [name for name in tree.statuses if name.startswith(("a", "b"))] == [
        f"{name}__{n}" for n in (1, 2, 3) for name in ("a", "b")
    ]
    assert (tree.input("b__3"), tree.workflow.status) == ({"n": 5}, "COMPLETED")
    assert tree.output("l") == {
        "iteration": 3,
        "1": {"a": {"n": 5}, "b": {}},
        "2": {"a": {"n": 5}, "b": {}},
        "3": {"a": {"n": 5}, "b": {}},
    }


def test_the_condition_is_handed_out_with_what_it_may_look_at() -> None:
    tree = Tree(loop("l", [simple("a")], "$.a.n < $.limit", inputParameters={"limit": 4})).begin()
    assert (tree.statuses["l"], tree.row("l").waiting_for) == ("IN_PROGRESS", "tasks")

    tree.done("a__1", {"n": 3})

    row = tree.row("l")
    assert (row.domain, row.task_type, tree.waiting) == ("system", "DO_WHILE", ["l"])
    assert tree.input("l") == {
        "limit": 4,
        "a": {"n": 3},
        "l": {"iteration": 1},
        "evaluatorType": "javascript",
        "expression": "$.a.n < $.limit",
    }


@pytest.mark.parametrize(
    ("result", "goes_on"),
    [(True, True), (1, True), (False, False), (0, False), (-1, False), (None, False), ("x", False)],
)
def test_a_condition_holds_when_it_is_true_or_a_number_above_zero(result: object, goes_on: bool) -> None:
    tree = Tree(loop("l", [simple("a")])).begin().done("a__1").done("l", {"result": result})

    assert (tree.waiting == ["a__2"]) is goes_on
    assert (tree.workflow.status == "COMPLETED") is not goes_on


def test_a_list_is_gone_through_item_by_item_and_asks_nobody() -> None:
    step = simple("a", inputParameters={"item": "${l.output.loopItem}", "index": "${l.output.loopIndex}"})
    tree = Tree(each("l", "${workflow.input.items}", [step]), simple("last")).begin(items=["x", "y"])

    assert tree.input("a__1") == {"item": "x", "index": 0}
    tree.done("a__1", {"got": "x"})
    assert (tree.input("a__2"), tree.row("l").progress_done, tree.row("l").progress_total) == (
        {"item": "y", "index": 1},
        1,
        2,
    )
    tree.done("a__2")

    assert tree.output("l") == {"iteration": 2, "1": {"a": {"got": "x"}}, "2": {"a": {}}}
    assert tree.waiting == ["last"]


def test_an_empty_list_is_done_at_once() -> None:
    tree = Tree(each("l", [], [simple("a")]), simple("last")).begin()

    assert (tree.output("l"), tree.waiting) == ({"iteration": 0}, ["last"])


def test_what_is_no_list_fails() -> None:
    tree = Tree(each("l", "${workflow.input.items}", [simple("a")])).begin(items=5)

    assert (tree.statuses["l"], tree.workflow.reason) == (
        "FAILED_WITH_TERMINAL_ERROR",
        "items must be a list, not 5",
    )


def test_a_failed_body_task_fails_the_loop_and_cancels_what_else_runs() -> None:
    tree = Tree(loop("l", fork("f", [simple("a")], [simple("b")]))).begin().take("b__1").fails("a__1", "no stock")

    assert tree.statuses == {
        "l": "FAILED",
        "f__1": "COMPLETED",
        "a__1": "FAILED",
        "b__1": "CANCELED",
        "f_join__1": "FAILED",
    }
    assert (tree.workflow.status, tree.workflow.reason) == ("FAILED", "no stock")


def test_a_condition_that_cannot_be_evaluated_is_a_terminal_error() -> None:
    tree = Tree(loop("l", [simple("a")], "x")).begin().done("a__1").fails_for_good("l", "x is not defined")

    assert (tree.statuses["l"], tree.workflow.reason) == ("FAILED_WITH_TERMINAL_ERROR", "x is not defined")


def test_a_lost_evaluation_is_tried_again_in_the_same_round() -> None:
    tree = Tree(loop("l", [simple("a")])).begin().done("a__1").done("l", {"result": True}).done("a__2").take("l")
    tree.next_deadline()
    row = tree.row("l")
    assert (row.attempt, row.iteration, row.phase) == (1, 2, "RETRY_WAIT")

    tree.later(1_000).delay_due(of=row)
    tree.done("l", {"result": False})

    assert tree.output("l") == {"iteration": 2, "1": {"a": {}}, "2": {"a": {}}}
    assert tree.workflow.status == "COMPLETED"


def test_the_task_s_own_response_clock_stands_while_the_body_runs() -> None:
    tree = Tree(loop("l", [simple("a")])).begin().done("a__1").done("l", {"result": True}).take("a__2")

    tree.later(61_000).deadline()

    assert (tree.row("l").attempt, tree.statuses["l"]) == (0, "IN_PROGRESS")


def test_loops_stand_in_loops_and_a_reference_means_the_current_round() -> None:
    """D30."""
    inner = simple("a", inputParameters={"o": "${outer.output.loopItem}", "i": "${inner.output.loopItem}"})
    after = simple("b", inputParameters={"last": "${a.output.v}"})
    tree = Tree(each("outer", ["p", "q"], [each("inner", [1, 2], [inner]), after])).begin()

    tree.run(a=lambda data: {"v": f"{data['o']}{data['i']}"})

    assert tree.workflow.status == "COMPLETED"
    assert [name for name in tree.statuses if name.startswith("a")] == ["a__1__1", "a__1__2", "a__2__1", "a__2__2"]
    assert (tree.input("b__1"), tree.input("b__2")) == ({"last": "p2"}, {"last": "q2"})
    assert tree.output("outer")["2"]["inner"] == {"iteration": 2, "1": {"a": {"v": "q1"}}, "2": {"a": {"v": "q2"}}}


def test_seen_from_outside_a_reference_means_the_latest_round() -> None:
    tree = Tree(each("l", [1, 2], [simple("a")]), simple("last", inputParameters={"n": "${a.output.n}"})).begin()

    tree.done("a__1", {"n": 1}).done("a__2", {"n": 2})

    assert tree.input("last") == {"n": 2}


def test_a_switch_in_the_body_chooses_anew_in_each_round() -> None:
    choose = switch("s", "${l.output.loopItem}", {"x": [simple("a")], "y": [simple("b")]})
    tree = Tree(each("l", ["x", "y", "z"], [choose]), simple("last")).begin()

    assert tree.waiting == ["a__1"]
    assert tree.done("a__1").waiting == ["b__2"]
    assert tree.done("b__2").waiting == ["last"]


def test_only_the_last_outputs_are_kept_where_that_is_asked_for() -> None:
    tree = Tree(each("l", [1, 2, 3, 4], [simple("a")], inputParameters={"keepLastN": 2})).begin().run()

    assert tree.output("l") == {"iteration": 4, "3": {"a": {}}, "4": {"a": {}}}


def test_outputs_that_are_too_large_together_say_what_to_do() -> None:
    tree = Tree(each("l", [1, 2, 3], [simple("a")])).given(max_payload_bytes=100)
    tree.begin().run(a=lambda _: {"text": "x" * 40})  # type: ignore[attr-defined]  # a Tree gives itself

    assert tree.statuses["l"] == "FAILED_WITH_TERMINAL_ERROR"  # type: ignore[attr-defined]
    assert "keep fewer with the input parameter keepLastN" in (tree.workflow.reason or "")


def test_a_pause_holds_the_condition_until_it_is_resumed() -> None:
    tree = Tree(loop("l", [simple("a")])).begin().take("a__1")
    tree.pause_workflow()
    tree.completed({}, of=tree.row("a__1"))
    assert (tree.waiting, tree.row("l").phase) == ([], "PAUSED")

    tree.resume_workflow()
    assert tree.waiting == ["l"]
    assert tree.done("l", {"result": False}).workflow.status == "COMPLETED"


def test_the_end_of_the_workflow_cancels_a_loop() -> None:
    tree = Tree(loop("l", [simple("a")])).begin()
    tree.terminate()

    assert tree.statuses == {"l": "CANCELED", "a__1": "CANCELED"}


def test_an_optional_loop_that_is_canceled_takes_its_body_with_it() -> None:
    tree = Tree(loop("l", fork("f", [simple("a")], [simple("b")]), optional=True), simple("last")).begin().take("a__1")
    tree.cancel("l")

    assert (tree.statuses["l"], tree.waiting) == ("COMPLETED_WITH_ERRORS", ["last"])
    assert [tree.statuses[name] for name in ("a__1", "b__1", "f_join__1")] == ["CANCELED"] * 3
    assert tree.done("last").workflow.status == "COMPLETED"


def test_rounds_are_stored_as_rows_of_their_own() -> None:
    tree = Tree(each("l", [1, 2], [simple("a")])).begin().done("a__1")

    assert (tree.row("a__1").iteration, tree.row("a__2").iteration) == (1, 2)
    assert tree.row("a__1").task_id != tree.row("a__2").task_id
    assert orjson.loads(tree.row("l").output or b"") == {"iteration": 2, "loopItem": 2, "loopIndex": 1}


def test_what_it_needs_is_asked_for_by_path() -> None:
    assert violations(operator("DO_WHILE", "l")) == {
        "tasks[0].loopOver": "is required by DO_WHILE",
        "tasks[0].loopCondition": "is required by DO_WHILE",
    }
    assert (
        "could be taken for an iteration of a"
        in violations(each("l", [1], [simple("a")]), simple("a__1"))["tasks[1].taskReferenceName"]
    )
