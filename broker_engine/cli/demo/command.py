"""The command: a broker, the roles, the import, and what to look at afterwards."""

from __future__ import annotations

import tempfile
import uuid
from pathlib import Path
from typing import Annotated

import structlog
import typer
from rich.console import Console

from broker_engine.cli import exits, output
from broker_engine.cli.demo.peek import read_task
from broker_engine.cli.demo.progress import Progress
from broker_engine.cli.demo.rows import cut, find_file
from broker_engine.cli.demo.run import DemoFailed, Import, plain_console, roles
from broker_engine.cli.demo.verdict import Verdict
from broker_engine.cli.logs import LogLevel, configure
from broker_engine.cli.roles import Stopping, signals
from broker_engine.cli.session import Session, command
from broker_engine.errors import BrokerEngineError
from broker_engine.log.confluent import ConfluentLog
from broker_engine.runtime.dev import Supervisor
from broker_engine.runtime.local_broker import find_or_start
from broker_engine.runtime.local_broker.broker import last_lines
from broker_engine.runtime.local_broker.progress import jar_progress
from broker_engine.topics import Namespace, Topic

app = typer.Typer()

_log = structlog.get_logger(__name__)


@command(app, "demo", example="broker-engine demo\nbroker-engine demo --kafka localhost:9092 --rows-per-chunk 50")
def demo(
    session: Session,
    rows_per_chunk: Annotated[int, typer.Option(min=1, max=10_000, help="Rows per workflow.")] = 100,
    limit_rows: Annotated[int | None, typer.Option(min=3, help="Only the first so many rows of the file.")] = None,
) -> None:
    """Import a CSV file of 28,000 airports with some hundred workflows, killing a decider and a worker on the way.

    Starts its own broker unless --kafka names one; a named one keeps the demo's topics for you to look at. Leaves no
    process and no file behind.
    """
    configure(session.flags.log_level or LogLevel.ERROR)
    console = plain_console(to_stderr=session.json)
    with signals() as stopping, tempfile.TemporaryDirectory(prefix="broker-engine-demo-") as folder:
        try:
            verdict = _run(session, Path(folder), rows_per_chunk, limit_rows, stopping, console)
        except BrokerEngineError as error:
            _log.debug("demo.failed", exc_info=error)
            if session.json:
                output.json_out({"ok": False, "result": f"demo failed: {error}"})
            console.print(f"demo failed: {error}", markup=False)
            raise typer.Exit(exits.exit_code(error)) from error
    if session.json:
        output.json_out(verdict.as_json())
    console.print(verdict.last_line(), markup=False)
    if verdict.problems:
        raise typer.Exit(exits.FAILED)


def _run(
    session: Session,
    folder: Path,
    rows_per_chunk: int,
    limit_rows: int | None,
    stopping: Stopping,
    console: Console,
) -> Verdict:
    source = cut(find_file(), folder, rows_per_chunk, limit_rows)
    if len(source.chunks) < 3:
        raise DemoFailed(f"{source.rows} rows make {len(source.chunks)} chunks; the demo needs 3: fewer rows per chunk")
    console.print(
        f"{source.file.name}: {source.rows} rows, {source.broken} of them broken on purpose, in {len(source.chunks)} "
        f"chunks",
        markup=False,
    )
    given = session.given_bootstrap
    with jar_progress(console) as progress:
        broker = find_or_start(given, folder / "broker", progress=progress)
    namespace = Namespace(session.flags.ns or f"demo-{uuid.uuid4().hex[:6]}")
    with broker:
        console.print(f"Kafka at {broker.bootstrap}, namespace {namespace.name}", markup=False)
        supervisor = Supervisor(
            log_folder=folder / "logs",
            environment={
                "BROKER_ENGINE_KAFKA__BOOTSTRAP_SERVERS": broker.bootstrap,
                "BROKER_ENGINE_NAMESPACE": namespace.name,
            },
        )
        try:
            supervisor.start(roles(folder))
            running = Import(
                log=ConfluentLog(broker.bootstrap, conf=session.settings.kafka.conf),
                namespace=namespace,
                supervisor=supervisor,
                stopping=stopping,
                source=source,
                folder=folder,
                console=console,
            )
            verdict, seen = running.run()
            _summary(console, verdict, seen, broker.bootstrap, namespace, is_kept=given is not None)
        except BrokerEngineError:
            _show_logs(console, supervisor, folder)
            raise
        finally:
            supervisor.stop(timeout=10.0)
    return verdict


def _show_logs(console: Console, supervisor: Supervisor, folder: Path) -> None:
    """The ends of the roles' logs, which go with the folder."""
    for log in sorted((folder / "logs").glob("*.log")):
        console.print(f"\nThe end of {log.name}:\n{''.join(last_lines(log, 15))}", markup=False)
    console.print(f"Running: {', '.join(supervisor.pids) or 'nothing'}\n", markup=False)


def _summary(
    console: Console, verdict: Verdict, progress: Progress, bootstrap: str, namespace: Namespace, *, is_kept: bool
) -> None:
    """The figures, where to look, and one task as a plain consumer sees it."""
    rows = [
        ("rows imported / skipped", f"{verdict.imported} / {verdict.skipped}"),
        ("workflows completed / lost", f"{verdict.workflows} / {verdict.lost}"),
        ("attempts / of them retries", f"{verdict.attempts} / {verdict.retries}"),
        ("timed out with a killed worker", verdict.timed_out),
        ("503 by the notifier", verdict.refused_by_notifier),
        ("reports repeated / accepted twice", f"{verdict.repeated_reports} / {verdict.duplicated}"),
        ("workflow time p50 / p99", f"{verdict.p50_ms} / {verdict.p99_ms} ms"),
    ]
    console.print()
    console.print(output.make_table(("", f"after {verdict.seconds} s"), rows))
    retried = next((task for task in progress.tasks.values() if task.attempt > 0), None)
    task = retried or next(iter(progress.tasks.values()))
    topic = namespace.topic(Topic.TASK_STATE)
    state = read_task(bootstrap, topic, task.task_id)
    shown = {name: value for name, value in state.items() if value not in (None, "", False)}
    console.print(f"\nOne task, read from {topic} with a plain Kafka consumer (cli/demo/peek.py):")
    for name, value in shown.items():
        console.print(f"  {name:16} {value.decode() if isinstance(value, bytes) else value}", markup=False)
    options = f"--kafka {bootstrap} --ns {namespace.name}"
    if is_kept:
        console.print(f"\nLook further:\n  broker-engine workflow get {task.workflow_id} {options}", markup=False)
        console.print(f"  broker-engine workflow list {options}\n  broker-engine topics list {options}\n", markup=False)
    else:
        console.print(
            "\nThis broker and its topics end with the demo. To keep them: `broker-engine kafka start`, then "
            "`broker-engine demo --kafka HOST:PORT`, and look with `broker-engine workflow list`.\n",
            markup=False,
        )
