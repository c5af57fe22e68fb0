"""`broker-engine gateway`: Conductor's REST API, with HTTP workers and search."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import structlog
import typer

from broker_engine.cli.logs import LogLevel, configure
from broker_engine.cli.roles import Stopping, patiently, run_until_stopped
from broker_engine.cli.session import Session, command
from broker_engine.log.namespaces import read_record

app = typer.Typer()

_log = structlog.get_logger(__name__)

DEFAULT_PORT = 8080


@command(
    app,
    "gateway",
    example="broker-engine gateway --kafka localhost:9092\n"
    "broker-engine gateway --port 8090 --ns shop --data /var/lib/shop\n"
    "broker-engine gateway --database postgresql+psycopg://engine@db/engine",
    json=False,
    role=True,
)
def gateway(
    session: Session,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = DEFAULT_PORT,
    host: Annotated[
        str, typer.Option(help="Where to listen. There is no access control: other machines only behind a proxy.")
    ] = "127.0.0.1",
    data: Annotated[
        Path | None, typer.Option(help="Folder of the read model; losing it loses nothing.", show_default=False)
    ] = None,
    database: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Keep the read model there: postgresql+psycopg://… (default: SQLite in the folder)"
        ),
    ] = None,
) -> None:
    """Serve Conductor's REST API under /api. Run one or more per namespace.

    Waits for the broker and for the namespace, which the first decider creates.
    """
    session.with_settings(data_dir=data)
    configure(session.flags.log_level or LogLevel.INFO, role="gateway")

    def work(stopping: Stopping) -> None:
        # Imported here: FastAPI takes half a second, which a misspelt option should not.
        from broker_engine.gateway.hub import Hub
        from broker_engine.gateway.server import Server

        log, namespace = session.cluster(), session.namespace
        record = patiently(
            session,
            stopping,
            lambda: read_record(log, namespace),
            waits_for=f"namespace {namespace.name}, which the first decider creates",
        )
        if record is None:
            return
        folder = session.settings.data_dir / "gateway"
        hub = Hub(log, namespace, key=session.settings.key, data=folder, database=database)
        try:
            server = Server(hub, host=host, port=port)
            hub.start()
            stopping.then(server.stop)
            _log.info("gateway.started", url=server.url, namespace=namespace.name, kafka=session.bootstrap)
            server.run()
        finally:
            hub.close()
        _log.info("gateway.stopped")

    run_until_stopped(work)
