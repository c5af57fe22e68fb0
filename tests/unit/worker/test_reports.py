"""Reports on their way to the log."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

from broker_engine.log.ports import Delivery, Log
from broker_engine.worker.reports import Reports


class SlowWriter:
    """A broker that needs several flushes to take a record."""

    def __init__(self, flushes: int) -> None:
        self._left = flushes
        self._on_delivery: list[Callable[[Delivery], None]] = []

    def send(self, *_record: Any, on_delivery: Callable[[Delivery], None]) -> None:
        self._on_delivery.append(on_delivery)

    def flush(self, _timeout: float) -> int:
        self._left -= 1
        if self._left > 0:
            return len(self._on_delivery)
        for told in self._on_delivery:
            told(Delivery("t", 0, 0, 0, None))
        self._on_delivery.clear()
        return 0

    def close(self) -> None: ...


class SlowLog:
    def writer(self, **_options: Any) -> SlowWriter:
        return SlowWriter(5)


def test_a_slow_arrival_is_told_without_another_report() -> None:
    reports, arrived = Reports(cast("Log", SlowLog()), "w", lambda: False), threading.Event()

    reports.send("t", 0, b"k", b"v", arrived.set)

    assert arrived.wait(10)
    assert reports.close(5.0) == 0
