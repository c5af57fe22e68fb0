"""Child processes for what cannot be interrupted, may take any memory, or may end its process."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from concurrent.futures import TimeoutError as FuturesTimeoutError
from typing import Any

from broker_engine.worker.system.extras import optional

#: Of each kind, in one worker.
PROCESSES = 2


class ProcessEndedError(Exception):
    """The child process ended instead of answering."""


class Processes:
    """A few child processes that call one function at a time each; made when the first call comes.

    Args:
        confine: called first in each of them: takes away what a call must not have.
        needed_for: the operator, for the error when the library is missing.
    """

    def __init__(self, confine: Callable[[], None], *, needed_for: str) -> None:
        self._confine = confine
        self._needed_for = needed_for
        self._lock = threading.Lock()
        self._pool: Any = None  # pebble is an optional library

    def call(self, function: Callable[..., Any], *args: object, seconds: float) -> Any:
        """What the function gives or raises in a child process.

        Raises:
            TimeoutError: it ran longer than that, and its process was killed.
            ProcessEndedError: it ended its process: no memory, or a fault in a library in C.
        """
        pebble = optional("pebble", needed_for=self._needed_for)
        future = self._processes(pebble).schedule(function, args=args, timeout=seconds)
        try:
            return future.result()
        except FuturesTimeoutError as error:
            raise TimeoutError(f"longer than {seconds:g} s") from error
        except pebble.ProcessExpired as error:
            raise ProcessEndedError(str(error)) from error

    def _processes(self, pebble: Any) -> Any:
        with self._lock:
            if self._pool is None or not self._pool.active:
                # spawn: a Kafka client must not be carried across a fork
                context = multiprocessing.get_context("spawn")
                self._pool = pebble.ProcessPool(max_workers=PROCESSES, context=context, initializer=self._confine)
            return self._pool

    def close(self) -> None:
        """End the processes."""
        with self._lock:
            if self._pool is not None:
                self._pool.stop()
                self._pool.join()
                self._pool = None
