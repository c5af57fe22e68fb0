"""Clocks of the shells: the machine's, and the broker's as far as it can be told from records."""

from __future__ import annotations

import time
from collections.abc import Callable

#: A machine's clock in milliseconds.
Clock = Callable[[], int]


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class BrokerClock:
    """An estimate of the broker's time, to know when a Tick is worth sending. Nothing is decided by it.

    A record's LogAppendTime is at most the broker's present time, so the largest (LogAppendTime - own clock) seen is a
    lower bound of the clocks' difference that is short by the smallest delivery time only.
    """

    #: Clocks drift; the bound is looked for anew this often.
    _WINDOW_MS = 60_000

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset: int | None = None
        self._previous: int | None = None
        self._since_ms = clock()

    def observe(self, log_append_time_ms: int) -> None:
        """Learn from a record that was just read."""
        now = self._clock()
        difference = log_append_time_ms - now
        if now - self._since_ms > self._WINDOW_MS:
            self._previous, self._offset, self._since_ms = self._offset, None, now
        if self._offset is None or difference > self._offset:
            self._offset = difference

    def now_ms(self) -> int:
        known = [offset for offset in (self._offset, self._previous) if offset is not None]
        return self._clock() + (max(known) if known else 0)
