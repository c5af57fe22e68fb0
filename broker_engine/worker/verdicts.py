"""What the decider says about starts: confirmations that parked work waits for, and leases that were taken over."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from broker_engine.errors import DecodeError, LogError
from broker_engine.log.ports import END, FOLLOW_MS, Log, TopicPartition
from broker_engine.topics import Namespace, Topic, partition_of
from broker_engine.wire.codecs import REPLY
from broker_engine.wire.kinds import ReplyKind
from broker_engine.wire.records import StartVerdict

_log = structlog.get_logger(__name__)

#: Called with a verdict about one's own start.
Listener = Callable[[StartVerdict], None]
_Start = tuple[str, int]
#: More than this are left over from runs that had ended: the oldest goes.
MAX_RESUMES = 1_000


class Verdicts:
    """Reads the worker's replies in a thread and hands each verdict to whoever waits for it."""

    def __init__(self, log: Log, namespace: Namespace, partitions: int, worker_id: str) -> None:
        self._log = log
        self._tp = TopicPartition(namespace.topic(Topic.REPLIES), partition_of(worker_id, partitions))
        self._key = worker_id.encode()
        self._lock = threading.Lock()
        self._listeners: dict[_Start, Listener] = {}
        self._early: dict[_Start, StartVerdict] = {}
        self._resumes: dict[_Start, bytes] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="verdicts", daemon=True)
        self._reader = log.reader(fetch_wait_ms=FOLLOW_MS)

    def start(self) -> None:
        self._reader.assign({self._tp: END})
        self._thread.start()

    def listen(self, task_id: str, lease: int, listener: Listener) -> None:
        """Hear about a start from now on (a verdict that came before is heard at once)."""
        with self._lock:
            early = self._early.pop((task_id, lease), None)
            if early is None:
                self._listeners[task_id, lease] = listener
        if early is not None:
            listener(early)

    def resume(self, task_id: str, lease: int) -> bytes | None:
        """What came with the verdict about a start that takes over (wire.resume), once."""
        with self._lock:
            return self._resumes.pop((task_id, lease), None)

    def forget(self, task_id: str, lease: int) -> None:
        with self._lock:
            self._listeners.pop((task_id, lease), None)
            self._resumes.pop((task_id, lease), None)

    def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(5.0)
        self._reader.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                for record in self._reader.read(500, 0.1):
                    if record.key == self._key:
                        self._take(record.value)
            except LogError as error:
                _log.warning("worker.replies_failed", error=str(error))
                self._stop.wait(0.5)

    def _take(self, value: bytes | None) -> None:
        try:
            reply = REPLY.decode(value)
        except DecodeError as error:
            _log.warning("worker.reply_undecodable", error=str(error))
            return
        if reply.kind is not ReplyKind.STARTS:
            return
        for resume in reply.resumes:
            with self._lock:
                if len(self._resumes) >= MAX_RESUMES:
                    del self._resumes[next(iter(self._resumes))]
                self._resumes[resume.task_id, resume.lease] = resume.resume
        for verdict in reply.verdicts:
            key = (verdict.task_id, verdict.lease)
            with self._lock:
                listener = self._listeners.get(key)
                if listener is None:
                    if len(self._early) < 10_000:
                        self._early[key] = verdict
                    continue
            listener(verdict)
