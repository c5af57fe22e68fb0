"""`broker-engine dev`: a broker and every role on this machine, in one command."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path
from typing import Annotated

import structlog
import typer

from broker_engine.cli import output, sample
from broker_engine.cli.gateway import DEFAULT_PORT
from broker_engine.cli.logs import LogLevel
from broker_engine.cli.roles import Stopping, signals
from broker_engine.cli.session import Session, command
from broker_engine.cli.worker import find_tasks
from broker_engine.errors import BrokerEngineError
from broker_engine.log.confluent import ConfluentLog
from broker_engine.runtime.dev import Role, Supervisor
from broker_engine.runtime.local_broker import FoundBroker, LocalBroker, find_or_start
from broker_engine.runtime.local_broker.errors import PortInUse
from broker_engine.runtime.local_broker.ports import ReservedPort, reserve_port
from broker_engine.runtime.local_broker.progress import jar_progress
from broker_engine.worker import Client

app = typer.Typer()

_log = structlog.get_logger(__name__)


@command(
    app,
    "dev",
    example="broker-engine dev\nbroker-engine dev --workers shop.tasks --data /tmp/shop --decider-slots 2",
    json=False,
    role=True,
)
def dev(
    session: Session,
    data: Annotated[
        Path | None, typer.Option(help="Folder of everything that is kept (default: .broker-engine)")
    ] = None,
    port: Annotated[
        int | None, typer.Option("--port", min=1, max=65535, help="The broker's port (default: a free one)")
    ] = None,
    workers: Annotated[
        list[str] | None,
        typer.Option(metavar="MODULE[:ATTR]", help="Tasks to run; may be repeated (default: a sample)"),
    ] = None,
    decider_slots: Annotated[int, typer.Option(min=1, max=32, help="How many deciders.")] = 1,
    http_port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="The gateway's port (default: 8080, or a free one if that is taken)"),
    ] = None,
) -> None:
    """Run a Kafka broker and every role, start again what ends by itself, and stop all of it with Ctrl-C.

    The broker is the one given by --kafka, or one that runs on the data folder already, or a new one on that folder. A
    second Ctrl-C ends everything at once.
    """
    session.with_settings(data_dir=data)
    folder = session.settings.data_dir.expanduser().resolve()
    modules = workers or [sample.__name__]
    find_tasks(modules)  # a misspelt module should be said here, not by a process that starts again and again
    with signals() as stopping:
        with jar_progress() as progress:
            broker = find_or_start(session.given_bootstrap, folder / "broker", port=port, progress=progress)
        http = _http_port(http_port)
        with broker, closing(http.lock):
            supervisor = Supervisor(environment=_environment(session, broker))
            try:
                supervisor.start(_roles(session, folder, modules, decider_slots, http.number))
                url = f"http://127.0.0.1:{http.number}/api"
                _introduce_when_ready(session, broker, folder, supervisor, stopping, url, is_sample=not workers)
                _watch(supervisor, broker, stopping)
            finally:
                supervisor.stop()
                _log.info("dev.stopped")


def _http_port(given: int | None) -> ReservedPort:
    """The given port, else the usual one, else any: two of these on one machine should both start."""
    if given is not None:
        return reserve_port(given)
    try:
        return reserve_port(DEFAULT_PORT)
    except PortInUse:
        return reserve_port()


def _environment(session: Session, broker: FoundBroker) -> dict[str, str]:
    """What the roles need to know; in the environment, because command lines can be read by everybody."""
    known = {
        "BROKER_ENGINE_KAFKA__BOOTSTRAP_SERVERS": broker.bootstrap,
        "BROKER_ENGINE_NAMESPACE": session.settings.namespace,
    }
    if session.settings.key is not None:
        known["BROKER_ENGINE_NAMESPACE_KEY"] = session.settings.key
    return known


def _roles(session: Session, folder: Path, modules: list[str], decider_slots: int, http_port: int) -> list[Role]:
    # The roles' own news are noise to most; warnings are not.
    level = ("--log-level", session.flags.log_level or LogLevel.WARNING)
    caches = str(folder / "decider")
    return [
        *(
            Role(name=f"decider-{slot}", arguments=("decider", "--slot", str(slot), "--data", caches, *level))
            for slot in range(decider_slots)
        ),
        Role(name="delays", arguments=("delays", *level)),
        Role(name="gateway", arguments=("gateway", "--port", str(http_port), "--data", str(folder), *level)),
        Role(name="worker", arguments=("worker", *modules, *level)),
        Role(name="system", arguments=("system", *level)),
    ]


def _watch(supervisor: Supervisor, broker: FoundBroker, stopping: Stopping) -> None:
    while not stopping.wait(0.1):
        supervisor.watch()
        if isinstance(broker, LocalBroker) and not broker.is_running:
            _log.warning("dev.broker_ended", restarts_on=broker.bootstrap)
            broker.restart()


def _introduce_when_ready(
    session: Session,
    broker: FoundBroker,
    folder: Path,
    supervisor: Supervisor,
    stopping: Stopping,
    url: str,
    *,
    is_sample: bool,
) -> None:
    """Say where things are once a decider answers; in a thread, because the roles must be watched meanwhile."""

    def introduce() -> None:
        log = ConfluentLog(broker.bootstrap, conf=session.settings.kafka.conf)
        while not stopping.is_asked:
            try:
                with Client(log, session.namespace, key=session.settings.key, operator="dev") as client:
                    if is_sample:
                        client.register_workflow(sample.WORKFLOW, overwrite=True)
                    else:
                        client.workflow_definitions()
                    break
            except BrokerEngineError:
                stopping.wait(0.5)
        if not stopping.is_asked:
            _introduce(session, broker, folder, supervisor, url, is_sample=is_sample)

    threading.Thread(target=introduce, name="introduce", daemon=True).start()


def _introduce(
    session: Session, broker: FoundBroker, folder: Path, supervisor: Supervisor, url: str, *, is_sample: bool
) -> None:
    options = f"--kafka {broker.bootstrap}"
    if session.settings.namespace != "engine":
        options += f" --ns {session.settings.namespace}"
    if session.settings.key is not None:
        options += " --key …"
    where = f"started here, data in {folder / 'broker'}" if isinstance(broker, LocalBroker) else "was there already"
    output.line(f"Kafka      {broker.bootstrap} ({where})")
    output.line(f"Namespace  {session.settings.namespace}")
    output.line(f"API        {url}")
    output.line(f"Roles      {', '.join(f'{name} (pid {pid})' for name, pid in supervisor.pids.items())}")
    if is_sample:
        output.line(f'Try        broker-engine workflow start greeting --input \'{{"name": "Ada"}}\' --wait {options}')
    output.line(f"Look       broker-engine workflow list {options}")
    output.line("Stop       Ctrl-C")
