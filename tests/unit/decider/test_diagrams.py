"""Definitions as pictures."""

from __future__ import annotations

import re

import pytest

from broker_engine.decider import diagrams
from broker_engine.decider.definition_tree import from_snapshot
from tests.support.trees import Json, each, fork, operator, simple, switch
from tests.unit.decider.test_random_trees import MAX_DEPTH, Maker

ORDERS = [
    *fork("check", [simple("stock", name="look-up")], [simple("credit")]),
    switch("route", "x", {"yes": [simple("ship", compensation={"task": "recall"})]}, [operator("HUMAN", "wait")]),
    each("pack", [1], [simple("box")]),
    operator("TERMINATE", "stop", inputParameters={"terminationStatus": "COMPLETED"}),
]


def mermaid(steps: list[Json]) -> str:
    return diagrams.mermaid(from_snapshot({"name": "orders", "tasks": steps}))


def test_a_tree_of_text_shows_every_step_where_it_stands() -> None:
    assert diagrams.tree(from_snapshot({"name": "orders", "version": 3, "tasks": ORDERS})) == "\n".join(
        [
            "orders:3",
            "├─ check: FORK_JOIN",
            "│  ├─ [branch 1]",
            "│  │  └─ stock: look-up",
            "│  └─ [branch 2]",
            "│     └─ credit",
            "├─ check_join: JOIN of stock, credit",
            "├─ route: SWITCH",
            "│  ├─ [yes]",
            "│  │  └─ ship (undone by recall)",
            "│  └─ [otherwise]",
            "│     └─ wait: HUMAN",
            "├─ pack: DO_WHILE for each item",
            "│  └─ box",
            "└─ stop: TERMINATE",
        ]
    )


def test_a_flowchart_joins_branches_and_cases_and_puts_loops_into_boxes() -> None:
    lines = [line.strip() for line in mermaid(ORDERS).splitlines()]

    assert lines[0] == "flowchart TD"
    assert 'n5{"route: SWITCH"}' in lines
    assert [line for line in lines if line.endswith("--> n4")] == ["n2 --> n4", "n3 --> n4"], "both branches are joined"
    assert 'n5 -->|"yes"| n6' in lines
    assert 'n5 -->|"otherwise"| n7' in lines
    assert [line for line in lines if line.endswith("--> n8")] == ["n6 --> n8", "n7 --> n8"]
    assert 'subgraph n8 ["pack: DO_WHILE for each item"]' in lines
    assert not any(line.endswith("--> done") for line in lines), "nothing follows a TERMINATE"


def test_dependencies_are_the_edges_of_their_list() -> None:
    lines = mermaid([simple("a"), simple("b", dependsOn=["a"]), simple("c", dependsOn=["a"])]).splitlines()

    edges = [line.strip() for line in lines if "-->" in line]
    assert edges == ["begin --> n1", "n1 --> n2", "n1 --> n3", "n2 --> done", "n3 --> done"]


def test_names_are_told_as_they_are_but_cannot_break_the_picture() -> None:
    drawn = mermaid([simple('a "b"]\n--> c', name="x")])

    assert 'n1["a #quot;b#quot;] --> c: x"]' in drawn


@pytest.mark.parametrize("seed", range(50))
def test_every_step_of_a_random_tree_is_drawn_once_and_every_edge_has_two_ends(seed: int) -> None:
    definition = from_snapshot({"name": "random", "tasks": Maker(seed).steps(MAX_DEPTH)})

    drawn, told = diagrams.mermaid(definition), diagrams.tree(definition)

    nodes = re.findall(r"^\s*(?:subgraph )?(n\d+)(?:\[|\{| \[)", drawn, re.MULTILINE)
    assert len(nodes) == len({*nodes}) == len(definition.index)
    ends = {end for edge in re.findall(r"(\w+) -->(?:\|.*\|)? (\w+)", drawn) for end in edge}
    assert ends <= {*nodes, "begin", "done"}
    words = [re.split("[: ]", line.lstrip(" │├└─"))[0] for line in told.splitlines()[1:]]
    assert sorted(word for word in words if word in definition.index) == sorted(definition.index)
