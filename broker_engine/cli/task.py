"""`broker-engine task`: task definitions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from broker_engine.cli import output, requests
from broker_engine.cli.definitions import read_definitions, store_all
from broker_engine.cli.session import Session, command
from broker_engine.cli.shapes import explanation_json

app = typer.Typer(help="Register and look at task definitions.", no_args_is_help=True)

FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="JSON: one definition or an array; - is standard input.")
]
NameArgument = Annotated[str, typer.Argument(metavar="NAME")]


@command(app, "create", example="broker-engine task create greet.json\ncat tasks.json | broker-engine task create -")
def create(session: Session, file: FileArgument) -> None:
    """Register the definitions of a file; one that exists is replaced."""
    items = read_definitions(file)
    store_all(session, items, session.client().register_task, "created")


@command(app, "update", example="broker-engine task update greet.json")
def update(session: Session, file: FileArgument) -> None:
    """Change definitions that exist already; running workflows keep the one they started with."""
    items = read_definitions(file)
    client = session.client()
    store_all(session, items, lambda item: client.register_task(item, update=True), "updated")


@command(app, "get", example="broker-engine task get greet")
def get(session: Session, name: NameArgument) -> None:
    """Print a definition as JSON."""
    output.json_out(session.client().task_definition(name))


@command(app, "list", example="broker-engine task list\nbroker-engine task list --json | jq '.[].name'")
def list_all(session: Session) -> None:
    """List the definitions."""
    found = list(session.client().task_definitions().values())
    if session.json:
        output.json_out(found)
        return
    rows = [
        (
            definition["name"],
            definition.get("retryCount", "default"),
            definition.get("retryLogic", "default"),
            definition.get("responseTimeoutSeconds", "default"),
            definition.get("timeoutSeconds", "default"),
            definition.get("ownerEmail", ""),
        )
        for definition in found
    ]
    columns = ("NAME", "RETRIES", "RETRY LOGIC", "RESPONSE TIMEOUT (S)", "TIMEOUT (S)", "OWNER")
    output.table(columns, rows, empty="No task definitions.")


@command(app, "delete", example="broker-engine task delete greet")
def delete(session: Session, name: NameArgument) -> None:
    """Remove a definition; running workflows keep their copy."""
    session.client().delete_task(name)
    if session.json:
        output.json_out({"name": name, "status": "deleted"})
    else:
        output.line(f"{name}: deleted")


@command(app, "extend-lease", example="broker-engine task extend-lease 3f0c…")
def extend_lease(
    session: Session, task_id: Annotated[str, typer.Argument(metavar="ID", help="The task's id.")]
) -> None:
    """Start the response clock of a running task anew; an ended task is left alone."""
    session.client().extend_lease(task_id)
    if session.json:
        output.json_out({"taskId": task_id, "status": "lease extended"})
    else:
        output.line(f"{task_id}: lease extended")


@command(
    app,
    "explain",
    example="""broker-engine task explain 3f0c…
    broker-engine task explain order-7 charge
    broker-engine task explain order-7 charge --json""",
)
def explain(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="ID", help="The task's id, or with REFERENCE its workflow's.")],
    reference: Annotated[
        str | None, typer.Argument(metavar="[REFERENCE]", help="The task's reference name in the workflow.")
    ] = None,
) -> None:
    """Say in one sentence what a task does or waits for."""
    found = session.client().explain(name, reference)
    if session.json:
        output.json_out(explanation_json(found))
    else:
        output.line(f"{found.task.reference}: {found.sentence}")


requests.add_to_tasks(app)
