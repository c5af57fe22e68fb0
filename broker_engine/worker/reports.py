"""What tasks came to, on its way to the decider: results of short tasks that end together share their requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import structlog

from broker_engine.errors import LogError
from broker_engine.log.ports import Delivery, Log

_log = structlog.get_logger(__name__)

#: How long the first of several reports waits for the others. Sent one by one, the reports of a burst are a request
#: each (measured: 0.37 requests per task, a third of the broker's work; together 0.1).
GATHER_SECONDS = 0.02
#: As many go out without waiting for more.
MAX_GATHERED = 500
_FLUSH_SECONDS = 0.05
_RETRY_SECONDS = 0.5


class Report(NamedTuple):
    """A record on its way; ``on_arrival`` is called when it is in the log."""

    topic: str
    partition: int
    key: bytes
    value: bytes
    on_arrival: Callable[[], None] | None = None

    def delivered(self, delivery: Delivery) -> None:
        if delivery.error is not None:
            _log.error("worker.report_not_delivered", error=str(delivery.error))
        elif self.on_arrival is not None:
            self.on_arrival()


class Reports:
    """Sends reports in a thread of its own, in the order in which they were given.

    A report goes out at once unless ``more_to_come`` says that tasks are about to run which will report, too.
    """

    def __init__(self, log: Log, client_id: str, more_to_come: Callable[[], bool]) -> None:
        self._writer = log.writer(client_id=client_id)
        self._more_to_come = more_to_come
        self._changed = threading.Condition()
        self._waiting: list[Report] = []
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="reports", daemon=True)
        self._thread.start()

    def send(
        self, topic: str, partition: int, key: bytes, value: bytes, on_arrival: Callable[[], None] | None = None
    ) -> None:
        """Hand a report over. Never waits and never fails: what cannot be sent is tried again."""
        with self._changed:
            self._waiting.append(Report(topic, partition, key, value, on_arrival))
            is_first, is_full = len(self._waiting) == 1, len(self._waiting) >= MAX_GATHERED
            if is_first or is_full or not self._more_to_come():
                self._changed.notify()

    def close(self, timeout: float) -> int:
        """Send what is left and wait for its delivery; how many records were not delivered in time."""
        deadline = time.monotonic() + timeout
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join(timeout)
        left = self._writer.flush(max(deadline - time.monotonic(), 0.0)) + len(self._waiting)
        self._writer.close()
        return left

    def _run(self) -> None:
        undelivered = 0
        while not self._stopping or self._waiting:
            reports = self._gather(may_wait=undelivered == 0)
            for number, report in enumerate(reports):
                try:
                    self._writer.send(*report[:4], on_delivery=report.delivered)
                except LogError as error:
                    _log.warning("worker.report_not_sent", error=str(error))
                    with self._changed:
                        self._waiting[:0] = reports[number:]
                    time.sleep(_RETRY_SECONDS)
                    break
            try:
                undelivered = self._writer.flush(_FLUSH_SECONDS)
            except LogError as error:
                _log.warning("worker.reports_failed", error=str(error))

    def _gather(self, *, may_wait: bool) -> list[Report]:
        """Wait for a report, and a moment for those that are about to follow.

        Not while something is on its way: somebody may wait for its arrival, which only a flush tells.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._stopping, None if may_wait else 0.0)
            if not self._waiting:
                return []
            deadline = time.monotonic() + GATHER_SECONDS
            while self._more_to_come() and len(self._waiting) < MAX_GATHERED and not self._stopping:
                rest = deadline - time.monotonic()
                if rest <= 0:
                    break
                self._changed.wait(rest)
            reports, self._waiting = self._waiting, []
            return reports
