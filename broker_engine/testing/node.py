"""A decider process of the in-memory engine: it can be stepped, killed and started again."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path

from pydantic import SecretStr

from broker_engine.config import Settings
from broker_engine.errors import LogError
from broker_engine.log.memory import Crashed, MemoryGroupReader, MemoryLog
from broker_engine.runtime.commits import Commits, PromptCommits
from broker_engine.runtime.partition import Partition
from broker_engine.runtime.processor import Processor, Session
from broker_engine.testing.clock import FakeClock
from broker_engine.testing.steps import Deferred
from broker_engine.topics import Namespace


class Node:
    """One process slot. ``step`` does what the process's threads would do next: a takeover, a topic, a turn."""

    def __init__(
        self,
        log: MemoryLog,
        namespace: Namespace,
        clock: FakeClock,
        slot: str,
        *,
        partitions: int,
        key: str | None,
        folder: Path,
        commits: Callable[[], Commits] = PromptCommits,
        **settings: object,
    ) -> None:
        self._log = log
        self._namespace = namespace
        self._clock = clock
        self.slot = slot
        self._partition_count = partitions
        values: dict[str, object] = {
            "namespace": namespace.name,
            "namespace_key": SecretStr(key) if key else None,
            "partitions": partitions,
            "slot": slot,
            "data_dir": folder,
            "queue_partitions": 2,
            **settings,
        }
        self._settings = Settings.model_validate(values)
        self._jobs: list[Deferred] = []
        #: When a turn is committed and when that is known (runtime.commits).
        self._commits = commits
        self.processor: Processor
        self.session: Session | None = None
        self.is_up = False
        #: The group members of processes that were killed and are not missed yet.
        self.dead: list[MemoryGroupReader] = []
        self.start()

    def start(self) -> None:
        """A new process in this slot."""
        assert not self.is_up, f"slot {self.slot} runs"
        self.is_up = True
        self.processor = Processor(
            self._log,
            self._namespace,
            self._settings,
            partitions=self._partition_count,
            clock=self._clock,
            monotonic=self._clock.monotonic,
            executor=self._executor,
            commits=self._commits,
        )

    def step(self) -> None:
        """What happens next in this process. An error of the log costs its session, ``Crashed`` the process.

        Raises:
            BrokerEngineError: what ends a process by itself.
        """
        if not self.is_up:
            return
        try:
            if self.session is None:
                self._jobs.clear()
                self.session = Session(self.processor)
                self.session.join()
                return
            for jobs in self._jobs:
                jobs.step()
            self.session.step()
        except Crashed:
            self.kill()
        except LogError as error:
            try:
                self.processor.survive(error)
            finally:
                self._end_session()

    @property
    def partitions(self) -> dict[int, Partition]:
        """What this process decides now."""
        return self.session._partitions if self.session is not None else {}

    @property
    def is_settled(self) -> bool:
        """Whether no takeover is under way."""
        return self.session is not None and not self.session._takeovers

    def kill(self) -> None:
        """The process is gone without a word: its transaction stays open, its member in the group (``bury``)."""
        self.is_up = False
        session, self.session = self.session, None
        if session is None:
            return
        if isinstance(session._reader, MemoryGroupReader):
            self.dead.append(session._reader)
        for partition in session._partitions.values():
            partition.close()
        session._takeovers.abandon()
        for jobs in self._jobs:
            jobs.shutdown()

    def bury(self) -> None:
        """The group notices the deaths (in production after the session time-out)."""
        for reader in self.dead:
            self._log.expire_session(reader)
        self.dead.clear()

    def suspend(self) -> None:
        """The group gives up on this process, which does not know yet: a zombie until its next step."""
        if self.session is not None and isinstance(self.session._reader, MemoryGroupReader):
            self._log.expire_session(self.session._reader)

    def stop(self) -> None:
        """A clean end: partitions are handed back."""
        if self.session is not None:
            self.session.leave()
        self._end_session()
        self.is_up = False

    def _end_session(self) -> None:
        session, self.session = self.session, None
        if session is not None:
            session.close()

    def _executor(self, _name: str, _workers: int) -> Executor:
        jobs = Deferred()
        self._jobs.append(jobs)
        return jobs
