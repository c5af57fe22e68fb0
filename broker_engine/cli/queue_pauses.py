"""`broker-engine queue pause` and `broker-engine queue resume`."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from broker_engine.cli import output
from broker_engine.cli.session import Session, command
from broker_engine.errors import NotFound
from broker_engine.model.stops import Stop, is_queue_key, keys_against_queue, queue_key, queue_name
from broker_engine.worker.client import Client

NameArgument = Annotated[
    str,
    typer.Argument(metavar="TYPE|DOMAIN/TYPE", help="A task type in every domain, or its queue in one domain."),
]


def add_to_queues(app: typer.Typer) -> None:
    """The two commands."""

    @command(
        app,
        "pause",
        example="""broker-engine queue pause encode --reason "the licence server is down"
    broker-engine queue pause eu/encode
    broker-engine queue pause encode --json""",
    )
    def pause(
        session: Session,
        queue: NameArgument,
        reason: Annotated[str | None, typer.Option(help="Kept with the pause and shown with what it holds.")] = None,
    ) -> None:
        """Hold what waits on a queue until it is resumed; what runs goes on.

        What was handed out and not yet started is taken back within about two seconds. A worker that has taken a
        hand-out in that time runs it.
        """
        client = session.client()
        domain, task_type = _parsed(queue)
        is_known = _is_known(client, domain, task_type)
        stop = client.pause_queue(task_type, domain, reason)
        if not is_known:
            typer.echo(f"warning: there is no queue {queue} yet; `broker-engine queue list` shows all", err=True)
        if session.json:
            output.json_out({"queue": queue_name(stop.key), "isKnown": is_known} | stop_json(stop))
        else:
            output.line(f"paused {stop.about}; resume with `broker-engine queue resume {queue_name(stop.key)}`")

    @command(
        app,
        "resume",
        example="""broker-engine queue resume encode
    broker-engine queue resume eu/encode --json""",
    )
    def resume(session: Session, queue: NameArgument) -> None:
        """Hand out again what a pause holds, the oldest first. Name the queue as it was paused."""
        client = session.client()
        domain, task_type = _parsed(queue)
        paused = {key: stop for key, stop in client.stops().items() if is_queue_key(key)}
        key = queue_key(task_type, domain)
        if key not in paused:
            there = ", ".join(map(queue_name, paused))
            raise NotFound(f"queue {queue} is not paused" + (f"; paused: {there}" if there else "; no queue is"))
        client.resume_queue(task_type, domain)
        others = [] if domain is None else keys_against_queue(domain, task_type)
        left = [paused[other] for other in others if other in paused and other != key]
        if session.json:
            output.json_out({"queue": queue, "stillPausedBy": [queue_name(stop.key) for stop in left]})
            return
        output.line(f"resumed {paused[key].about}")
        for stop in left:
            output.line(f"still paused by {stop.operator}: {stop.about}")


def stop_json(stop: Stop | None) -> dict[str, object]:
    """The pause of a queue, as parts of other answers show it."""
    if stop is None:
        return {"pause": None}
    return {"pause": {"by": stop.operator, "since": stop.since_ms, "reason": stop.reason, "as": queue_name(stop.key)}}


def paused_line(stop: Stop, now_ms: int) -> str:
    """Who has paused a queue since when, and how it goes on."""
    because = f": {stop.reason}" if stop.reason else ""
    since = f"{max(now_ms - stop.since_ms, 0) / 1_000:.0f} s"
    how = f"broker-engine queue resume {queue_name(stop.key)}"
    return f"PAUSED by {stop.operator} for {since}{because}; resume with `{how}`"


def _parsed(queue: str) -> tuple[str | None, str]:
    """(domain, None for every one; task type)."""
    domain, slash, task_type = queue.partition("/")
    if not slash:
        return None, queue
    if not domain or not task_type:
        raise typer.BadParameter(f"{queue!r} names no queue: give TYPE, or DOMAIN/TYPE", param_hint="QUEUE")
    return domain, task_type


def _is_known(client: Client, domain: str | None, task_type: str) -> bool:
    if domain is None and task_type in client.task_definitions():
        return True
    views = client.queues.all(time.time_ns() // 1_000_000)
    return any(view.task_type == task_type and domain in (None, view.domain) for view in views)
