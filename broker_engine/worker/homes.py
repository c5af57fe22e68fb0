"""Where the hand-outs of a worker's task types stand: each on a topic of its own, or on the one that its domain shares.

A task type is read wherever something of it may stand. Its own topic: always, but a shared type's only once there is
one. The shared topic: while the definition says so, and also when it once did (its group has read there), so that
nothing is left behind when a definition changes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence

import orjson
import structlog

from broker_engine.errors import DecodeError, LogError
from broker_engine.log.ports import BEGINNING, FOLLOW_MS, Admin, Isolation, Log, Reader, TopicPartition
from broker_engine.topics import Namespace, Topic
from broker_engine.wire.codecs import DEFINITION
from broker_engine.worker.task import TaskWorker

_log = structlog.get_logger(__name__)

#: How often is looked for a task type that has become a shared one, and for the topics of those that are.
EVERY_SECONDS = 1.0

#: Starts to serve a task type, (True) on the shared topic of its domain.
Serve = Callable[[TaskWorker, bool], threading.Thread]


class Homes:
    """Starts a thread per topic that a task type is read on; ``run`` ends with the last of them."""

    def __init__(self, log: Log, namespace: Namespace, tasks: Sequence[TaskWorker], serve: Serve) -> None:
        self._log = log
        self._namespace = namespace
        self._serve = serve
        self._tp = TopicPartition(namespace.topic(Topic.TASK_DEFS), 0)
        #: Task types that are not read on their own topic, or not on the shared one.
        self._without_own = list(tasks)
        self._without_shared = list(tasks)
        self._names = frozenset(task.name for task in tasks)
        self._is_shared: dict[str, bool] = {}
        self._threads: list[threading.Thread] = []
        #: Groups that have been asked whether they ever read a shared topic.
        self._asked: set[tuple[str, str]] = set()

    def run(self, stop: threading.Event) -> None:
        """Serve until stopped; Kafka's errors are told and met by looking again."""
        reader = self._log.reader(fetch_wait_ms=FOLLOW_MS)
        try:
            self._begin(reader)
            while not stop.wait(EVERY_SECONDS):
                try:
                    self._read_on(reader)
                    self._look()
                except LogError as error:
                    _log.warning("worker.homes_unknown", error=str(error))
        finally:
            reader.close()
            for thread in self._threads:
                thread.join()

    def _begin(self, reader: Reader) -> None:
        """Read the definitions that there are; whatever is not known to be shared is served at once."""
        try:
            admin = self._log.admin()
            try:
                end = admin.end_offsets([self._tp], Isolation.COMMITTED)[self._tp]
            finally:
                admin.close()
            reader.assign({self._tp: BEGINNING})
            while reader.position(self._tp) < end:
                self._read_on(reader, 0.2)
        except LogError as error:
            _log.warning("worker.homes_unknown", error=str(error))
        for task in [task for task in self._without_own if not self._is_shared.get(task.name)]:
            self._start(task, shared=False)
        try:
            self._look()
        except LogError as error:
            _log.warning("worker.homes_unknown", error=str(error))

    def _read_on(self, reader: Reader, timeout: float = 0.0) -> None:
        for record in reader.read(1_000, timeout):
            name = (record.key or b"").decode()
            if name not in self._names:
                continue
            try:
                document = orjson.loads(DEFINITION.decode(record.value).document) if record.value is not None else {}
            except (DecodeError, orjson.JSONDecodeError) as error:
                _log.warning("worker.definition_undecodable", name=name, error=str(error))
                continue
            self._is_shared[name] = bool(document.get("sharedQueue"))

    def _look(self) -> None:
        if not self._without_own and not any(self._is_shared.values()) and not self._may_have_read():
            return
        admin = self._log.admin()
        try:
            topics = admin.topics()
            for task in list(self._without_own):
                if not self._is_shared.get(task.name) or self._namespace.schedule(task.domain, task.name) in topics:
                    self._start(task, shared=False)
            for task in list(self._without_shared):
                shared = self._namespace.shared_schedule(task.domain)
                is_wanted = self._is_shared.get(task.name) or self._has_read(admin, task, topics.get(shared, 0))
                if shared in topics and is_wanted:
                    self._start(task, shared=True)
        finally:
            admin.close()

    def _may_have_read(self) -> bool:
        """Whether some task type has not been asked about yet."""
        return any((task.domain, task.name) not in self._asked for task in self._without_shared)

    def _has_read(self, admin: Admin, task: TaskWorker, partitions: int) -> bool:
        """Whether its group has read the shared topic before (asked once)."""
        if (task.domain, task.name) in self._asked:
            return False
        self._asked.add((task.domain, task.name))
        shared = self._namespace.shared_schedule(task.domain)
        tps: Collection[TopicPartition] = [TopicPartition(shared, number) for number in range(partitions)]
        if not tps:
            return False
        group = self._namespace.shared_worker_group(task.domain, task.name)
        return any(admin.committed(group, tps, require_stable=False).values())

    def _start(self, task: TaskWorker, *, shared: bool) -> None:
        (self._without_shared if shared else self._without_own).remove(task)
        thread = self._serve(task, shared)
        self._threads.append(thread)
        thread.start()
