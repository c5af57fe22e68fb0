"""Signs of life: what each worker serves and how many slots it has free, every few seconds on ``<ns>.workers``."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

import structlog

from broker_engine import __version__
from broker_engine.errors import DecodeError, LogError
from broker_engine.log.ports import BEGINNING, FOLLOW_MS, Log, TopicPartition, Writer
from broker_engine.topics import Namespace, Topic
from broker_engine.wire.codecs import PRESENCE
from broker_engine.wire.records import WorkerPresence
from broker_engine.worker.slots import Slots
from broker_engine.worker.task import TaskWorker

_log = structlog.get_logger(__name__)

EVERY_SECONDS = 3.0
#: A worker that was not heard of for this long counts as gone (Conductor's activeWorkerLastPollTimeout).
LOST_MS = 10_000


class Served(NamedTuple):
    """A queue that this process serves."""

    task: TaskWorker
    slots: Slots


class Presence:
    """Tells of this worker, and knows of the others."""

    def __init__(self, log: Log, namespace: Namespace, worker_id: str, writer: Writer, served: list[Served]) -> None:
        self._tp = TopicPartition(namespace.topic(Topic.WORKERS), 0)
        self._worker_id = worker_id
        self._writer = writer
        self._served = served
        self._started_at_ms = time.time_ns() // 1_000_000
        self._reader = log.reader(fetch_wait_ms=FOLLOW_MS)
        self._others: dict[str, tuple[int, WorkerPresence]] = {}
        self._newest_ms = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="presence", daemon=True)

    def start(self) -> None:
        self._reader.assign({self._tp: BEGINNING})
        self._thread.start()

    def someone_else_is_free(self, domain: str, task_type: str) -> bool:
        """Whether another live worker of this queue has a free slot, by its last word."""
        horizon = self._newest_ms - LOST_MS
        return any(
            heard_ms > horizon and other.domain == domain and other.task_types == task_type and other.free > 0
            for heard_ms, other in list(self._others.values())
            if other.worker_id != self._worker_id and not other.is_leaving
        )

    def leave(self, served: Served) -> None:
        """Say good-bye on one queue and speak of it no more."""
        self._served.remove(served)
        self._tell(is_leaving=True, served=[served])

    def close(self) -> None:
        """Say good-bye, so that nobody waits for the silence to be noticed."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(5.0)
        self._tell(is_leaving=True)
        self._reader.close()

    def _run(self) -> None:
        next_word = 0.0
        while not self._stop.is_set():
            if time.monotonic() >= next_word:
                self._tell()
                next_word = time.monotonic() + EVERY_SECONDS
            try:
                for record in self._reader.read(500, 0.25):
                    self._newest_ms = max(self._newest_ms, record.timestamp_ms)
                    key = (record.key or b"").decode()
                    if record.value is None:
                        self._others.pop(key, None)
                    else:
                        self._others[key] = (record.timestamp_ms, PRESENCE.decode(record.value))
            except (LogError, DecodeError) as error:
                _log.warning("worker.presence_failed", error=str(error))
                self._stop.wait(0.5)

    def tell(self, served: Served) -> None:
        """Speak of one queue now, and from now on if it is new."""
        if served not in self._served:
            self._served.append(served)
        self._tell(served=[served])

    def _tell(self, *, is_leaving: bool = False, served: Sequence[Served] | None = None) -> None:
        for task, slots in tuple(self._served if served is None else served):
            presence = WorkerPresence(
                worker_id=self._worker_id,
                task_types=task.name,
                domain=task.domain,
                capacity=slots.concurrency,
                free=0 if is_leaving else slots.free,
                version=__version__,
                started_at_ms=self._started_at_ms,
                is_leaving=is_leaving,
            )
            key = f"{self._worker_id}/{task.domain}/{task.name}".encode()
            try:
                self._writer.send(self._tp.topic, self._tp.partition, key, PRESENCE.encode(presence))
            except LogError as error:
                _log.warning("worker.presence_not_sent", error=str(error))
