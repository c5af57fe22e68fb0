"""How many tasks of one queue may be in hand: running ones up to the concurrency, and a little more when they are
short, so that the pool does not idle for a round trip to Kafka."""

from __future__ import annotations

import threading
import time
from collections import deque

#: Tasks that ended within this time say how many will end during the next round trip.
_WINDOW_SECONDS = 0.1


class Slots:
    """Counts the tasks in hand of one queue. Used by the polling thread and the pool's threads."""

    def __init__(self, concurrency: int) -> None:
        self.concurrency = concurrency
        self._changed = threading.Condition()
        self._taken = 0
        self._ended: deque[float] = deque(maxlen=1_000)
        self._full_since: float | None = None

    def room(self) -> int:
        """How many more tasks may be taken: free slots, plus what the present pace will free in a round trip."""
        with self._changed:
            horizon = time.monotonic() - _WINDOW_SECONDS
            while self._ended and self._ended[0] < horizon:
                self._ended.popleft()
            return max(self.concurrency + len(self._ended) - self._taken, 0)

    def take(self) -> None:
        with self._changed:
            self._taken += 1
            if self._taken >= self.concurrency and self._full_since is None:
                self._full_since = time.monotonic()

    def give_back(self, *, has_run: bool = True) -> None:
        with self._changed:
            self._taken -= 1
            if has_run:
                self._ended.append(time.monotonic())
            if self._taken < self.concurrency:
                self._full_since = None
            self._changed.notify_all()

    def wait_for_room(self, timeout: float) -> bool:
        """Wait until a task may be taken."""
        with self._changed:
            return self._changed.wait_for(lambda: self._taken < self.concurrency, timeout)

    def wait_until_idle(self, timeout: float) -> bool:
        """Wait until nothing is in hand."""
        with self._changed:
            return self._changed.wait_for(lambda: self._taken == 0, timeout)

    @property
    def free(self) -> int:
        return max(self.concurrency - self._taken, 0)

    @property
    def full_seconds(self) -> float:
        """How long every slot has been taken without a break."""
        since = self._full_since
        return 0.0 if since is None else time.monotonic() - since
