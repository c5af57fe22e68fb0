"""What all requests share: one client, one tail with its read model, one set of pollers. Opened once per process."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson

from broker_engine.errors import NotFound, UnsafeSettings
from broker_engine.gateway.polling import Pollers
from broker_engine.gateway.read_model import ReadModel
from broker_engine.gateway.tail import Tail
from broker_engine.log.namespaces import check_key, open_existing
from broker_engine.log.ports import Log
from broker_engine.model.commands import AnyCommand
from broker_engine.model.state import TaskState, WorkflowState
from broker_engine.topics import Namespace, Topic
from broker_engine.wire.codecs import TASK_LOG
from broker_engine.wire.records import TaskLog
from broker_engine.wire.signing import Signer
from broker_engine.worker.client import Client

#: Lines that are kept of one update, as in Conductor (`taskExecLogSizeLimit`).
MAX_LINES = 10
#: A longer line is cut.
MAX_LINE_CHARACTERS = 10_000


class Hub:
    """The gateway's connection to one namespace.

    Args:
        log: the cluster.
        namespace: must exist.
        key: the namespace key, when it has one.
        data: the folder of the read model.
        database: where it is instead, as an SQLAlchemy URL.
    """

    def __init__(
        self, log: Log, namespace: Namespace, *, key: str | None, data: Path, database: str | None = None
    ) -> None:
        self.namespace = namespace
        signer = Signer(key)
        record = open_existing(log, namespace, signer)
        check_key(record, signer)
        self._partitions = record.partitions
        self._partition_of = log.partition_of
        self.gateway_id = f"gateway-{socket.gethostname()}-{os.getpid()}-{os.urandom(3).hex()}"
        self.client = Client(log, namespace, key=key, operator="gateway")
        self.model = ReadModel(database or _file_of(data, namespace))
        self.tail = Tail(log, namespace, record.partitions, self.model, f"{namespace.name}@{record.created_at_ms}")
        self.pollers = Pollers(log, namespace, record.partitions, self.gateway_id)
        self.tail.on_task(self.pollers.heard)
        self._logs = log.writer(client_id=self.gateway_id, linger_ms=5)

    def start(self) -> None:
        self.tail.start()
        self.pollers.start()

    def close(self) -> None:
        self.pollers.close()
        self.tail.close()
        self.client.close()
        self._logs.close()
        self.model.close()

    # --- commands

    def ask(self, kind: Any, workflow_id: str, **fields: Any) -> str:  # a class of AnyCommand
        """Send a command about a workflow, and return what came of it when it can be read here."""
        answer = self.client.ask(kind, workflow_id, **fields)
        self.tail.see_workflow(workflow_id)
        return answer

    def ask_about(self, kind: type[AnyCommand], task: TaskState, **fields: Any) -> str:
        """The same about one attempt."""
        about = {"reference": task.reference, "task_id": task.task_id, "hand_out": task.hand_out}
        return self.ask(kind, task.workflow_id, **about, **fields)

    # --- looking

    def workflow(self, workflow_id: str) -> WorkflowState:
        """Raises: NotFound."""
        return self.model.workflow(workflow_id)

    def definition_of(self, state: WorkflowState) -> bytes | None:
        return self.model.snapshot(state.definition_hash)

    def live_task(self, workflow_id: str, reference: str) -> TaskState | None:
        """The attempt of a reference that has not ended, if there is one.

        Raises:
            NotFound: there is no such workflow.
        """
        found = [task for task in self.model.tasks_of(self.workflow(workflow_id)) if task.reference == reference]
        return next((task for task in reversed(found) if not task.is_terminal), None)

    def workflow_definition(self, name: str, version: int | None) -> dict[str, Any]:
        """A registered definition: this version, or the newest.

        Raises:
            NotFound: there is none.
        """
        found = {d.get("version", 1): d for d in self.tail.workflow_definitions().values() if d["name"] == name}
        chosen = max(found, default=None) if version is None else version
        if chosen not in found:
            which = "" if version is None else f" version {version}"
            raise NotFound(f"there is no workflow definition {name}{which}")
        return found[chosen]

    # --- logs

    def log_lines(self, task_id: str, workflow_id: str, lines: Iterable[str]) -> None:
        """Keep what a worker wrote about an attempt: the first of many, each of bounded length."""
        number = self._partition_of(workflow_id, self._partitions)
        now_ms = time.time_ns() // 1_000_000
        for line in list(lines)[:MAX_LINES]:
            value = TASK_LOG.encode(TaskLog(task_id, workflow_id, now_ms, line[:MAX_LINE_CHARACTERS]))
            self._logs.send(self.namespace.topic(Topic.TASK_LOGS), number, task_id.encode(), value)
        self._logs.poll(0.0)


def json_bytes(value: Any) -> bytes | None:
    """A payload as it is stored; None stays None."""
    return None if value is None else orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)


def _file_of(data: Path, namespace: Namespace) -> str:
    folder = data.expanduser().resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UnsafeSettings(f"the folder {folder} of the read model cannot be made: {error.strerror}") from error
    return f"sqlite:///{folder / f'{namespace.name}.sqlite'}"
