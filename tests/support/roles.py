"""The engine's roles for tests: in threads of this process, or as processes that can be killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import pytest

from broker_engine.config import KafkaSettings, Settings
from broker_engine.log.confluent import ConfluentLog
from broker_engine.log.ports import BEGINNING, Isolation, Record, TopicPartition
from broker_engine.runtime.delays import Delays
from broker_engine.runtime.namespace import ensure
from broker_engine.runtime.processor import Processor
from broker_engine.topics import Namespace, Topic
from broker_engine.wire.signing import Signer
from broker_engine.worker import Client, TaskWorker, Worker

KEY = "test key"
#: Generous: a busy machine must not fail a test.
PATIENCE = 60.0


def until(is_so: Callable[[], Any], seconds: float = PATIENCE, *, what: str = "it") -> Any:
    """Wait for something; returns what it became."""
    deadline = time.monotonic() + seconds
    while not (found := is_so()):
        if time.monotonic() > deadline:
            pytest.fail(f"{what} did not come true within {seconds:g} s")
        time.sleep(0.05)
    return found


def crowded() -> int:
    """By how much bounds on times are to be widened: tests run in two processes on cores that the host may give to
    others unseen, and the load average lags by a minute. The figures themselves are told, and measured by the
    benchmarks on a machine that does nothing else."""
    return max(4, 2 * round(os.getloadavg()[0] / (os.cpu_count() or 1)))


def tell(figure: str) -> None:
    """Show a measured figure (with `pytest -s`)."""
    sys.stderr.write(f"\n{figure}\n")


def read_all(log: ConfluentLog, topics: Sequence[str], isolation: Isolation = Isolation.COMMITTED) -> list[Record]:
    """Every record of these topics up to their present end, with headers."""
    admin, reader = log.admin(), log.reader(isolation=isolation, headers=True)
    counts = admin.topics()
    tps = [TopicPartition(topic, number) for topic in topics for number in range(counts[topic])]
    ends = admin.end_offsets(tps, isolation)
    records: list[Record] = []
    reader.assign(dict.fromkeys(tps, BEGINNING))
    while any(reader.position(tp) < end for tp, end in ends.items()):
        records += reader.read(5_000, 0.2)
    reader.close()
    return records


class RunningEngine:
    """Decider, delays and workers in threads: quick to start, for everything but kill -9."""

    def __init__(self, bootstrap: str, name: str, folder: Path, *, partitions: int = 4, slot: str = "0") -> None:
        self.log = ConfluentLog(bootstrap)
        self.bootstrap = bootstrap
        self.namespace = Namespace(name)
        settings = Settings(
            kafka=KafkaSettings(bootstrap_servers=bootstrap),
            namespace=name,
            namespace_key=KEY,  # type: ignore[arg-type]  # pydantic makes it secret
            partitions=partitions,
            slot=slot,
            data_dir=folder,
        )
        ensure(self.log, self.namespace, partitions=partitions, signer=Signer(KEY), now_ms=time.time_ns() // 1_000_000)
        self.processor = Processor(self.log, self.namespace, settings, partitions=partitions)
        self.delays = Delays(self.log, self.namespace, Signer(KEY), client_id=f"{name}.delays")
        self._roles: list[tuple[threading.Thread, Any]] = []
        self._run(self.processor)
        self._run(self.delays)
        until(lambda: len(self.processor.active) == partitions, what="the takeover")
        self.client = Client(self.log, self.namespace, key=KEY, timeout=60)

    def work(self, *tasks: TaskWorker, grace_seconds: float = 0.5) -> Worker:
        """A worker of its own for these tasks, with their definitions registered."""
        worker = Worker(self.log, tasks, namespace=self.namespace, client=self.client, grace_seconds=grace_seconds)
        self._run(worker)
        return worker

    def records(self, *topics: Topic | str) -> list[Record]:
        names = [self.namespace.topic(topic) if isinstance(topic, Topic) else topic for topic in topics]
        return read_all(self.log, names)

    def everything(self) -> list[Record]:
        """What the checkers of promises look at."""
        admin = self.log.admin()
        queues = [name for name in admin.topics() if self.namespace.is_schedule(name)]
        fixed = (Topic.COMMANDS, Topic.WORKFLOW_STATE, Topic.TASK_STATE, Topic.EVENTS)
        return self.records(*fixed, *queues)

    def close(self) -> None:
        for _, role in reversed(self._roles):
            role.stop()
        for thread, _ in reversed(self._roles):
            thread.join(20)
        self.client.close()

    def _run(self, role: Any) -> None:
        thread = threading.Thread(target=role.run, name=type(role).__name__, daemon=True)
        thread.start()
        self._roles.append((thread, role))


@contextlib.contextmanager
def running_engine(bootstrap: str, name: str, folder: Path, **options: Any) -> Iterator[RunningEngine]:
    engine = RunningEngine(bootstrap, name, folder, **options)
    try:
        yield engine
    finally:
        engine.close()


class Role:
    """A role as a process of its own, through the command line that users have."""

    def __init__(self, arguments: Sequence[str], *, log_file: Path, environment: dict[str, str] | None = None) -> None:
        self._arguments = [str(Path(sys.executable).parent / "broker-engine"), *arguments]
        self._environment = {**os.environ, "BROKER_ENGINE_NAMESPACE_KEY": KEY, **(environment or {})}
        self._log_file = log_file
        self._log: IO[bytes]
        self.kills = 0
        self._process: subprocess.Popen[bytes]
        self.start()

    def start(self) -> None:
        self._log = self._log_file.open("ab")
        self._process = subprocess.Popen(
            self._arguments,
            env=self._environment,
            cwd=Path(__file__).parents[2],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self._process.wait()
        self._log.close()
        self.kills += 1

    def stop(self, seconds: float = 20.0) -> int:
        """SIGTERM, and SIGKILL when that takes too long."""
        if self.is_running:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._log.close()
        return self._process.returncode


def decider_role(
    bootstrap: str, name: str, folder: Path, *, slot: str = "0", partitions: int = 8, log_file: Path
) -> Role:
    return Role(
        [
            *("decider", "--kafka", bootstrap, "--ns", name, "--slot", slot),
            *("--data", str(folder), "--partitions", str(partitions)),
        ],
        log_file=log_file,
    )


def delays_role(bootstrap: str, name: str, *, log_file: Path) -> Role:
    return Role(["delays", "--kafka", bootstrap, "--ns", name], log_file=log_file)


def worker_role(
    bootstrap: str, name: str, module: str, *, log_file: Path, environment: dict[str, str] | None = None
) -> Role:
    return Role(
        ["worker", module, "--kafka", bootstrap, "--ns", name, "--grace", "1"],
        log_file=log_file,
        environment=environment,
    )
