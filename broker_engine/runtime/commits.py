"""Where a turn is written and committed: beside the loop, one at a time, so that the next turn is decided meanwhile.

A commit takes as long as deciding a hundred workflows does, and waits for the broker only. One turn may be under way;
the loop waits for its outcome before it hands over the next (decisions/0008).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Protocol

from broker_engine.errors import OutcomeUnknown

#: A write that takes longer is given up. More than the client's socket time-out, so that an answer that is late is
#: still heard; less than a transaction may stay open.
PATIENCE_SECONDS = 20.0


class Commits(Protocol):
    """Carries one write at a time."""

    def submit(self, write: Callable[[], None]) -> None:
        """Begin; the one before must have been asked for its outcome."""

    def is_done(self) -> bool:
        """Whether the outcome is known."""

    def outcome(self) -> None:
        """Wait for the write that is under way; raises what it raised. Does nothing when there is none.

        Raises:
            OutcomeUnknown: it does not come back.
        """

    def close(self) -> None:
        """Wait for what is under way, whatever its outcome."""


class ThreadedCommits:
    """Writes in a thread of its own.

    The client's own time limits are not enough: ``send_offsets_to_transaction`` ignores its, and waits for ever when
    the group's coordinator goes away at the wrong moment (librdkafka issues 5456 and 5511; seen in three of four
    restarts of a broker). A write that does not come back is left to its thread, a daemon, and the session is rebuilt
    with another producer of the same transactional id, which ends or fences whatever the old one was doing.
    """

    def __init__(self, patience: float = PATIENCE_SECONDS) -> None:
        self._patience = patience
        self._under_way: Future[None] | None = None
        self._writes: SimpleQueue[tuple[Callable[[], None], Future[None]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="commit", daemon=True)
        self._thread.start()

    def submit(self, write: Callable[[], None]) -> None:
        assert self._under_way is None, "one write at a time"
        self._under_way = Future()
        self._writes.put((write, self._under_way))

    def is_done(self) -> bool:
        return self._under_way is not None and self._under_way.done()

    def outcome(self) -> None:
        under_way, self._under_way = self._under_way, None
        if under_way is None:
            return
        try:
            error = under_way.exception(self._patience)
        except TimeoutError:
            self._patience = 0.0  # nothing more is to be expected of this thread
            raise OutcomeUnknown(f"{OutcomeUnknown()} (the client did not come back)") from None
        if error is not None:
            raise error

    def close(self) -> None:
        self._writes.put(None)
        self._thread.join(self._patience)

    def _run(self) -> None:
        while (item := self._writes.get()) is not None:
            write, outcome = item
            try:
                write()
            except BaseException as error:  # told by ``outcome``, whatever it is
                outcome.set_exception(error)
            else:
                outcome.set_result(None)


class PromptCommits:
    """Writes at once, and tells the outcome when asked."""

    def __init__(self) -> None:
        self._error: Exception | None = None
        self._is_told = True

    def submit(self, write: Callable[[], None]) -> None:
        assert self._is_told, "one write at a time"
        self._is_told = False
        try:
            write()
        except Exception as error:  # told by ``outcome``, as a thread would
            self._error = error

    def is_done(self) -> bool:
        return not self._is_told

    def outcome(self) -> None:
        self._is_told = True
        error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        self._is_told = True


class LazyCommits(PromptCommits):
    """Writes only when the outcome is asked for: the longest overlap there can be, for the simulation."""

    def __init__(self) -> None:
        super().__init__()
        self._write: Callable[[], None] | None = None

    def submit(self, write: Callable[[], None]) -> None:
        assert self._write is None, "one write at a time"
        self._write = write

    def is_done(self) -> bool:
        return False

    def outcome(self) -> None:
        write, self._write = self._write, None
        if write is not None:
            write()

    def close(self) -> None:
        self._write = None


class LateCommits(PromptCommits):
    """Writes at once and is done only when it is asked for the second time: the outcome becomes known while the loop
    reads on, for tests."""

    def __init__(self) -> None:
        super().__init__()
        self._asked = False

    def submit(self, write: Callable[[], None]) -> None:
        self._asked = False
        super().submit(write)

    def is_done(self) -> bool:
        asked, self._asked = self._asked, True
        return asked and super().is_done()
