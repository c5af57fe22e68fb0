"""A clock that stands still until somebody moves it."""

from __future__ import annotations

#: 2026-01-01: a moment that looks like one in logs.
START_MS = 1_767_225_600_000


class FakeClock:
    """Time of the broker and of every process of an in-memory engine."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self._now_ms = now_ms
        self._looks = 0

    def now_ms(self) -> int:
        return self._now_ms

    def __call__(self) -> int:
        return self._now_ms

    def advance(self, ms: int) -> None:
        assert ms >= 0, "time does not go back"
        self._now_ms += ms

    def monotonic(self) -> float:
        """Seconds for time-outs. Each look takes a millisecond, so that a loop that waits for a moment ends."""
        self._looks += 1
        return (self._now_ms + self._looks) / 1_000
