"""`broker-engine kafka`: a local broker for development and tests.

`start` leaves it running; `status` and `stop` find it through its data folder.
"""

import json
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from broker_engine.cli.exits import CONFLICT, FAILED, NOT_FOUND, UNREACHABLE
from broker_engine.errors import BrokerEngineError
from broker_engine.runtime.local_broker.detached import (
    DetachedBroker,
    default_data_dir,
    find_detached,
    start_detached,
)
from broker_engine.runtime.local_broker.errors import DataInUse, PortInUse
from broker_engine.runtime.local_broker.ports import is_free
from broker_engine.runtime.local_broker.progress import jar_progress
from broker_engine.runtime.local_broker.readiness import is_ready

USUAL_PORT = 9092  # where Kafka's tools look when nothing is said

app = typer.Typer(help="Run a local Kafka broker for development.", no_args_is_help=True)

DataOption = Annotated[Path | None, typer.Option("--data", help="Folder of the broker's data.", show_default=False)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command()
def start(
    data: DataOption = None,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Client port (default: 9092, else a free one)"),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A broker setting; may be repeated."),
    ] = None,
    broker_defaults: Annotated[
        bool, typer.Option("--broker-defaults", help="Kafka's own timings, not the quick ones.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Start a broker that keeps running (fetches Kafka the first time)."""
    data_dir = _folder(data)
    properties = dict(_pair(setting) for setting in settings or ())
    running = find_detached(data_dir)
    if running is not None:
        if port is not None and not running.bootstrap.endswith(f":{port}"):
            _fail(f"A broker already runs at {running.bootstrap}; stop it first.", CONFLICT)
        _show(running, "already running", as_json=as_json)
        return
    if port is None and is_free(USUAL_PORT):
        port = USUAL_PORT
    try:
        with jar_progress() as progress:
            started = start_detached(
                data_dir,
                port=port,
                properties=properties,
                broker_defaults=broker_defaults,
                progress=progress,
            )
    except (DataInUse, PortInUse) as error:
        _fail(str(error), CONFLICT)
    except BrokerEngineError as error:
        _fail(str(error), FAILED)
    _show(started, "running", as_json=as_json)


@app.command()
def stop(data: DataOption = None, as_json: JsonOption = False) -> None:
    """Stop the broker; its data stays. Nothing to stop is no error."""
    data_dir = _folder(data)
    running = find_detached(data_dir)
    if running is None:
        _print_state({"state": "not running", "data_dir": str(data_dir)}, as_json=as_json)
        return
    running.stop()
    _show(running, "stopped", as_json=as_json)


@app.command()
def status(data: DataOption = None, as_json: JsonOption = False) -> None:
    """Say whether the broker runs and where: exit code 3 when it does not, 5 when it is deaf."""
    data_dir = _folder(data)
    running = find_detached(data_dir)
    if running is None:
        _print_state({"state": "not running", "data_dir": str(data_dir)}, as_json=as_json)
        raise typer.Exit(NOT_FOUND)
    if not is_ready(running.bootstrap):
        _show(running, "not answering", as_json=as_json)
        raise typer.Exit(UNREACHABLE)
    _show(running, "running", as_json=as_json)


def _folder(data: Path | None) -> Path:
    return (data or default_data_dir()).expanduser().resolve()


def _pair(setting: str) -> tuple[str, str]:
    key, equals, value = setting.partition("=")
    if not equals or not key.strip():
        raise typer.BadParameter(f"{setting!r} is not KEY=VALUE", param_hint="--set")
    return key.strip(), value.strip()


def _show(broker: DetachedBroker, state: str, *, as_json: bool) -> None:
    _print_state({"state": state, **broker.as_json()}, as_json=as_json)


def _print_state(fields: dict[str, object], *, as_json: bool) -> None:
    console = Console(soft_wrap=True, highlight=False)
    if as_json:
        console.print(json.dumps(fields), markup=False)
        return
    where = f" at {fields['bootstrap']} (pid {fields['pid']})" if "pid" in fields else ""
    console.print(f"Kafka is {fields['state']}{where}; data in {fields['data_dir']}", markup=False)


def _fail(message: str, code: int) -> NoReturn:
    Console(stderr=True, soft_wrap=True, highlight=False).print(message, markup=False)
    raise typer.Exit(code)
