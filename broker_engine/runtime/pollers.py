"""Which workers live, by their signs of life on ``<ns>.workers``: what domain choice and the loss of workers go by."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import structlog

from broker_engine.errors import DecodeError
from broker_engine.log.ports import BEGINNING, FOLLOW_MS, Log, Record, TopicPartition
from broker_engine.topics import Namespace, Topic
from broker_engine.wire.codecs import PRESENCE

_log = structlog.get_logger(__name__)

Queue = tuple[str, str]
_Outer = TypeVar("_Outer")
_Inner = TypeVar("_Inner")
#: How often the topic is read on, and how much of it at a time: the decider's loop does it between two turns.
EVERY_SECONDS = 1.0
_MAX_RECORDS = 1_000
#: More signs of life than this are not kept (the ones heard of longest ago go first).
MAX_KEPT = 100_000
#: Workers speak every three seconds, and a decider asks after a silent one: a longer gap in log time means an outage.
GAP_MS = 7_000


class Pollers:
    """The last sign of life (LogAppendTime, milliseconds) of every worker and queue (decider.context.Pollers).

    A worker that says good-bye is forgotten; so is one whose record was deleted.
    """

    def __init__(self, log: Log, namespace: Namespace, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._tp = TopicPartition(namespace.topic(Topic.WORKERS), 0)
        self._reader = log.reader(fetch_wait_ms=FOLLOW_MS)
        self._monotonic = monotonic
        self._next_read = 0.0
        #: Who is meant by a record's key, the one heard of longest ago first.
        self._known: dict[bytes, tuple[str, Queue]] = {}
        self._queues: dict[Queue, dict[str, int]] = {}
        self._workers: dict[str, dict[Queue, int]] = {}
        #: The last word about each queue, good-byes and silent workers included; the one heard of longest ago first.
        self._heard: dict[Queue, int] = {}
        #: The largest LogAppendTime read.
        self.log_time_ms = 0
        #: When the topic was last written to again after an outage.
        self.gap_at_ms = 0

    def start(self) -> None:
        self._reader.assign({self._tp: BEGINNING})

    def last_seen_ms(self, domain: str, task_type: str) -> int | None:
        """When a worker of this queue was last heard of; None: there is none."""
        return max(self._queues.get((domain, task_type), {}).values(), default=None)

    def last_heard_ms(self, domain: str, task_type: str) -> int | None:
        """When any worker of this queue last said anything, good-byes included; None: not within the last hour."""
        return self._heard.get((domain, task_type))

    def workers(self) -> dict[str, int]:
        """The last sign of life of every worker that has not said good-bye."""
        return {worker_id: max(heard.values()) for worker_id, heard in self._workers.items()}

    def read_on(self) -> None:
        """Read what is new, at most once a second unless there is more than one portion; never waits."""
        now = self._monotonic()
        if now < self._next_read:
            return
        records = self._reader.read(_MAX_RECORDS, 0.0)
        for record in records:
            self._take(record)
        if len(records) < _MAX_RECORDS:
            self._next_read = now + EVERY_SECONDS

    def forget(self, worker_id: str) -> None:
        """Drop a worker that is taken for lost, until it is heard of again."""
        for key in [key for key, (known, _) in self._known.items() if known == worker_id]:
            self._forget(key)

    def close(self) -> None:
        self._reader.close()

    def _take(self, record: Record) -> None:
        if record.timestamp_ms - self.log_time_ms > GAP_MS:
            self.gap_at_ms = record.timestamp_ms
        self.log_time_ms = max(self.log_time_ms, record.timestamp_ms)
        key = record.key or b""
        self._forget(key)
        if record.value is None:
            return
        try:
            presence = PRESENCE.decode(record.value)
        except DecodeError as error:
            _log.warning("pollers.undecodable", offset=record.offset, error=str(error))
            return
        queue = (presence.domain, presence.task_types)
        self._heard.pop(queue, None)
        self._heard[queue] = record.timestamp_ms
        if len(self._heard) > MAX_KEPT:
            del self._heard[next(iter(self._heard))]
        if presence.is_leaving:
            return
        self._known[key] = (presence.worker_id, queue)
        self._queues.setdefault(queue, {})[presence.worker_id] = record.timestamp_ms
        self._workers.setdefault(presence.worker_id, {})[queue] = record.timestamp_ms
        if len(self._known) > MAX_KEPT:
            self._forget(next(iter(self._known)))

    def _forget(self, key: bytes) -> None:
        known = self._known.pop(key, None)
        if known is None:
            return
        worker_id, queue = known
        _remove(self._queues, queue, worker_id)
        _remove(self._workers, worker_id, queue)


def _remove(table: dict[_Outer, dict[_Inner, int]], outer: _Outer, inner: _Inner) -> None:
    inside = table[outer]
    inside.pop(inner, None)
    if not inside:
        del table[outer]
