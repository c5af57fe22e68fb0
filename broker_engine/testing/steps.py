"""What replaces threads and waiting in the in-memory engine."""

# ruff: noqa: ARG002  the executor's arguments, kept by name, mean nothing where nothing waits

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from typing import ParamSpec, TypeVar

from broker_engine.errors import LogError
from broker_engine.log.memory import MemoryLog, MemoryReader, MemoryTransactionalWriter
from broker_engine.log.ports import PROMPT_MS, CommittedOffset, Group, Isolation, Record, TopicPartition
from broker_engine.testing.clock import FakeClock

P = ParamSpec("P")
T = TypeVar("T")

#: So many reads in vain later, what was committed has become visible.
_PATIENCE = 3


class Deferred(Executor):
    """An executor whose jobs run one by one, when ``step`` is called."""

    def __init__(self) -> None:
        self._jobs: deque[tuple[Future[object], Callable[[], object]]] = deque()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        self._jobs.append((future, lambda: fn(*args, **kwargs)))  # type: ignore[arg-type]  # Future is invariant
        return future

    def step(self) -> bool:
        """Run the next job; False when there is none."""
        if not self._jobs:
            return False
        future, job = self._jobs.popleft()
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(job())
            except Exception as error:  # as a pool: the future holds it
                future.set_exception(error)
        return True

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        while self._jobs:
            self._jobs.popleft()[0].cancel()


class SteppedLog(MemoryLog):
    """A log in memory whose lagging commits become visible to whoever reads in vain a few times (``lag_lso``).

    Two more faults than its base: ``before_begin``, a crash point before anything of a transaction is written, and
    ``commit_errors``, what the next commits raise.
    """

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        #: Called with the transactional id.
        self.before_begin: Callable[[str], None] | None = None
        self.commit_errors: list[LogError] = []

    def transactional_writer(
        self, transactional_id: str, *, transaction_timeout_ms: int = 60_000
    ) -> MemoryTransactionalWriter:
        return _FaultyWriter(self, transactional_id)

    def reader(
        self, *, isolation: Isolation = Isolation.COMMITTED, headers: bool = False, fetch_wait_ms: int = PROMPT_MS
    ) -> MemoryReader:
        return _PatientReader(self, isolation, headers)


class _FaultyWriter(MemoryTransactionalWriter):
    def __init__(self, log: SteppedLog, transactional_id: str) -> None:
        super().__init__(log, transactional_id)
        self._faults = log

    def begin(
        self, offsets: Mapping[TopicPartition, CommittedOffset] | None = None, group: Group | None = None
    ) -> None:
        if self._faults.before_begin is not None:
            self._faults.before_begin(self.transactional_id)
        super().begin(offsets, group)

    def commit(self, offsets: Mapping[TopicPartition, CommittedOffset], group: Group, timeout: float = 60.0) -> None:
        if self._faults.commit_errors:
            raise self._faults.commit_errors.pop(0)
        super().commit(offsets, group, timeout)


class _PatientReader(MemoryReader):
    _in_vain = 0

    def read(self, max_records: int, timeout: float) -> list[Record]:
        records = super().read(max_records, timeout)
        self._in_vain = 0 if records else self._in_vain + 1
        if self._in_vain >= _PATIENCE and self._log.lag_lso:
            self._in_vain = 0
            self._log.settle_lso()
        return records
