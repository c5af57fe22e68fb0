"""`broker-engine limits`: how many tasks may be in progress altogether, of a tenant, or in a domain."""

from __future__ import annotations

from typing import Annotated

import typer

from broker_engine.cli import output
from broker_engine.cli.session import Session, command
from broker_engine.model.caps import Cap

app = typer.Typer(help="Cap the tasks in progress altogether, of a tenant, or in a domain.", no_args_is_help=True)


@command(
    app,
    "set",
    example="""broker-engine limits set --global 100
    broker-engine limits set --tenant acme 20
    broker-engine limits set --tenant "*" 50
    broker-engine limits set --domain eu 10 --json""",
)
def set_cap(
    session: Session,
    everything: Annotated[
        int | None, typer.Option("--global", min=1, metavar="N", help="At most N tasks altogether.")
    ] = None,
    tenant: Annotated[
        tuple[str, int] | None,
        typer.Option("--tenant", metavar="NAME N", help="At most N of this tenant; * is every tenant without its own."),
    ] = None,
    domain: Annotated[
        tuple[str, int] | None, typer.Option("--domain", metavar="NAME N", help="At most N in this domain.")
    ] = None,
) -> None:
    """Set or change a cap, in force at once: lowered, it stops nothing that runs; nothing new starts until it fits.

    Limits of one task type are fields of its definition: concurrentExecLimit, rateLimitPerFrequency, resourceLock.
    """
    if sum(given is not None for given in (everything, tenant, domain)) != 1:
        raise typer.BadParameter("give one of --global, --tenant and --domain")
    client = session.client()
    if tenant is not None:
        made = client.set_cap(tenant[1], tenant=tenant[0])
    elif domain is not None:
        made = client.set_cap(domain[1], domain=domain[0])
    else:
        made = client.set_cap(everything or 0)
    if session.json:
        output.json_out(_shown(made))
    else:
        output.line(f"at most {made.limit} in progress of {made.about}")


@command(app, "clear", example="broker-engine limits clear --tenant acme\nbroker-engine limits clear --global")
def clear(
    session: Session,
    everything: Annotated[bool, typer.Option("--global", help="The cap on all tasks.")] = False,
    tenant: Annotated[str | None, typer.Option(help="The cap of this tenant.")] = None,
    domain: Annotated[str | None, typer.Option(help="The cap of this domain.")] = None,
) -> None:
    """Remove a cap; who waits for it alone starts at once."""
    if sum((everything, tenant is not None, domain is not None)) != 1:
        raise typer.BadParameter("give one of --global, --tenant and --domain")
    session.client().clear_cap(tenant=tenant, domain=domain)
    if session.json:
        output.json_out({"global": everything, "tenant": tenant, "domain": domain, "status": "cleared"})
    else:
        output.line("cleared")


@command(app, "list", example="broker-engine limits list\nbroker-engine limits list --json | jq '.inUse[].limit'")
def list_all(session: Session) -> None:
    """Show the caps, and every limit that counts something now or is waited for."""
    client = session.client()
    caps, in_use = client.caps(), client.limits_in_use()
    if session.json:
        output.json_out(
            {
                "caps": [_shown(cap) for cap in caps.values()],
                "inUse": [
                    {"limit": met.limit, "capacity": met.capacity, "inUse": met.in_use, "waiting": met.waiting}
                    for met in in_use
                ],
            }
        )
        return
    rows = [(cap.about, cap.limit, cap.operator, output.moment(cap.since_ms)) for cap in caps.values()]
    output.table(("CAP", "LIMIT", "SET BY", "SINCE"), rows, empty="No caps.")
    used = [(met.limit, f"{met.in_use} of {met.capacity}", met.waiting) for met in in_use]
    output.table(("LIMIT", "IN USE", "WAITING"), used, empty="No limit is in use.")


def _shown(cap: Cap) -> dict[str, object]:
    return {"key": cap.key, "limit": cap.limit, "operator": cap.operator, "sinceMs": cap.since_ms}
