"""`broker-engine starts`: stop new workflows of a definition, of a tenant, or all of them; what runs goes on."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from broker_engine.cli import output
from broker_engine.cli.session import Session, command
from broker_engine.errors import NoAnswer
from broker_engine.worker.client import Client

app = typer.Typer(help="Stop new workflows from starting, and let them start again.", no_args_is_help=True)

WorkflowOption = Annotated[str | None, typer.Option(help="Only workflows of this definition.")]
TenantOption = Annotated[str | None, typer.Option(help="Only workflows of this tenant.")]
AllOption = Annotated[bool, typer.Option("--all", help="Every workflow: before maintenance.")]

_LOOK_AGAIN_SECONDS = 1.0


@command(
    app,
    "stop",
    example="""broker-engine starts stop --workflow order --reason "the shop is closed"
    broker-engine starts stop --tenant acme
    broker-engine starts stop --all --drain""",
)
def stop(
    session: Session,
    workflow: WorkflowOption = None,
    tenant: TenantOption = None,
    everything: AllOption = False,
    reason: Annotated[str | None, typer.Option(help="Told to whoever is refused.")] = None,
    drain: Annotated[bool, typer.Option("--drain", help="Wait until nothing runs that the stop is about.")] = False,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait with --drain; then exit code 5.")] = 3_600.0,
) -> None:
    """Refuse new workflows from now on; those that run go on."""
    _check(workflow, tenant, everything)
    client = session.client()
    made = client.stop_starts(workflow=workflow, tenant=tenant, reason=reason)
    if drain:
        _drain(client, workflow, tenant, timeout)
    if session.json:
        output.json_out(made._asdict())
    else:
        output.line(f"stopped {made.about}")


@command(app, "allow", example="broker-engine starts allow --workflow order\nbroker-engine starts allow --all")
def allow(
    session: Session, workflow: WorkflowOption = None, tenant: TenantOption = None, everything: AllOption = False
) -> None:
    """End a stop."""
    _check(workflow, tenant, everything)
    session.client().allow_starts(workflow=workflow, tenant=tenant)
    if session.json:
        output.json_out({"workflow": workflow, "tenant": tenant, "all": everything})
    else:
        output.line("allowed again")


@command(app, "list", example="broker-engine starts list --json")
def list_all(session: Session) -> None:
    """Show what may not start, who stopped it and why."""
    found = session.client().stops()
    if session.json:
        output.json_out([made._asdict() for made in found.values()])
        return
    rows = [(made.about, made.operator, output.moment(made.since_ms), made.reason or "") for made in found.values()]
    output.table(("STOPPED", "BY", "SINCE", "REASON"), rows, empty="Everything may start.")


def _check(workflow: str | None, tenant: str | None, everything: bool) -> None:
    if sum((workflow is not None, tenant is not None, everything)) != 1:
        raise typer.BadParameter("give one of --workflow, --tenant and --all")


def _drain(client: Client, workflow: str | None, tenant: str | None, timeout: float) -> None:
    """Wait for the end of what the stop is about, telling how much is left."""
    deadline = time.monotonic() + timeout
    before = -1
    while True:
        left = sum(
            not state.status.is_terminal
            for state in client.list()
            if workflow in (None, state.name) and tenant in (None, state.tenant)
        )
        if left != before:
            before = left
            typer.echo(f"{left} workflows are still running", err=True)
        if left == 0:
            return
        if time.monotonic() >= deadline:
            raise NoAnswer(f"{left} workflows are still running after {timeout:g} s; the stop stays in force")
        time.sleep(_LOOK_AGAIN_SECONDS)
