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
    lower bound of the clocks' difference that is short by the smallest delivery time only. That holds for records read
    as they come; one that has lain in the log would make it earlier by its age (after a restart every wait would be
    late by that), so an old one is not believed: the clocks are taken to agree until something fresh is seen.
    """

    #: A record that seems older than this has lain unread, rather than come from a clock so far behind.
    _FRESH_MS = 1_000
    #: Clocks drift; the bound is looked for anew this often.
    _WINDOW_MS = 60_000

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset: int | None = None
        self._previous: int | None = None
        self._since_ms = clock()

    def observe(self, log_append_time_ms: int, *, is_new: bool = False) -> None:
        """Learn from a record that was just read, or (``is_new``) just written."""
        now = self._clock()
        difference = log_append_time_ms - now
        if difference < -self._FRESH_MS and not is_new:
            return
        if now - self._since_ms > self._WINDOW_MS:
            self._previous, self._offset, self._since_ms = self._offset, None, now
        if self._offset is None or difference > self._offset:
            self._offset = difference

    def now_ms(self) -> int:
        known = [offset for offset in (self._offset, self._previous) if offset is not None]
        return self._clock() + (max(known) if known else 0)
