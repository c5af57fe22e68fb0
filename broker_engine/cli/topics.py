"""`broker-engine topics`: what the engine keeps on the cluster, whether that is safe to use, making what is missing."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from broker_engine.cli import exits, output
from broker_engine.cli.session import Session, command
from broker_engine.log.namespaces import open_existing
from broker_engine.runtime.namespace import ensure, problems_of
from broker_engine.topics import SCHEDULE_SPEC, TopicSpec

app = typer.Typer(help="List, check and create the engine's topics.", no_args_is_help=True)


@command(app, "list", example="broker-engine topics list --ns shop")
def list_all(session: Session) -> None:
    """List the topics of the namespace: the fixed ones (also those that are missing) and one per queue."""
    admin = session.log().admin()
    try:
        existing = admin.topics()
    finally:
        admin.close()
    namespace = session.namespace
    specs: dict[str, TopicSpec] = namespace.fixed_topics()
    specs |= {name: SCHEDULE_SPEC for name in sorted(existing) if namespace.is_schedule(name)}
    found: list[dict[str, Any]] = [
        {
            "name": name,
            "exists": name in existing,
            "partitions": existing.get(name),
            "policy": spec.policy,
            "key": spec.key,
            "value": spec.value,
        }
        for name, spec in specs.items()
    ]
    if session.json:
        output.json_out(found)
        return
    rows = [(t["name"], t["partitions"] or "missing", t["policy"], t["key"], t["value"]) for t in found]
    output.table(("TOPIC", "PARTITIONS", "POLICY", "KEY", "VALUE"), rows, empty="No topics.")


@command(app, "verify", example="broker-engine topics verify && broker-engine decider")
def verify(session: Session) -> None:
    """Compare every topic with what the engine needs; exit code 1 and every problem if something is wrong."""
    log, namespace = session.log(), session.namespace
    record = open_existing(log, namespace, session.signer)
    problems = problems_of(log, namespace, record)
    if session.json:
        output.json_out({"namespace": namespace.name, "partitions": record.partitions, "problems": problems})
    else:
        for problem in problems:
            output.line(problem)
        if not problems:
            output.line(f"The topics of namespace {namespace.name} are as they must be.")
    if problems:
        raise typer.Exit(exits.FAILED)


@command(app, "apply", example="broker-engine topics apply --ns shop --partitions 16")
def apply(
    session: Session,
    partitions: Annotated[
        int | None,
        typer.Option(min=1, max=1_000, help="Partitions of a new namespace, fixed from then on (default: 8)"),
    ] = None,
) -> None:
    """Create the namespace, or those of its topics that are missing, and check the others."""
    session.with_settings(partitions=partitions)
    log, namespace = session.log(), session.namespace
    record = ensure(
        log,
        namespace,
        partitions=session.settings.partitions,
        signer=session.signer,
        now_ms=time.time_ns() // 1_000_000,
    )
    if session.json:
        output.json_out({"namespace": namespace.name, "partitions": record.partitions})
    else:
        output.line(f"Namespace {namespace.name} is ready, with {record.partitions} partitions.")
    if partitions is not None and partitions != record.partitions:
        typer.echo(f"It was made with {record.partitions} partitions; {partitions} is ignored.", err=True)
