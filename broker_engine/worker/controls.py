"""What operators and the engine tell about running attempts: cancel, pause, superseded (``<ns>.control.<domain>``).

A thread reads the topics of the worker's domains from the start, and no work is taken before that: a hand-out that was
cancelled while nobody read is never run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

import structlog

from broker_engine.errors import DecodeError, LogError
from broker_engine.log.ports import BEGINNING, FOLLOW_MS, Isolation, Log, Record, TopicPartition
from broker_engine.topics import Namespace
from broker_engine.wire.codecs import CONTROL
from broker_engine.wire.records import Control

_log = structlog.get_logger(__name__)

#: More notes than this are not kept; the oldest go first (they are about attempts that ended long ago).
MAX_KEPT = 100_000
#: A decider of this release makes the topic before the queue's; without it work is taken all the same.
_PATIENCE_SECONDS = 10.0
_LOOK_SECONDS = 0.2
_READ_SECONDS = 0.1
_RETRY_SECONDS = 0.5

Listener = Callable[[Control], None]


class Controls:
    """Hands each note to the attempt that it is about."""

    def __init__(self, log: Log, namespace: Namespace, domains: Iterable[str]) -> None:
        self._log = log
        self._topics = {namespace.control(domain) for domain in domains}
        self._namespace = namespace
        self._reader = log.reader(fetch_wait_ms=FOLLOW_MS)
        self._ends: dict[TopicPartition, int] = {}
        self._lock = threading.Lock()
        self._known: dict[str, Control] = {}
        self._listeners: dict[tuple[str, int], Listener] = {}
        #: Topics that were read to the end they had when they were found.
        self._read: set[str] = set()
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="controls", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wait_until_read(self, domain: str, stop: threading.Event) -> None:
        """Wait until what is known of a domain's attempts has been read."""
        topic = self._namespace.control(domain)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        with self._changed:
            while topic not in self._read and not stop.is_set():
                if time.monotonic() > deadline:
                    _log.warning("worker.no_controls", topic=topic)
                    return
                self._changed.wait(0.05)

    def listen(self, task_id: str, hand_out: int, listener: Listener) -> None:
        """Hear about a hand-out from now on, and at once what is known of it."""
        with self._lock:
            self._listeners[task_id, hand_out] = listener
            known = self._known.get(task_id)
        if known is not None and known.hand_out == hand_out:
            listener(known)

    def forget(self, task_id: str, hand_out: int) -> None:
        with self._lock:
            self._listeners.pop((task_id, hand_out), None)

    def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(5.0)
        self._reader.close()

    def _run(self) -> None:
        next_look = 0.0
        while not self._stop.is_set():
            try:
                if len(self._ends) < len(self._topics) and time.monotonic() >= next_look:
                    next_look = time.monotonic() + _LOOK_SECONDS
                    self._find()
                if not self._ends:
                    self._stop.wait(_LOOK_SECONDS)
                    continue
                for record in self._reader.read(500, _READ_SECONDS):
                    self._take(record)
                self._note_progress()
            except LogError as error:
                _log.warning("worker.controls_failed", error=str(error))
                self._stop.wait(_RETRY_SECONDS)

    def _find(self) -> None:
        """Begin to follow the topics that exist by now."""
        admin = self._log.admin()
        try:
            existing = admin.topics()
            found = [TopicPartition(topic, 0) for topic in self._topics if topic in existing]
            new = [tp for tp in found if tp not in self._ends]
            if not new:
                return
            ends = admin.end_offsets(new, Isolation.COMMITTED)
        finally:
            admin.close()
        positions = {tp: self._reader.position(tp) for tp in self._ends}
        self._reader.assign(positions | dict.fromkeys(new, BEGINNING))
        self._ends |= ends

    def _note_progress(self) -> None:
        if len(self._read) == len(self._ends):
            return
        for tp, end in self._ends.items():
            if tp.topic not in self._read and (end == 0 or self._reader.position(tp) >= end):
                with self._changed:
                    self._read.add(tp.topic)
                    self._changed.notify_all()

    def _take(self, record: Record) -> None:
        task_id = (record.key or b"").decode()
        if record.value is None:
            with self._lock:
                self._known.pop(task_id, None)
            return
        try:
            control = CONTROL.decode(record.value)
        except DecodeError as error:
            _log.warning("worker.control_undecodable", topic=record.topic, offset=record.offset, error=str(error))
            return
        with self._lock:
            self._known.pop(task_id, None)
            self._known[task_id] = control
            if len(self._known) > MAX_KEPT:
                del self._known[next(iter(self._known))]
            listener = self._listeners.get((task_id, control.hand_out))
        if listener is not None:
            listener(control)
