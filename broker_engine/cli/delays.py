"""`broker-engine delays`: the role that holds back what is not due yet."""

from __future__ import annotations

import os
import socket

import structlog
import typer

from broker_engine.cli.logs import LogLevel, configure
from broker_engine.cli.roles import Stopping, patiently, run_until_stopped
from broker_engine.cli.session import Session, command
from broker_engine.log.namespaces import check_key, read_record
from broker_engine.runtime.delays import Delays

app = typer.Typer()

_log = structlog.get_logger(__name__)


@command(app, "delays", example="broker-engine delays --kafka localhost:9092 --ns shop", json=False, role=True)
def delays(session: Session) -> None:
    """Run the delay tiers: back-offs and start delays wait here. Run one or more per namespace.

    Waits for the broker and for the namespace, which the first decider creates.
    """
    configure(session.flags.log_level or LogLevel.INFO, role="delays")

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
        check_key(record, session.signer)
        client_id = f"{namespace.name}.delays-{socket.gethostname()}-{os.getpid()}"
        role = Delays(log, namespace, session.signer, client_id=client_id)
        stopping.then(role.stop)
        _log.info("delays.started", namespace=namespace.name, kafka=session.bootstrap)
        role.run()
        _log.info("delays.stopped")

    run_until_stopped(work)
