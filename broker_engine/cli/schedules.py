"""`broker-engine schedule`: workflows that start again and again, by cron."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import typer

from broker_engine.cli import output
from broker_engine.cli.definitions import read_definitions, store_all
from broker_engine.cli.session import Session, command, parse_object
from broker_engine.decider.schedules import parse_schedule
from broker_engine.model.schedules import CatchUp
from broker_engine.worker.schedules import MAX_AHEAD, ahead

app = typer.Typer(help="Start workflows by cron.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.")]


@command(
    app,
    "create",
    example="""broker-engine schedule create nightly --cron "0 2 * * *" --zone Europe/Berlin --workflow report
    broker-engine schedule create ping --cron "*/10 * * * * *" --workflow ping --input '{"url": "http://a"}'
    broker-engine schedule create --file schedules.json --overwrite""",
)
def create(
    session: Session,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The schedule's name.", show_default=False)] = None,
    cron: Annotated[
        str | None,
        typer.Option(metavar="EXPRESSION", help="minute hour day month weekday, or six fields with seconds first."),
    ] = None,
    workflow: Annotated[str | None, typer.Option(help="The definition that is started.")] = None,
    version: Annotated[int | None, typer.Option(help="Its version (default: the newest at each start).")] = None,
    zone: Annotated[str, typer.Option(help="The time zone of the expression.")] = "UTC",
    input: Annotated[str | None, typer.Option(metavar="JSON", help="The workflows' input.")] = None,
    catch_up: Annotated[
        CatchUp, typer.Option(help="What is started of the moments that passed while the engine was down.")
    ] = CatchUp.LATEST,
    paused: Annotated[bool, typer.Option(help="Register it paused.")] = False,
    file: Annotated[
        Path | None, typer.Option(help="A JSON file (- is standard input) with one schedule or an array instead.")
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace one of that name.")] = False,
) -> None:
    """Register a schedule. Each moment starts one workflow, NAME-20261201T020000Z, however often a process dies.

    Its input is the given one with `_scheduledTime`, `_executedTime` and `_startedByScheduler`.
    """
    if file is not None:
        if name is not None or cron is not None or workflow is not None:
            raise typer.BadParameter("give NAME, --cron and --workflow, or --file")
        items = read_definitions(file)
    else:
        if name is None or cron is None or workflow is None:
            raise typer.BadParameter("give NAME, --cron and --workflow, or --file")
        request: dict[str, Any] = {"name": workflow, "input": parse_object(input, "--input") if input else {}}
        if version is not None:
            request["version"] = version
        items = [
            {
                "name": name,
                "cronExpression": cron,
                "zoneId": zone,
                "catchUp": catch_up.value,
                "paused": paused,
                "startWorkflowRequest": request,
            }
        ]
    client = session.client()
    store_all(session, items, lambda item: client.schedules.register(item, overwrite=overwrite), "scheduled")


@command(app, "list", example="broker-engine schedule list\nbroker-engine schedule list --json | jq '.[].nextRunTime'")
def list_all(session: Session) -> None:
    """Show the schedules: what is next, what was last, and what went wrong."""
    found = session.client().schedules.all()
    if session.json:
        output.json_out(list(found.values()))
        return
    rows = [
        (
            name,
            one["cronExpression"],
            one.get("zoneId", "UTC"),
            one["startWorkflowRequest"]["name"],
            "paused" if one.get("paused") else output.moment(one.get("nextRunTime")) or "never again",
            output.moment(one.get("lastRunTime")),
            one.get("lastError", ""),
        )
        for name, one in found.items()
    ]
    output.table(("NAME", "CRON", "ZONE", "WORKFLOW", "NEXT", "LAST", "LAST ERROR"), rows, empty="No schedules.")


@command(app, "get", example="broker-engine schedule get nightly")
def get(session: Session, name: NameArgument) -> None:
    """Print a schedule as JSON."""
    output.json_out(session.client().schedules.get(name))


@command(
    app,
    "next",
    example="""broker-engine schedule next nightly --count 10
    broker-engine schedule next --cron "0 2 * * MON-FRI" --zone Europe/Berlin --json""",
)
def upcoming(
    session: Session,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The schedule's name.", show_default=False)] = None,
    cron: Annotated[str | None, typer.Option(metavar="EXPRESSION", help="An expression to try out instead.")] = None,
    zone: Annotated[str, typer.Option(help="Its time zone.")] = "UTC",
    count: Annotated[int, typer.Option(min=1, max=MAX_AHEAD, help="How many moments.")] = 5,
) -> None:
    """Show the next moments of a schedule, or of an expression before it is registered."""
    if (name is None) == (cron is None):
        raise typer.BadParameter("give NAME or --cron")
    if name is not None:
        document = session.client().schedules.get(name)
    else:
        document = {"name": "-", "cronExpression": cron, "zoneId": zone, "startWorkflowRequest": {"name": "-"}}
    schedule = parse_schedule(document).unwrap()
    found = ahead(schedule, count)
    if session.json:
        output.json_out(found)
        return
    for at_ms in found:
        output.line(datetime.fromtimestamp(at_ms / 1_000, ZoneInfo(schedule.zone)).strftime("%a %Y-%m-%d %H:%M:%S %Z"))


@command(app, "pause", example='broker-engine schedule pause nightly --reason "maintenance"')
def pause(
    session: Session,
    name: NameArgument,
    reason: Annotated[str | None, typer.Option(help="Kept with the schedule.")] = None,
) -> None:
    """Start nothing until it is resumed; what passes meanwhile is not caught up."""
    session.client().schedules.pause(name, reason)
    _done(session, name, "paused")


@command(app, "resume", example="broker-engine schedule resume nightly")
def resume(session: Session, name: NameArgument) -> None:
    """Go on with the first moment from now."""
    session.client().schedules.resume(name)
    _done(session, name, "resumed")


@command(app, "delete", example="broker-engine schedule delete nightly")
def delete(session: Session, name: NameArgument) -> None:
    """Remove a schedule; what it has started goes on."""
    session.client().schedules.delete(name)
    _done(session, name, "deleted")


def _done(session: Session, name: str, status: str) -> None:
    if session.json:
        output.json_out({"name": name, "status": status})
    else:
        output.line(f"{name}: {status}")
