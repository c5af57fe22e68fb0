"""SWITCH and DECISION: one of several lists."""

from __future__ import annotations

import pytest

from tests.support.trees import Tree, operator, simple, switch, violations

CASES = {"a": [simple("a1"), simple("a2")], "b": [simple("b1")]}


@pytest.mark.parametrize(("value", "ran"), [("a", ["a1", "a2"]), ("b", ["b1"]), ("x", ["other"]), (None, ["other"])])
def test_the_case_of_the_value_runs_and_then_what_follows(value: object, ran: list[str]) -> None:
    tree = Tree(switch("choose", "${workflow.input.value}", CASES, [simple("other")]), simple("last"))

    tree.begin(value=value).run()

    assert [name for name in tree.statuses if name not in ("choose", "last")] == ran
    assert tree.statuses["last"] == "COMPLETED"
    assert tree.workflow.status == "COMPLETED"


def test_its_output_says_what_was_chosen() -> None:
    tree = Tree(switch("choose", 2, {"2": [simple("two")]})).begin()

    assert tree.output("choose") == {"evaluationResult": ["2"], "selectedCase": "2"}
    assert tree.waiting == ["two"]


@pytest.mark.parametrize("cases", [{"a": []}, {"b": [simple("b1")]}], ids=["an empty case", "no case and no default"])
def test_without_tasks_to_run_the_flow_goes_on(cases: dict[str, list[dict[str, object]]]) -> None:
    tree = Tree(switch("choose", "a", cases, []), simple("last")).begin()

    assert tree.waiting == ["last"]


def test_a_script_is_evaluated_by_a_system_worker() -> None:
    step = operator(
        "SWITCH",
        "choose",
        evaluatorType="javascript",
        expression="$.n > 1 ? 'a' : 'b'",
        inputParameters={"n": "${workflow.input.n}"},
        decisionCases=CASES,
    )
    tree = Tree(step, simple("last")).begin(n=2)

    row = tree.row("choose")
    assert (row.domain, row.task_type, tree.waiting) == ("system", "SWITCH", ["choose"])
    assert tree.input("choose") == {"n": 2, "evaluatorType": "javascript", "expression": "$.n > 1 ? 'a' : 'b'"}

    tree.done("choose", {"result": "a"})

    assert tree.output("choose") == {"evaluationResult": ["a"], "selectedCase": "a"}
    assert tree.waiting == ["a1"]


def test_a_script_that_fails_ends_the_workflow() -> None:
    step = operator("SWITCH", "choose", evaluatorType="javascript", expression="x", decisionCases=CASES)
    tree = Tree(step).begin().fails_for_good("choose", "ReferenceError: x is not defined")

    assert (tree.statuses["choose"], tree.workflow.status) == ("FAILED_WITH_TERMINAL_ERROR", "FAILED")
    assert tree.workflow.reason == "ReferenceError: x is not defined"


def test_an_optional_one_that_fails_lets_the_flow_go_on() -> None:
    step = operator("SWITCH", "choose", evaluatorType="javascript", expression="x", decisionCases=CASES, optional=True)
    tree = Tree(step, simple("last")).begin().fails_for_good("choose")

    assert (tree.statuses["choose"], tree.waiting) == ("COMPLETED_WITH_ERRORS", ["last"])


def test_a_lost_evaluation_is_tried_again() -> None:
    step = operator("SWITCH", "choose", evaluatorType="javascript", expression="x", decisionCases=CASES)
    tree = Tree(step).begin().take("choose")
    tree.next_deadline()

    assert (tree.row("choose").attempt, tree.workflow.status) == (1, "RUNNING")


def test_switches_stand_in_switches() -> None:
    inner = switch("inner", "b", {"b": [simple("deep")]})
    tree = Tree(switch("outer", "a", {"a": [inner, simple("after_inner")]}), simple("last")).begin()

    assert tree.done("deep").waiting == ["after_inner"]
    assert tree.done("after_inner").waiting == ["last"]


def test_a_decision_is_its_older_form() -> None:
    step = operator("DECISION", "choose", caseValueParam="v", inputParameters={"v": "b"}, decisionCases=CASES)
    tree = Tree(step).begin()

    assert (tree.output("choose"), tree.waiting) == ({"caseOutput": ["b"]}, ["b1"])


def test_a_canceled_task_of_a_case_terminates_the_workflow() -> None:
    tree = Tree(switch("choose", "a", CASES)).begin()
    tree.cancel("a1")

    assert (tree.statuses["a1"], tree.workflow.status) == ("CANCELED", "TERMINATED")


def test_in_a_pause_the_case_is_chosen_and_nothing_is_handed_out() -> None:
    tree = Tree(simple("first"), switch("choose", "a", CASES)).begin().take("first")
    tree.pause_workflow()
    tree.completed({}, of=tree.row("first"))

    assert (tree.waiting, tree.row("a1").phase) == ([], "PAUSED")
    tree.resume_workflow()
    assert tree.waiting == ["a1"]


def test_what_it_needs_is_asked_for_by_path() -> None:
    assert violations(operator("SWITCH", "s", decisionCases=CASES)) == {
        "tasks[0].evaluatorType": "is required by SWITCH",
        "tasks[0].expression": "is required by SWITCH",
    }
    assert violations(operator("SWITCH", "s", evaluatorType="value-param", expression="v")) == {
        "tasks[0].decisionCases": "is required by SWITCH"
    }
    bad = operator("SWITCH", "s", evaluatorType="cobol", expression="v", decisionCases=CASES)
    assert violations(bad)["tasks[0].evaluatorType"] == "must be one of graaljs, javascript, value-param"
    assert violations(operator("DECISION", "d", decisionCases=CASES)) == {
        "tasks[0].caseValueParam": "is required by DECISION"
    }


def test_what_is_wrong_inside_a_case_is_found_by_path() -> None:
    found = violations(
        switch("s", 1, {"a": [simple("x"), {**simple("x"), "inputParameters": {"n": "${nobody.output.n}"}}]})
    )

    assert found["tasks[0].decisionCases.a[1].taskReferenceName"] == "is used twice"
    assert found["tasks[0].decisionCases.a[1].inputParameters.n"].startswith("names a task that this workflow does not")
