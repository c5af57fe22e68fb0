"""`broker-engine workflow validate|diagram`: definitions before they are registered, and as pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from broker_engine.cli import output
from broker_engine.cli.definitions import read_definitions, store_all
from broker_engine.cli.session import Session, command
from broker_engine.decider import diagrams
from broker_engine.decider.definition_tree import parse_workflow_def
from broker_engine.errors import NotFound


def add_to_workflows(app: typer.Typer) -> None:
    """The commands about definitions."""

    @command(
        app,
        "validate",
        example="broker-engine workflow validate orders.json\nbroker-engine workflow validate - --json < orders.json",
    )
    def validate(
        session: Session,
        file: Annotated[Path, typer.Argument(metavar="FILE", help="One definition or an array; - is standard input.")],
    ) -> None:
        """Check workflow definitions without registering them; needs no broker. Every mistake is told with its path."""
        store_all(session, read_definitions(file), _checked, "valid")

    @command(
        app,
        "diagram",
        example="""broker-engine workflow diagram orders.json
    broker-engine workflow diagram orders --version 2 --text""",
        json=False,
    )
    def diagram(
        session: Session,
        target: Annotated[
            str, typer.Argument(metavar="FILE|NAME", help="A file (no broker needed), or a registered definition.")
        ],
        version: Annotated[int | None, typer.Option(help="Of the registered one (default: the newest).")] = None,
        text: Annotated[bool, typer.Option("--text", help="A tree of text instead of a Mermaid flowchart.")] = False,
    ) -> None:
        """Draw a workflow definition: a Mermaid flowchart, or a tree of text."""
        for document in _documents(session, target, version):
            definition = parse_workflow_def(document).unwrap()
            output.line(diagrams.tree(definition) if text else diagrams.mermaid(definition))


def _checked(document: dict[str, Any]) -> list[str]:
    parsed = parse_workflow_def(document)
    parsed.unwrap()
    return list(parsed.warnings)


def _documents(session: Session, target: str, version: int | None) -> list[Any]:
    file = Path(target)
    if target == "-" or file.is_file():
        return read_definitions(file)
    found = {
        one.get("version", 1): one for one in session.client().workflow_definitions().values() if one["name"] == target
    }
    chosen = max(found, default=0) if version is None else version
    if chosen not in found:
        there = f"; versions: {', '.join(map(str, sorted(found)))}" if found else ""
        raise NotFound(
            f"there is no file and no workflow definition {target}{'' if version is None else f':{version}'}{there}"
        )
    return [found[chosen]]
