"""Skipping tasks and changing variables of workflows that run."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from broker_engine.model.commands import SkipTask, UpdateVariables
from tests.support.trees import Tree, each, fork, simple


def skip(tree: Tree, reference: str, **fields: Any) -> Tree:
    return tree.operate(SkipTask, reference=reference, **fields)


def test_a_join_counts_a_skipped_task_once() -> None:
    tree = Tree(*fork("f", [simple("a"), simple("s")], [simple("b")]), simple("last")).begin()
    skip(tree, "s").done("a")

    assert tree.statuses["f_join"] == "IN_PROGRESS"
    assert tree.done("b").waiting == ["last"]


def test_the_last_task_can_be_skipped() -> None:
    tree = Tree(simple("a"), simple("b")).begin()

    assert skip(tree, "b").done("a").workflow.status == "COMPLETED"


def test_a_task_of_one_round_is_skipped_in_that_round() -> None:
    tree = Tree(each("l", [1, 2, 3], [simple("a")])).begin()
    skip(tree, "a__2", output=b'{"skipped":true}')

    tree.done("a__1").done("a__3")

    assert tree.output("l")["2"]["a"] == {"skipped": True}
    assert tree.workflow.status == "COMPLETED"


def test_a_skip_may_be_changed_until_it_is_reached() -> None:
    tree = Tree(simple("a"), simple("b")).begin()
    skip(tree, "b", output=b'{"n":1}')
    skip(tree, "b", output=b'{"n":2}')

    assert tree.done("a").output("b") == {"n": 2}


@pytest.mark.parametrize(
    ("reference", "fields", "status", "text"),
    [
        ("nobody", {}, 400, "has no task nobody"),
        ("f", {}, 400, "skip the tasks in it"),
        ("late", {"output": b"[]"}, 400, "output must be a JSON object"),
        ("late", {"input": b"no"}, 400, "input is not valid JSON"),
        ("late", {"output": orjson.dumps({"x": "y" * 300_000})}, 413, "the limit is"),
    ],
)
def test_what_cannot_be_skipped_is_said(reference: str, fields: dict[str, Any], status: int, text: str) -> None:
    tree = Tree(simple("a"), *fork("f", [simple("b")]), simple("late")).begin()

    answer = skip(tree, reference, **fields).answered

    assert answer[0] == status
    assert text in answer[1]


def test_a_workflow_that_has_ended_skips_nothing() -> None:
    tree = Tree(simple("a")).begin().fails("a")

    assert skip(tree, "a").answered[0] == 409


def test_variables_are_laid_over_those_that_are_there() -> None:
    tree = Tree(simple("a"), simple("b", inputParameters={"x": "${workflow.variables.x}"}), variables={"x": 1, "y": 2})
    tree.begin()

    assert tree.operate(UpdateVariables, variables=b'{"x":10}').answered[0] == 200
    tree.done("a")

    assert orjson.loads(tree.workflow.variables) == {"x": 10, "y": 2}
    assert tree.input("b") == {"x": 10}


@pytest.mark.parametrize(("given", "status"), [(b"[1]", 400), (b"{", 400), (orjson.dumps({"x": "y" * 300_000}), 413)])
def test_variables_that_do_not_fit_are_refused(given: bytes, status: int) -> None:
    tree = Tree(simple("a")).begin()

    assert tree.operate(UpdateVariables, variables=given).answered[0] == status
    assert tree.workflow.variables == b"{}"


def test_an_ended_workflow_keeps_its_variables() -> None:
    tree = Tree(simple("a")).begin().done("a")

    assert tree.operate(UpdateVariables, variables=b"{}").answered[0] == 409
