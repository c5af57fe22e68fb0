"""Lists in the documents are generated; here they are compared with what the code says."""

from __future__ import annotations

import json
import re
from pathlib import Path

from broker_engine.decider.definition_tree import parse_workflow_def
from broker_engine.decider.moves import mermaid
from broker_engine.decider.task_types import markdown_table as operators
from broker_engine.topics import markdown_table

ROOT = Path(__file__).resolve().parents[2]


def test_the_readme_s_topic_table_is_the_catalogue() -> None:
    assert markdown_table() in (ROOT / "README.md").read_text()


def test_the_readme_s_table_of_operators_is_the_table_of_types() -> None:
    assert operators() in (ROOT / "README.md").read_text()


def test_the_readme_s_tree_is_a_valid_definition() -> None:
    blocks = re.findall(r"```json\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tree,) = [block for block in blocks if "FORK_JOIN" in block]

    assert parse_workflow_def(json.loads(tree)).violations == ()


def test_the_architecture_s_diagram_is_the_table_of_moves() -> None:
    assert mermaid() in (ROOT / "broker_engine" / "ARCHITECTURE.md").read_text()


def test_every_file_that_the_documents_link_to_exists() -> None:
    documents = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("broker_engine/**/*.md")]
    for document in documents:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_every_file_that_the_architecture_names_exists() -> None:
    text = (ROOT / "broker_engine" / "ARCHITECTURE.md").read_text()
    for name in re.findall(r"`((?:\w+/)+\w+\.py)", text):
        assert (ROOT / "broker_engine" / name).exists() or (ROOT / name).exists(), name
