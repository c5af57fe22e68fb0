"""`broker-engine decider`: the role that decides; the first one creates the namespace."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import structlog
import typer

from broker_engine.cli.logs import LogLevel, configure
from broker_engine.cli.roles import Stopping, patiently, run_until_stopped
from broker_engine.cli.session import Session, command
from broker_engine.runtime.namespace import ensure
from broker_engine.runtime.processor import Processor

app = typer.Typer()

_log = structlog.get_logger(__name__)


@command(
    app,
    "decider",
    example="broker-engine decider --kafka localhost:9092\nbroker-engine decider --slot 1 --ns shop --data /tmp/slot-1",
    json=False,
    role=True,
)
def decider(
    session: Session,
    slot: Annotated[
        str | None,
        typer.Option(help="Which of several deciders this is; stable over restarts (env: BROKER_ENGINE_SLOT)"),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder of the local caches; losing it loses nothing.", show_default=False)
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option(min=1, max=1_000, help="Partitions of a new namespace (fixed from then on) (default: 8)"),
    ] = None,
) -> None:
    """Run a decider: reads commands, decides, writes states and work. Run one or more per namespace.

    Creates the namespace's topics if they are missing, refuses to start when they are not safe to use, and waits for a
    broker that does not answer.
    """
    session.with_settings(slot=slot, data_dir=data, partitions=partitions)
    settings = session.settings
    configure(session.flags.log_level or LogLevel.INFO, role=f"decider-{settings.slot}")

    def work(stopping: Stopping) -> None:
        log, namespace = session.cluster(), session.namespace
        record = patiently(
            session,
            stopping,
            lambda: ensure(
                log,
                namespace,
                partitions=settings.partitions,
                signer=session.signer,
                now_ms=time.time_ns() // 1_000_000,
            ),
            waits_for="the broker",
        )
        if record is None:
            return
        if partitions is not None and partitions != record.partitions:
            _log.warning("decider.partitions_ignored", asked=partitions, namespace_has=record.partitions)
        processor = Processor(log, namespace, settings, partitions=record.partitions)
        stopping.then(processor.stop)
        _log.info(
            "decider.started",
            namespace=namespace.name,
            kafka=session.bootstrap,
            partitions=record.partitions,
            has_key=not session.signer.is_open,
        )
        processor.run()
        _log.info("decider.stopped", decided=processor.decided, transactions=processor.transactions)

    run_until_stopped(work)
