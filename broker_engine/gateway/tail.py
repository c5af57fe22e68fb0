"""The one thread that follows the topics: states into the read model, definitions and presence into memory.

Requests read what it has taken in, and wait for it where they have to see what they just did. Nothing else in the
gateway reads states from Kafka, so a request costs no consumer.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import orjson
import structlog

from broker_engine.errors import DecodeError
from broker_engine.gateway.read_model import (
    Changes,
    ReadModel,
    logs,
    snapshots,
    task_row,
    tasks,
    workflow_row,
    workflows,
)
from broker_engine.log.ports import BEGINNING, PROMPT_MS, Admin, Isolation, Log, Reader, Record, TopicPartition
from broker_engine.model.state import TaskState, WorkflowState
from broker_engine.topics import Namespace, Topic, partition_of
from broker_engine.wire.codecs import DEFINITION, PRESENCE, SNAPSHOT, TASK_LOG, TASK_STATE, WORKFLOW_STATE
from broker_engine.worker.views import Heard

_log = structlog.get_logger(__name__)

_STATES = (Topic.WORKFLOW_STATE, Topic.TASK_STATE, Topic.SNAPSHOTS, Topic.TASK_LOGS)
_DEFINITIONS = (Topic.TASK_DEFS, Topic.WORKFLOW_DEFS, Topic.CRON)
_IN_MEMORY = (*_DEFINITIONS, Topic.WORKERS)
#: Records per transaction of the read model.
_BATCH = 2_000
#: The end of a transaction is no record: it shows when a read ends without one.
_READ_SECONDS = 0.01
#: A quiet read model is stamped this often, so that it does not seem old; positions that moved are stored with it.
_STAMP_SECONDS = 60.0
_PROGRESS_SECONDS = 2.0
_RETRY_SECONDS = 0.5
#: How long a request waits for what it did to be readable.
SEEN_SECONDS = 10.0


class Tail:
    """Follows a namespace until closed."""

    def __init__(self, log: Log, namespace: Namespace, partitions: int, model: ReadModel, origin: str) -> None:
        self._log = log
        self._namespace = namespace
        self._partitions = partitions
        self._model = model
        self._origin = origin
        self._admin: Admin = log.admin()
        self._kinds: dict[str, Callable[[Record, Changes], None]] = {
            namespace.topic(Topic.WORKFLOW_STATE): self._workflow,
            namespace.topic(Topic.TASK_STATE): self._task,
            namespace.topic(Topic.SNAPSHOTS): self._snapshot,
            namespace.topic(Topic.TASK_LOGS): self._task_log,
            namespace.topic(Topic.TASK_DEFS): self._definition,
            namespace.topic(Topic.WORKFLOW_DEFS): self._definition,
            namespace.topic(Topic.CRON): self._definition,
            namespace.topic(Topic.WORKERS): self._worker,
        }
        #: Definitions by topic and key, as they were registered.
        self._definitions: dict[str, dict[str, dict[str, Any]]] = {namespace.topic(topic): {} for topic in _DEFINITIONS}
        self._heard: dict[bytes, Heard] = {}
        self._positions: dict[TopicPartition, int] = {}
        #: Where everything ended when the thread began.
        self._goal: dict[TopicPartition, int] = {}
        self._changed = threading.Condition()
        self._watchers: dict[str, set[Callable[[], None]]] = {}
        self._on_task: list[Callable[[TaskState], None]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tail", daemon=True)
        self.failure: str | None = None

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(10.0)
        self._admin.close()

    # --- what is known

    def task_definitions(self) -> Mapping[str, dict[str, Any]]:
        """By name."""
        return self._definitions[self._namespace.topic(Topic.TASK_DEFS)]

    def schedules(self) -> Mapping[str, dict[str, Any]]:
        """By name."""
        return self._definitions[self._namespace.topic(Topic.CRON)]

    def workflow_definitions(self) -> Mapping[str, dict[str, Any]]:
        """By ``name:version``."""
        return self._definitions[self._namespace.topic(Topic.WORKFLOW_DEFS)]

    def presence(self) -> list[Heard]:
        """The last word of each worker about each of its queues."""
        return list(self._heard.values())

    def on_task(self, act: Callable[[TaskState], None]) -> None:
        """Call this with every task state that is read, in the thread of the tail."""
        self._on_task.append(act)

    @property
    def is_caught_up(self) -> bool:
        """Whether everything that was there at the start has been read."""
        return bool(self._goal) and self._rest(self._goal) == 0

    def lag(self) -> int:
        """How many offsets behind the read model is now; asks the broker."""
        return self._rest(self._ends(self._goal or self._all(), Isolation.COMMITTED))

    # --- waiting

    def see(self, tps: Iterable[TopicPartition], timeout: float = SEEN_SECONDS) -> bool:
        """Wait until what stands in these partitions now can be read here."""
        ends = self._ends(tps, Isolation.UNCOMMITTED)
        with self._changed:
            return self._changed.wait_for(lambda: self._rest(ends) == 0 or self._stop.is_set(), timeout)

    def see_workflow(self, workflow_id: str) -> bool:
        """Wait until what is known of a workflow now can be read here."""
        number = partition_of(workflow_id, self._partitions)
        return self.see(self._tp(topic, number) for topic in (Topic.WORKFLOW_STATE, Topic.TASK_STATE, Topic.SNAPSHOTS))

    def see_definitions(self) -> bool:
        return self.see(self._tp(topic, 0) for topic in _DEFINITIONS)

    @contextmanager
    def watching(self, workflow_id: str) -> Iterator[asyncio.Event]:
        """An event that is set after every change of a workflow or of one of its tasks; for use in the loop of the
        server, by one coroutine."""
        changed, loop = asyncio.Event(), asyncio.get_running_loop()

        def tell() -> None:
            loop.call_soon_threadsafe(changed.set)

        with self._changed:
            self._watchers.setdefault(workflow_id, set()).add(tell)
        try:
            yield changed
        finally:
            with self._changed:
                left = self._watchers[workflow_id]
                left.discard(tell)
                if not left:
                    del self._watchers[workflow_id]

    # --- the thread

    def _run(self) -> None:
        while not self._stop.is_set():
            reader: Reader | None = None
            try:
                # Whoever waits for what he did waits for the end of a transaction, which shows with the next fetch.
                reader = self._log.reader(fetch_wait_ms=PROMPT_MS)
                self._begin(reader)
                self._follow(reader)
            except Exception as error:  # a full disk, a lost database, a broken log: said, and tried again
                self.failure = f"{type(error).__name__}: {error}"
                _log.error("gateway.tail_failed", error=self.failure)
                self._stop.wait(_RETRY_SECONDS)
            finally:
                if reader is not None:
                    reader.close()

    def _begin(self, reader: Reader) -> None:
        tps = self._all()
        ends = self._ends(tps, Isolation.COMMITTED)
        stored = self._model.open(self._origin, ends, _now_ms())
        states = {self._namespace.topic(topic) for topic in _STATES}
        begins = {tp: stored.get(tp, BEGINNING) if tp.topic in states else BEGINNING for tp in tps}
        reader.assign(begins)
        with self._changed:
            self._positions = {tp: max(at, 0) for tp, at in begins.items()}
            self._goal = ends
        self.failure = None

    def _follow(self, reader: Reader) -> None:
        next_stamp = time.monotonic() + _STAMP_SECONDS
        next_word = time.monotonic() + _PROGRESS_SECONDS
        was_caught_up = False
        while not self._stop.is_set():
            records = reader.read(_BATCH, _READ_SECONDS)
            positions = {tp: at for tp in self._goal if (at := reader.position(tp)) > self._positions[tp]}
            touched: set[str] = set()
            is_time = time.monotonic() >= next_stamp
            if records or is_time:
                touched = self._take_in(records, positions)
                next_stamp = time.monotonic() + _STAMP_SECONDS
            if positions:
                self._advance(positions, touched)
            if not was_caught_up and self.is_caught_up:
                was_caught_up = True
                _log.info("gateway.read_model_ready", records_behind=0)
            elif not was_caught_up and time.monotonic() >= next_word:
                next_word = time.monotonic() + _PROGRESS_SECONDS
                _log.info("gateway.read_model_behind", offsets=self._rest(self._goal), of=sum(self._goal.values()))

    def _take_in(self, records: list[Record], positions: Mapping[TopicPartition, int]) -> set[str]:
        """Store a batch; the workflows that it was about."""
        changes = Changes.none()
        for record in records:
            try:
                self._kinds[record.topic](record, changes)
            except (DecodeError, UnicodeDecodeError, orjson.JSONDecodeError, ValueError) as error:
                _log.warning("gateway.unreadable", topic=record.topic, offset=record.offset, error=str(error))
        states = {self._namespace.topic(topic) for topic in _STATES}
        stored = {tp: at for tp, at in {**self._positions, **positions}.items() if tp.topic in states}
        self._model.write(changes, stored, _now_ms())
        touched = {row["workflow_id"] for table in (workflows, tasks) for row in changes.put.get(table, {}).values()}
        return touched | set(changes.removed.get(workflows, ()))

    def _advance(self, positions: Mapping[TopicPartition, int], touched: set[str]) -> None:
        with self._changed:
            self._positions |= positions
            self._changed.notify_all()
            tell = [act for name in touched & self._watchers.keys() for act in self._watchers[name]]
        for act in tell:
            try:
                act()
            except RuntimeError:  # the loop of the server has ended
                _log.debug("gateway.watcher_gone")

    # --- records

    def _workflow(self, record: Record, changes: Changes) -> None:
        if record.value is None:
            changes.remove(workflows, (record.key or b"").decode(), record.offset)
            return
        state: WorkflowState = WORKFLOW_STATE.decode(record.value)
        changes.keep(workflows, state.workflow_id, workflow_row(state, record.value, record.offset))

    def _task(self, record: Record, changes: Changes) -> None:
        if record.value is None:
            changes.remove(tasks, (record.key or b"").decode(), record.offset)
            return
        task: TaskState = TASK_STATE.decode(record.value)
        changes.keep(tasks, task.task_id, task_row(task, record.value, record.offset))
        for act in self._on_task:
            act(task)

    def _snapshot(self, record: Record, changes: Changes) -> None:
        if record.value is not None:  # other partitions may still use one that is removed in this
            found = SNAPSHOT.decode(record.value)
            row = {"content_hash": found.content_hash, "log_offset": 0, "document": found.document}
            changes.keep(snapshots, found.content_hash, row)

    def _task_log(self, record: Record, changes: Changes) -> None:
        line = TASK_LOG.decode(record.value)
        row = {
            "partition": record.partition,
            "log_offset": record.offset,
            "task_id": line.task_id,
            "created_at": line.created_at_ms,
            "line": line.line,
        }
        changes.keep(logs, (record.partition, record.offset), row)

    def _definition(self, record: Record, _changes: Changes) -> None:
        known, key = self._definitions[record.topic], (record.key or b"").decode()
        changed = dict(known)  # replaced, not changed: requests walk through it meanwhile
        if record.value is None:
            changed.pop(key, None)
        else:
            document = orjson.loads(DEFINITION.decode(record.value).document)
            changed[key] = {name: value for name, value in document.items() if value is not None}
        self._definitions[record.topic] = changed

    def _worker(self, record: Record, _changes: Changes) -> None:
        heard = dict(self._heard)
        if record.value is None:
            heard.pop(record.key or b"", None)
        else:
            heard[record.key or b""] = Heard(PRESENCE.decode(record.value), record.timestamp_ms)
        self._heard = heard

    # --- offsets

    def _all(self) -> list[TopicPartition]:
        tps = [self._tp(topic, number) for topic in _STATES for number in range(self._partitions)]
        return tps + [self._tp(topic, 0) for topic in _IN_MEMORY]

    def _tp(self, topic: Topic, number: int) -> TopicPartition:
        return TopicPartition(self._namespace.topic(topic), number)

    def _rest(self, ends: Mapping[TopicPartition, int]) -> int:
        return sum(max(end - self._positions.get(tp, 0), 0) for tp, end in ends.items())

    def _ends(self, tps: Iterable[TopicPartition], isolation: Isolation) -> dict[TopicPartition, int]:
        return self._admin.end_offsets(list(tps), isolation)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
