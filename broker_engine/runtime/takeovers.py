"""The takeovers that are under way in one session: each restores a partition in a thread of the pool.

A takeover can be given up (its partition goes to somebody else) and begun again while the first still reads: each has a
number and a folder of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from pathlib import Path

import structlog

from broker_engine.errors import LogError, UnsafeSettings
from broker_engine.runtime.partition import Partition
from broker_engine.runtime.takeover import Takeover

_log = structlog.get_logger(__name__)

#: Makes the takeover of a partition, given a folder and how it learns that nobody wants it any more.
Make = Callable[[int, Path, Callable[[], bool]], Takeover]


class Takeovers:
    """Args: where local state goes, where takeovers run, and whether the process is about to stop."""

    def __init__(self, make: Make, folder: Path, pool: Executor, is_stopping: Callable[[], bool]) -> None:
        self._make = make
        self._folder = folder
        self._pool = pool
        self._is_stopping = is_stopping
        self._is_closed = False
        self._running: dict[int, Future[Partition]] = {}
        self._attempts: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._running)

    def start(self, number: int) -> None:
        attempt = self._attempts[number] = self._attempts.get(number, 0) + 1

        def is_given_up() -> bool:
            is_over = self._is_closed or self._is_stopping()
            return is_over or number not in self._running or self._attempts[number] != attempt

        takeover = self._make(number, self._folder / f"partition-{number}-{attempt}", is_given_up)
        self._running[number] = self._pool.submit(takeover.run)

    def give_up(self, number: int) -> None:
        """Nobody wants this partition any more."""
        pending = self._running.pop(number, None)
        if pending is not None and not pending.cancel():
            pending.add_done_callback(_close_result)

    def finished(self) -> Iterator[Partition]:
        """The partitions whose state is restored; a takeover that failed begins again.

        Raises:
            UnsafeSettings: going on would lose or duplicate work.
        """
        for number, future in list(self._running.items()):
            if not future.done():
                continue
            del self._running[number]
            try:
                partition = future.result()
            except UnsafeSettings:
                raise
            except LogError as error:
                _log.warning("takeover.failed", partition=number, error=str(error))
                self.start(number)
                continue
            yield partition

    def abandon(self) -> None:
        """Release what is restored already."""
        pending = list(self._running.values())
        self._running.clear()
        for future in pending:
            if future.done():
                _close_result(future)

    def close(self) -> None:
        """Wait for the threads, which hear that nobody wants their result."""
        self._is_closed = True
        pending = list(self._running.values())
        self._running.clear()
        self._pool.shutdown(wait=True, cancel_futures=True)
        for future in pending:
            if future.done():
                _close_result(future)


def _close_result(takeover: Future[Partition]) -> None:
    if not takeover.cancelled() and takeover.exception() is None:
        takeover.result().close()
