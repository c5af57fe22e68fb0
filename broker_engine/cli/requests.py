"""`broker-engine task cancel|pause|resume` and `broker-engine workflow pause|resume`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from broker_engine.cli import output
from broker_engine.cli.session import Session, command, parse_object
from broker_engine.model.status import ReportStatus

TargetArgument = Annotated[
    str, typer.Argument(metavar="ID", help="The task's id, or the id of its workflow (then name the task).")
]
ReferenceArgument = Annotated[
    str | None, typer.Argument(metavar="REFERENCE", help="The task's reference in the workflow.", show_default=False)
]
ReasonOption = Annotated[str | None, typer.Option(help="Kept with the task and told to its worker.")]
WorkflowArgument = Annotated[str, typer.Argument(metavar="ID", help="The workflow's id.")]


def add_to_tasks(app: typer.Typer) -> None:
    """The commands about one task."""

    @command(
        app,
        "cancel",
        example="broker-engine task cancel order-7 charge --reason 'wrong amount'\nbroker-engine task cancel 3f0c…",
    )
    def cancel(
        session: Session, target: TargetArgument, reference: ReferenceArgument = None, reason: ReasonOption = None
    ) -> None:
        """End a task as CANCELED: a waiting one at once, a running one at its next safe point.

        Its workflow ends as TERMINATED, unless the task is optional. Nothing happens to a task that has ended already.
        """
        client = session.client()
        _ask(session, target, reference, lambda: client.cancel_task(target, reference, reason=reason))

    @command(
        app,
        "pause",
        example="broker-engine task pause order-7 charge --reason 'look first'\nbroker-engine task pause 3f0c…",
    )
    def pause(
        session: Session, target: TargetArgument, reference: ReferenceArgument = None, reason: ReasonOption = None
    ) -> None:
        """Hold a task until it is resumed: a waiting one at once, a running one from its next safe point."""
        client = session.client()
        _ask(session, target, reference, lambda: client.pause_task(target, reference, reason=reason))

    @command(app, "resume", example="broker-engine task resume order-7 charge\nbroker-engine task resume 3f0c… --json")
    def resume(session: Session, target: TargetArgument, reference: ReferenceArgument = None) -> None:
        """Let a paused task go on: the same attempt, after its last completed step."""
        client = session.client()
        _ask(session, target, reference, lambda: client.resume_task(target, reference))

    @command(
        app,
        "complete",
        example="""broker-engine task complete order-7 approve --output '{"ok": true}'
    broker-engine task complete 3f0c… --json""",
    )
    def complete(
        session: Session,
        target: TargetArgument,
        reference: ReferenceArgument = None,
        output_json: Annotated[str | None, typer.Option("--output", metavar="JSON", help="Its output.")] = None,
    ) -> None:
        """End a live task as COMPLETED: a HUMAN or a WAIT, or in a worker's place."""
        data = parse_object(output_json, "--output") if output_json is not None else None
        client = session.client()
        _ask(session, target, reference, lambda: f"completed ({client.end_task(target, reference, output=data)})")

    @command(app, "fail", example="broker-engine task fail order-7 approve --reason 'no budget'")
    def fail(
        session: Session,
        target: TargetArgument,
        reference: ReferenceArgument = None,
        reason: ReasonOption = None,
        is_final: Annotated[bool, typer.Option("--final", help="Never try it again.")] = False,
    ) -> None:
        """End a live task as FAILED; it is tried again as its definition says."""
        status = ReportStatus.FAILED_WITH_TERMINAL_ERROR if is_final else ReportStatus.FAILED
        client = session.client()
        told = lambda: f"failed ({client.end_task(target, reference, status=status, reason=reason)})"  # noqa: E731
        _ask(session, target, reference, told)


def add_to_workflows(app: typer.Typer) -> None:
    """The commands about one workflow."""

    @command(app, "pause", example="broker-engine workflow pause order-7 --reason 'look first'")
    def pause(session: Session, workflow_id: WorkflowArgument, reason: ReasonOption = None) -> None:
        """Hand nothing out any more until it is resumed; what was handed out may be done, and its results count."""
        _tell(session, {"workflowId": workflow_id}, workflow_id, session.client().pause(workflow_id, reason))

    @command(app, "resume", example="broker-engine workflow resume order-7")
    def resume(session: Session, workflow_id: WorkflowArgument) -> None:
        """Let a paused workflow go on."""
        _tell(session, {"workflowId": workflow_id}, workflow_id, session.client().resume(workflow_id))


def _ask(session: Session, target: str, reference: str | None, send: Callable[[], str]) -> None:
    """``target``: the task, or (with a reference) its workflow."""
    about = {"taskId": target} if reference is None else {"workflowId": target, "referenceTaskName": reference}
    _tell(session, about, reference or target, send())


def _tell(session: Session, about: dict[str, str], name: str, answer: str) -> None:
    if session.json:
        output.json_out({**about, "answer": answer})
    else:
        output.line(f"{name}: {answer}")
