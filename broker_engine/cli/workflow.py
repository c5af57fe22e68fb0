"""`broker-engine workflow`: workflow definitions and executions."""

from __future__ import annotations

import sys
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from broker_engine.cli import drawing, exits, operations, output, requests, shapes
from broker_engine.cli.definitions import read_definitions, store_all
from broker_engine.cli.follow import follow
from broker_engine.cli.session import Session, command, parse_object, read_text
from broker_engine.model.commands import IdempotencyStrategy
from broker_engine.model.state import TaskState
from broker_engine.model.status import WorkflowStatus
from broker_engine.worker.views import WorkflowView

app = typer.Typer(help="Register, start, watch and end workflows.", no_args_is_help=True)

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The workflow's id.")]

#: A watched workflow may take days.
_FOREVER = float(10 * 365 * 24 * 60 * 60)

#: Moments as options: with a time zone, or in this machine's.
MOMENTS = ["%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%dT%H:%M:%S"]

_TASK_COLUMNS = ("TASK", "TYPE", "ATTEMPT", "STATUS", "PHASE", "STARTED", "TOOK", "WORKER", "REASON")


@command(
    app,
    "create",
    example="broker-engine workflow create order.json\nbroker-engine workflow create all.json --overwrite",
)
def create(
    session: Session,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="JSON: one definition or an array; - is standard input.")
    ],
    overwrite: Annotated[bool, typer.Option(help="Replace a version that exists.")] = False,
) -> None:
    """Register the definitions of a file; a version that exists is a conflict."""
    items = read_definitions(file)
    client = session.client()
    store_all(session, items, lambda item: client.register_workflow(item, overwrite=overwrite), "created")


@command(app, "definitions", example="broker-engine workflow definitions --json")
def definitions(session: Session) -> None:
    """List the definitions, every version."""
    found = list(session.client().workflow_definitions().values())
    if session.json:
        output.json_out(found)
        return
    rows = [
        (
            definition["name"],
            definition.get("version", 1),
            len(definition.get("tasks", ())),
            definition.get("description", ""),
        )
        for definition in found
    ]
    output.table(("NAME", "VERSION", "TASKS", "DESCRIPTION"), rows, empty="No workflow definitions.")


@command(
    app,
    "start",
    example="""broker-engine workflow start order --input '{"orderId": 7}' --wait
    broker-engine workflow start order --input-file order.json --idempotency-key 7 --strategy return_existing
    broker-engine workflow start order --task-to-domain '{"*": "eu, NO_DOMAIN"}'""",
)
def start(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The definition's name.")],
    input_json: Annotated[str | None, typer.Option("--input", metavar="JSON", help="The input, an object.")] = None,
    input_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The input from a file; - is standard input.")
    ] = None,
    version: Annotated[int | None, typer.Option(min=1, help="The definition's version (default: newest)")] = None,
    workflow_id: Annotated[str | None, typer.Option("--id", help="The workflow's id (default: a new one)")] = None,
    idempotency_key: Annotated[str | None, typer.Option(help="Start once per key; the id follows from it.")] = None,
    strategy: Annotated[
        IdempotencyStrategy,
        typer.Option(case_sensitive=False, help="What a repeated id or key does."),
    ] = IdempotencyStrategy.FAIL,
    correlation_id: Annotated[str | None, typer.Option(help="Yours, to find related workflows by.")] = None,
    priority: Annotated[int, typer.Option(min=0, max=99, help="0 to 99; larger is more urgent.")] = 0,
    tenant: Annotated[str | None, typer.Option(help="Whom fairness and caps count it for.")] = None,
    deadline_at: Annotated[
        datetime | None,
        typer.Option(formats=MOMENTS, help="When it times out at the latest, for example 2030-01-31T12:00:00+00:00."),
    ] = None,
    task_to_domain: Annotated[
        str | None,
        typer.Option(metavar="JSON", help='Domains by task type or *, best first: \'{"*": "eu, NO_DOMAIN"}\'.'),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end; exit code 1 if it is not COMPLETED.")] = False,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait with --wait; then exit code 5.")] = 60.0,
) -> None:
    """Start a workflow and print its id."""
    data = _input(input_json, input_file)
    if workflow_id is not None and idempotency_key is not None:
        raise typer.BadParameter("--id and --idempotency-key exclude each other: the key already gives the id")
    client = session.client()
    started = client.start(
        name,
        data,
        version=version,
        workflow_id=workflow_id,
        idempotency_key=idempotency_key,
        strategy=strategy,
        correlation_id=correlation_id,
        priority=priority,
        source="cli",
        tenant=tenant,
        deadline_at=deadline_at.astimezone() if deadline_at is not None else None,
        task_to_domain=parse_object(task_to_domain.encode(), "--task-to-domain")
        if task_to_domain is not None
        else None,
    )
    if not wait:
        if session.json:
            output.json_out({"workflowId": started})
        else:
            output.line(started)
        return
    view = client.wait(started, timeout)
    _show(session, view)
    _end(view)


def _input(input_json: str | None, input_file: Path | None) -> dict[str, Any]:
    if input_json is not None and input_file is not None:
        raise typer.BadParameter("--input and --input-file exclude each other")
    if input_file is not None:
        text, hint = read_text(input_file), "--input-file"
    elif input_json is not None:
        text, hint = input_json.encode(), "--input"
    else:
        return {}
    return parse_object(text, hint)


@command(app, "get", example="broker-engine workflow get 7a1f…\nbroker-engine workflow get order-7 --json | jq .output")
def get(session: Session, workflow_id: IdArgument) -> None:
    """Show a workflow with all attempts of its tasks."""
    _show(session, session.client().get(workflow_id))


@command(app, "list", example="broker-engine workflow list --status RUNNING --limit 20")
def list_some(
    session: Session,
    status: Annotated[WorkflowStatus | None, typer.Option(case_sensitive=False, help="Only these.")] = None,
    name: Annotated[str | None, typer.Option(help="Only of this definition.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most this many.")] = 100,
) -> None:
    """List workflows, the newest first."""
    found = islice(
        (
            workflow
            for workflow in session.client().list()
            if status in (None, workflow.status) and name in (None, workflow.name)
        ),
        limit,
    )
    if session.json:
        output.json_out([shapes.workflow_json(workflow) for workflow in found])
        return
    rows = [
        (
            workflow.workflow_id,
            f"{workflow.name}:{workflow.version}",
            "quarantined" if workflow.quarantine else workflow.status,
            output.moment(workflow.created_at_ms),
            output.seconds(workflow.created_at_ms, workflow.ended_at_ms),
            workflow.reason,
        )
        for workflow in found
    ]
    output.table(("ID", "DEFINITION", "STATUS", "STARTED", "TOOK", "REASON"), rows, empty="No workflows.")


@command(app, "watch", example="broker-engine workflow watch order-7")
def watch(
    session: Session,
    workflow_id: IdArgument,
    timeout: Annotated[
        float | None, typer.Option(min=0.1, help="Stop watching after so many seconds, with exit code 5.")
    ] = None,
) -> None:
    """Show a workflow live until it has ended; exit code 1 if it is not COMPLETED then.

    With --json every change is one line.
    """
    client = session.client()
    changes = follow(session.log(), session.namespace, client.partitions, workflow_id, timeout or _FOREVER)
    view: WorkflowView | None = None
    if session.json:
        for view in changes:
            output.json_line(shapes.view_json(view))
    elif sys.stdout.isatty():
        with Live(console=output.console(), refresh_per_second=10) as live:
            for view in changes:
                live.update(_picture(view))
    else:
        told: set[str] = set()
        for view in changes:
            for news in _lines(view):
                if news not in told:
                    told.add(news)
                    output.line(news)
    assert view is not None, "an existing workflow is shown at least once"
    _end(view)


@command(app, "terminate", example="broker-engine workflow terminate order-7 --reason 'customer withdrew'")
def terminate(
    session: Session,
    workflow_id: IdArgument,
    reason: Annotated[str | None, typer.Option(help="Kept with the workflow.")] = None,
    compensate: Annotated[
        bool, typer.Option("--compensate", help="Undo what it has completed, where its definition says how.")
    ] = False,
) -> None:
    """End a live workflow; its live tasks are cancelled."""
    session.client().terminate(workflow_id, reason, compensate=compensate)
    if session.json:
        output.json_out({"workflowId": workflow_id, "status": WorkflowStatus.TERMINATED})
    else:
        output.line(f"{workflow_id}: terminated")


@command(app, "reset-callbacks", example="broker-engine workflow reset-callbacks order-7")
def reset_callbacks(session: Session, workflow_id: IdArgument) -> None:
    """Hand out now what waits for a callback; a retry's back-off goes on."""
    session.client().reset_callbacks(workflow_id)
    if session.json:
        output.json_out({"workflowId": workflow_id, "status": "callbacks reset"})
    else:
        output.line(f"{workflow_id}: callbacks reset")


@command(
    app,
    "push-message",
    example="""broker-engine workflow push-message order-7 '{"paid": true}'
    broker-engine workflow push-message order-7 - < message.json""",
)
def push_message(
    session: Session,
    workflow_id: IdArgument,
    message: Annotated[str, typer.Argument(metavar="JSON", help="A JSON object; - reads it from standard input.")],
) -> None:
    """Send a message to a live workflow; its PULL_WORKFLOW_MESSAGES takes it, now or later."""
    text = sys.stdin.read() if message == "-" else message
    sent = session.client().push_message(workflow_id, parse_object(text, "the message"))
    if session.json:
        output.json_out({"workflowId": workflow_id, "messageId": sent})
    else:
        output.line(f"{workflow_id}: message {sent} was sent")


requests.add_to_workflows(app)
operations.add_to_workflows(app)
drawing.add_to_workflows(app)


# --- how a workflow looks


def _show(session: Session, view: WorkflowView) -> None:
    if session.json:
        output.json_out(shapes.view_json(view))
        return
    console = output.console()
    console.print(_picture(view))
    if view.workflow.output is not None:
        console.print(f"output  {_compact(view.workflow.output)}", markup=False)


def _picture(view: WorkflowView) -> Group:
    workflow = view.workflow
    head = Text(f"{workflow.workflow_id}  {workflow.name}:{workflow.version}  ", style="bold")
    head.append(workflow.status)
    took = output.seconds(workflow.created_at_ms, workflow.ended_at_ms)
    head.append(f"  started {output.moment(workflow.created_at_ms)}{f', took {took}' if took else ''}", style="dim")
    lines = [head]
    if workflow.quarantine:
        lines.append(Text(f"in quarantine: {workflow.quarantine}", style="red"))
    if workflow.reason:
        lines.append(Text(f"reason: {workflow.reason}"))
    table = output.make_table(_TASK_COLUMNS, map(_row, view.tasks))
    return Group(*lines, table, *(_steps(task) for task in view.tasks if task.steps))


def _steps(task: TaskState) -> Text:
    """The steps of an attempt in one line, with how long each took."""
    told = [
        " ".join(filter(None, (step.name, step.status.lower(), output.seconds(step.started_at_ms, step.ended_at_ms))))
        for step in task.steps
    ]
    if task.progress_done is not None:
        told.append(f"{task.progress_done} of {task.progress_total or '?'}")
    return Text(f"{task.reference} attempt {task.attempt}: {', '.join(told)}")


def _row(task: TaskState) -> tuple[object, ...]:
    started = output.moment(task.started_at_ms).partition(" ")[2]
    took = output.seconds(task.started_at_ms, task.ended_at_ms)
    waits = f"{task.phase} ({task.waiting_for})" if task.waiting_for else task.phase
    return task.reference, task.task_type, task.attempt, task.status, waits, started, took, task.worker_id, task.reason


def _lines(view: WorkflowView) -> list[str]:
    lines = [
        f"{output.moment(task.updated_at_ms)}  {task.reference} attempt {task.attempt}: {task.status} ({task.phase})"
        + (f": {task.reason}" if task.reason else "")
        for task in view.tasks
    ]
    workflow = view.workflow
    lines.append(
        f"{output.moment(workflow.updated_at_ms)}  workflow: {workflow.status}"
        + (f": {workflow.reason}" if workflow.reason else "")
    )
    return lines


def _compact(payload: bytes) -> str:
    return orjson.dumps(shapes.payload(payload)).decode()


def _end(view: WorkflowView) -> None:
    if view.workflow.status is not WorkflowStatus.COMPLETED:
        raise typer.Exit(exits.FAILED)
