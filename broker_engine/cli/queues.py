"""`broker-engine queue`: what waits in which domain, who serves it, and moving it elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from broker_engine.cli import exits, output
from broker_engine.cli.queue_pauses import add_to_queues, paused_line, stop_json
from broker_engine.cli.session import Session, command
from broker_engine.decider.domains import NO_DOMAIN
from broker_engine.errors import NotFound
from broker_engine.model.limits import DEFAULT_DOMAIN
from broker_engine.model.state import TaskState
from broker_engine.worker.client import Client
from broker_engine.worker.queue_views import QueueView, waits_since_ms

app = typer.Typer(help="Look at queues, pause them, and move what waits on them elsewhere.", no_args_is_help=True)
add_to_queues(app)

QueueArgument = Annotated[
    str, typer.Argument(metavar="QUEUE", help="DOMAIN/TASK_TYPE as `queue list` shows it, or a task type alone.")
]

#: Refusals that are told one by one.
_TOLD = 5
#: Answers from this status on are refusals.
_REFUSED = 400


@command(app, "list", example="broker-engine queue list\nbroker-engine queue list --json | jq '.[] | select(.lag > 0)'")
def list_all(session: Session) -> None:
    """List every queue: what waits and for what, how far its workers are behind, who they are.

    LAG is what the queue's consumer group has not read. LAST POLL is the last sign of life of any of its workers
    (presence, every three seconds; empty: none within the last hour).
    """
    now_ms = _now_ms()
    found = session.client().queues.all(now_ms)
    if session.json:
        output.json_out([_queue_json(view) for view in found])
        return
    columns = ("QUEUE", "DEPTH", "WAITING FOR", "OLDEST", "RUNNING", "LAG", "WORKERS", "FREE", "LAST POLL", "PAUSED BY")
    output.table(columns, [_row(view, now_ms) for view in found], empty="No queues.")


@command(app, "show", example="broker-engine queue show eu/encode\nbroker-engine queue show encode --limit 50 --json")
def show(
    session: Session,
    queue: QueueArgument,
    limit: Annotated[int, typer.Option(min=1, help="At most so many tasks of the line.")] = 20,
) -> None:
    """Show one queue with its workers and the head of its line."""
    client, now_ms = session.client(), _now_ms()
    view = _find(client.queues.all(now_ms), queue)
    line = client.queues.waiting(view.domain, view.task_type)
    if session.json:
        shown = _queue_json(view) | {"line": [_task_json(task) for task in line[:limit]]}
        output.json_out(shown)
        return
    for text in _facts(view, now_ms):
        output.line(text)
    workers = [
        (worker.worker_id, f"{worker.free} of {worker.capacity}", worker.version, output.moment(worker.heard_at_ms))
        for worker in view.workers
    ]
    output.table(("WORKER", "FREE", "VERSION", "LAST POLL"), workers, empty="No worker.")
    rows = [
        (
            task.task_id,
            task.workflow_id,
            task.reference,
            task.priority,
            task.waiting_for,
            _for(waits_since_ms(task), now_ms),
        )
        for task in line[:limit]
    ]
    output.table(("TASK", "WORKFLOW", "REFERENCE", "PRIORITY", "WAITING FOR", "SINCE"), rows, empty="Nothing waits.")
    if len(line) > limit:
        output.line(f"… and {len(line) - limit} more")


@command(
    app,
    "move",
    example="""broker-engine queue move 3f0c… --to us
    broker-engine queue move --queue eu/encode --to us --reason "the eu hosts are down"
    broker-engine queue move --queue eu/encode --to NO_DOMAIN --json""",
)
def move(
    session: Session,
    to: Annotated[str, typer.Option("--to", metavar="DOMAIN", help="The domain; NO_DOMAIN is the default one.")],
    task_id: Annotated[str | None, typer.Argument(metavar="[TASK]", help="The id of one waiting task.")] = None,
    queue: Annotated[
        str | None, typer.Option("--queue", metavar="QUEUE", help="Everything that waits there, as DOMAIN/TASK_TYPE.")
    ] = None,
    reason: Annotated[str | None, typer.Option(help="Kept with the tasks and told in their events.")] = None,
) -> None:
    """Move a waiting task, or all that wait on a queue, to the same task type's queue of another domain.

    What is moved gets a new hand-out; its old one is void. A moved task stays there. Running and ended tasks are
    refused.
    """
    if (task_id is None) == (queue is None):
        raise typer.BadParameter("give the id of a task, or --queue QUEUE for all that wait there", param_hint="TASK")
    client = session.client()
    if queue is not None:
        _move_all(session, client, queue, to, reason)
        return
    task = client.move_task(task_id or "", to, reason)
    if session.json:
        output.json_out({"taskId": task.task_id, "workflowId": task.workflow_id, "from": task.domain, "to": to})
    else:
        output.line(f"{task.reference}: moved from {task.domain} to {to}")


def _move_all(session: Session, client: Client, queue: str, to: str, reason: str | None) -> None:
    view = _find(client.queues.all(_now_ms()), queue)
    line = client.queues.waiting(view.domain, view.task_type)
    if view.domain == (DEFAULT_DOMAIN if to.upper() == NO_DOMAIN else to):
        raise typer.BadParameter(f"{view.name} is in that domain: name another one", param_hint="--to")
    refused = [(task, answer) for task, answer in client.move_tasks(line, to, reason) if answer.status >= _REFUSED]
    moved = len(line) - len(refused)
    if session.json:
        left = [{"taskId": task.task_id, "message": answer.message} for task, answer in refused]
        output.json_out({"from": view.domain, "to": to, "taskType": view.task_type, "moved": moved, "refused": left})
    else:
        output.line(f"{moved} of {len(line)} tasks moved from {view.name} to {to}")
        for task, answer in refused[:_TOLD]:
            typer.echo(f"{task.task_id}: {answer.message}", err=True)
    if refused:
        raise typer.Exit(exits.FAILED)


def _find(views: Sequence[QueueView], name: str) -> QueueView:
    """The queue of this name: DOMAIN/TASK_TYPE, or a task type of the default domain.

    Raises:
        NotFound: there is none.
    """
    for wanted in (name, f"{DEFAULT_DOMAIN}/{name}"):
        for view in views:
            if view.name == wanted:
                return view
    same = [view.name for view in views if view.task_type == name.rpartition("/")[2]]
    there = f"; there is {', '.join(same[:_TOLD])}" if same else "; `broker-engine queue list` shows all"
    raise NotFound(f"there is no queue {name}{there}")


# --- how a queue looks


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _row(view: QueueView, now_ms: int) -> tuple[object, ...]:
    return (
        view.name,
        view.depth,
        ", ".join(f"{count} {what}" for what, count in sorted(view.waiting.items())),
        _for(view.oldest_waiting_ms, now_ms),
        view.running,
        _lag(view),
        len(view.workers),
        view.free,
        f"{_for(view.last_poll_ms, now_ms)} ago" if view.last_poll_ms is not None else "",
        view.stop.operator if view.stop is not None else "",
    )


def _facts(view: QueueView, now_ms: int) -> list[str]:
    waits = ", ".join(f"{count} for {what}" for what, count in sorted(view.waiting.items()))
    polled = f"{_for(view.last_poll_ms, now_ms)} ago" if view.last_poll_ms is not None else "none within the last hour"
    oldest = _for(view.oldest_waiting_ms, now_ms) or "none"
    paused = [] if view.stop is None else [paused_line(view.stop, now_ms)]
    return [
        *paused,
        f"{view.name}: {view.depth} waiting{f' ({waits})' if waits else ''}, {view.running} running",
        f"oldest on the queue: {oldest}; lag: {_lag(view)}; last poll: {polled}",
    ]


def _lag(view: QueueView) -> str:
    if view.lag is None:
        return "no topic"
    return str(view.lag) if view.is_lag_exact else f"up to {view.lag}"


def _for(since_ms: int | None, now_ms: int) -> str:
    return "" if since_ms is None else f"{max(now_ms - since_ms, 0) / 1_000:.0f} s"


def _queue_json(view: QueueView) -> dict[str, Any]:
    return {
        "domain": view.domain,
        "taskType": view.task_type,
        "depth": view.depth,
        "waiting": view.waiting,
        "oldestWaitingSince": view.oldest_waiting_ms,
        "running": view.running,
        "lag": view.lag,
        "isLagExact": view.is_lag_exact,
        "lastPoll": view.last_poll_ms,
        **stop_json(view.stop),
        "workers": [
            {
                "workerId": worker.worker_id,
                "capacity": worker.capacity,
                "free": worker.free,
                "version": worker.version,
                "heardAt": worker.heard_at_ms,
            }
            for worker in view.workers
        ],
    }


def _task_json(task: TaskState) -> dict[str, Any]:
    return {
        "taskId": task.task_id,
        "workflowId": task.workflow_id,
        "referenceTaskName": task.reference,
        "priority": task.priority,
        "waitingFor": task.waiting_for,
        "since": waits_since_ms(task),
        "domainChoices": task.domain_choices.split(",") if task.domain_choices else [],
    }
