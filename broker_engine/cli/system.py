"""`broker-engine system`: the role that runs scripts, transformations, HTTP calls and publications of workflows."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import structlog
import typer

from broker_engine.cli.logs import LogLevel, configure
from broker_engine.cli.roles import Stopping, patiently, run_until_stopped
from broker_engine.cli.session import Session, command
from broker_engine.log.confluent import ConfluentLog
from broker_engine.log.namespaces import read_record
from broker_engine.worker import Worker
from broker_engine.worker.system import SYSTEM_TASKS, Resources, system_tasks
from broker_engine.worker.worker import GRACE_SECONDS

app = typer.Typer()

_log = structlog.get_logger(__name__)


@command(
    app,
    "system",
    example="broker-engine system\nbroker-engine system --only INLINE --only SWITCH --ns shop",
    json=False,
    role=True,
)
def system(
    session: Session,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="TYPE", help="Serve this type; may be repeated (default: all)")
    ] = None,
    grace: Annotated[
        float, typer.Option(min=0.0, help="Seconds that running tasks may take to end when the worker is stopped.")
    ] = GRACE_SECONDS,
) -> None:
    """Run the tasks that the engine brings itself: INLINE, JSON_JQ_TRANSFORM, HTTP, KAFKA_PUBLISH, EVENT and scripts.

    They are handed out to domain `system`. Run one or more per namespace; its processes need to reach what workflows
    call. JavaScript, jq and HTTP need the extra `broker-engine[system]`.
    """
    unknown = sorted({*(only or ())} - {*SYSTEM_TASKS})
    if unknown:
        raise typer.BadParameter(f"{', '.join(unknown)} is not one of {', '.join(SYSTEM_TASKS)}", param_hint="--only")
    configure(session.flags.log_level or LogLevel.INFO, role="system")

    def work(stopping: Stopping) -> None:
        log, namespace = session.cluster(), session.namespace
        record = patiently(
            session,
            stopping,
            lambda: read_record(log, namespace),
            waits_for=f"namespace {namespace.name}, which the first decider creates",
        )
        if record is None:
            return
        resources = Resources(log, ConfluentLog, f"{namespace.name}.system")
        tasks = [task for task in system_tasks(resources) if not only or task.name in only]
        running = Worker(log, tasks, namespace=namespace, grace_seconds=grace)
        stopping.then(running.stop)
        try:
            running.run()
        finally:
            resources.close()

    run_until_stopped(work)
    # As in `broker-engine worker`: a task that outlived the grace time holds a thread that cannot be ended.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
