"""`broker-engine worker`: runs the `@task` functions of Python modules."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Annotated

import structlog
import typer

from broker_engine.cli.logs import LogLevel, configure
from broker_engine.cli.roles import Stopping, patiently, run_until_stopped
from broker_engine.cli.session import Session, command
from broker_engine.errors import BadRequest, NoAnswer, UnsafeSettings
from broker_engine.log.namespaces import check_key, read_record
from broker_engine.wire.records import NamespaceRecord
from broker_engine.worker import Client, TaskWorker, Worker
from broker_engine.worker.worker import GRACE_SECONDS

app = typer.Typer()

_log = structlog.get_logger(__name__)


@command(
    app,
    "worker",
    example="broker-engine worker shop.tasks\nbroker-engine worker shop.tasks:charge billing.tasks --ns shop",
    json=False,
    role=True,
)
def worker(
    session: Session,
    modules: Annotated[
        list[str], typer.Argument(metavar="MODULE[:ATTR]…", help="Modules with @task functions, or one such function.")
    ],
    grace: Annotated[
        float, typer.Option(min=0.0, help="Seconds that running tasks may take to end when the worker is stopped.")
    ] = GRACE_SECONDS,
) -> None:
    """Run a worker for the tasks of the given modules (imported from the current folder or as installed).

    The definitions given to `@task` are registered first. With a namespace key they are registered only if the worker
    is given the key; running tasks needs none.
    """
    configure(session.flags.log_level or LogLevel.INFO, role="worker")
    tasks = find_tasks(modules)

    def work(stopping: Stopping) -> None:
        log, namespace = session.cluster(), session.namespace
        record = patiently(
            session,
            stopping,
            lambda: read_record(log, namespace),
            waits_for=f"namespace {namespace.name}, which the first decider creates",
        )
        if record is None or not _register(session, stopping, record, tasks):
            return
        running = Worker(log, tasks, namespace=namespace, grace_seconds=grace)
        stopping.then(running.stop)
        running.run()

    run_until_stopped(work)
    # A task that outlived the grace time holds a thread that cannot be ended; its response time-out repeats it.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def find_tasks(references: list[str]) -> list[TaskWorker]:
    """The tasks in modules, each once, in the order they are found.

    Raises:
        typer.BadParameter: a module cannot be imported or holds no task.
    """
    sys.path.insert(0, os.getcwd())
    found: dict[int, TaskWorker] = {}
    for reference in references:
        tasks = _tasks_of(reference)
        if not tasks:
            raise typer.BadParameter(f"{reference} holds no @task function", param_hint="MODULE")
        found |= {id(task): task for task in tasks}
    queues = [(task.domain, task.name) for task in found.values()]
    twice = sorted({f"{domain}/{name}" for domain, name in queues if queues.count((domain, name)) > 1})
    if twice:
        raise typer.BadParameter(f"several functions serve the same queue: {', '.join(twice)}", param_hint="MODULE")
    return list(found.values())


def _tasks_of(reference: str) -> list[TaskWorker]:
    name, _, attribute = reference.partition(":")
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise typer.BadParameter(f"cannot import {name}: {error}", param_hint="MODULE") from error
    if not attribute:
        return [value for value in vars(module).values() if isinstance(value, TaskWorker)]
    if not hasattr(module, attribute):
        raise typer.BadParameter(f"module {name} has no {attribute}", param_hint="MODULE")
    value = getattr(module, attribute)
    values = value if isinstance(value, (list, tuple)) else [value]
    return [value for value in values if isinstance(value, TaskWorker)]


def _register(session: Session, stopping: Stopping, record: NamespaceRecord, tasks: list[TaskWorker]) -> bool:
    """Register the tasks' definitions, however long the first decider takes to answer; False when stopped."""
    definitions = [task.definition for task in tasks if task.definition is not None]
    if not definitions:
        return True
    try:
        check_key(record, session.signer)
    except UnsafeSettings as error:
        if not session.signer.is_open:
            raise
        _log.warning("worker.registers_nothing", reason=str(error))
        return True
    with Client(session.cluster(), session.namespace, key=session.settings.key, operator="worker") as client:
        for definition in definitions:
            if not _register_one(client, stopping, definition):
                return False
    return True


def _register_one(client: Client, stopping: Stopping, definition: object) -> bool:
    assert isinstance(definition, dict), "@task makes a dict of the fields"
    while not stopping.is_asked:
        try:
            warnings = client.register_task(definition)
        except NoAnswer:
            _log.warning("worker.waits", reason="no decider has answered yet; start one with `broker-engine decider`")
        except BadRequest as error:
            raise BadRequest(f"the definition of task {definition['name']} is not valid: {error}") from error
        else:
            for warning in warnings:
                _log.warning("worker.definition", task=definition["name"], warning=warning)
            return True
    return False
