"""A real Kafka broker of one node, as a child process.

For development, tests and chaos: it can be stopped, killed, suspended and started again on the
same data and port. It is not how to run Kafka in production.
"""

import base64
import contextlib
import functools
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from broker_engine.runtime.local_broker import launch
from broker_engine.runtime.local_broker.configuration import (
    HOST,
    server_properties,
    write_properties,
)
from broker_engine.runtime.local_broker.errors import BrokerDied, DataInUse
from broker_engine.runtime.local_broker.installation import Installation, install
from broker_engine.runtime.local_broker.jars import Progress, ignore_progress
from broker_engine.runtime.local_broker.locks import FileLock, Held
from broker_engine.runtime.local_broker.ports import ReservedPort, reserve_port
from broker_engine.runtime.local_broker.readiness import wait_until_ready

START_SECONDS = 60.0  # takes 2-4 s on two idle cores; ten times that under load
STOP_SECONDS = 30.0  # takes 0.4 s; 4 s when it archives its classes (class_archive.py)
LOG_FILE = "broker.log"
LOCK_FILE = "broker.lock"


class LocalBroker:
    """A running (or stopped) broker and the folder that holds its data.

    Use it as a context manager, or call `stop`.
    """

    def __init__(
        self,
        installation: Installation,
        data_dir: Path,
        *,
        port: int | None,
        properties: Mapping[str, str],
        broker_defaults: bool,
        die_with_parent: bool,
    ) -> None:
        """Only remembers; `start` and `restart` act."""
        self.data_dir = data_dir
        self._installation = installation
        self._port = port
        self._controller_port: int | None = None
        self._properties = properties
        self._broker_defaults = broker_defaults
        self._die_with_parent = die_with_parent
        self._process: subprocess.Popen[bytes] | None = None
        self._classes_part: Path | None = None

    @classmethod
    def start(
        cls,
        data_dir: Path,
        *,
        port: int | None = None,
        properties: Mapping[str, str] = MappingProxyType({}),
        broker_defaults: bool = False,
        die_with_parent: bool = True,
        heap: str = "512m",
        progress: Progress = ignore_progress,
    ) -> Self:
        """Start a broker and return when it is ready.

        Args:
            data_dir: kept and continued when it holds a broker's data already.
            port: the client port; a free one when not given.
            properties: broker settings that win over ours.
            broker_defaults: leave out the tuning for quick tests (quick.properties).
            die_with_parent: the broker is killed when this process ends, however it ends (Linux;
                elsewhere only `stop` ends it).
            heap: the JVM's largest heap.
            progress: told how many jars are there, when some must be fetched.

        Raises:
            LocalBrokerError: with what to do about it.
        """
        broker = cls(
            install(heap=heap, progress=progress),
            data_dir.resolve(),
            port=port,
            properties=properties,
            broker_defaults=broker_defaults,
            die_with_parent=die_with_parent,
        )
        broker.restart()
        return broker

    @property
    def bootstrap(self) -> str:
        """What to give a client as `bootstrap.servers`; stays the same over restarts."""
        assert self._port is not None, "a started broker has a port"
        return f"{HOST}:{self._port}"

    @property
    def pid(self) -> int:
        """The process id of the (last) broker process."""
        assert self._process is not None, "a started broker has a process"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process exists; a suspended one does."""
        return self._process is not None and self._process.poll() is None

    def restart(self) -> None:
        """Start again on the same data and port, after stopping it if it runs."""
        self.stop()
        try:
            data_lock = FileLock(self.data_dir / LOCK_FILE)
        except Held as error:
            raise DataInUse(f"A broker already runs on {self.data_dir}.") from error
        with contextlib.ExitStack() as ours:
            # The broker inherits these locks; our own hold ends here, with or without a broker.
            ours.callback(data_lock.close)
            client, controller = self._reserve_ports(ours)
            self._write_configuration()
            self._format()
            self._process = self._spawn((data_lock.fd, client.lock.fd, controller.lock.fd))
        self._wait_until_ready()

    def stop(self, timeout: float = STOP_SECONDS) -> None:
        """Shut down cleanly (SIGTERM); kill when that takes too long. Idempotent."""
        if self._process is None or not self.is_running:
            return
        self._process.terminate()
        self.resume()  # a suspended process would not see it
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
        if self._classes_part is not None:
            self._installation.classes.adopt(self._classes_part)

    def kill(self) -> None:
        """End it at once, as a crash would (SIGKILL)."""
        assert self._process is not None, "a started broker has a process"
        self._process.kill()
        self._process.wait()

    def suspend(self) -> None:
        """Freeze it (SIGSTOP): connections stay open and nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a suspended broker go on (SIGCONT)."""
        os.kill(self.pid, signal.SIGCONT)

    def release(self) -> None:
        """Let the broker outlive this object and process; only with `die_with_parent=False`."""
        assert not self._die_with_parent, "a broker that dies with us cannot be released"
        _released.append(self._process)
        self._process = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    # ------------------------------------------------------------------------------- one start

    @property
    def _configuration_file(self) -> Path:
        return self.data_dir / "server.properties"

    @property
    def _log_dir(self) -> Path:
        return self.data_dir / "kafka"

    def _reserve_ports(self, ours: contextlib.ExitStack) -> tuple[ReservedPort, ReservedPort]:
        client = reserve_port(self._port)
        ours.callback(client.lock.close)
        controller = reserve_port(self._controller_port)
        ours.callback(controller.lock.close)
        self._port, self._controller_port = client.number, controller.number
        return client, controller

    def _write_configuration(self) -> None:
        assert self._port is not None
        assert self._controller_port is not None
        written = server_properties(
            log_dir=self._log_dir,
            port=self._port,
            controller_port=self._controller_port,
            broker_defaults=self._broker_defaults,
            properties=self._properties,
        )
        write_properties(self._configuration_file, written)

    def _format(self) -> None:
        """Give a new data folder its cluster id; one that has an id is left alone."""
        if (self._log_dir / "meta.properties").exists():
            return
        command = self._installation.format_command(self._configuration_file, new_cluster_id())
        formatted = subprocess.run(command, capture_output=True, text=True, cwd=self.data_dir)
        if formatted.returncode != 0:
            raise BrokerDied(f"Formatting {self._log_dir} failed:\n{formatted.stdout}{formatted.stderr}")

    def _spawn(self, inherited: tuple[int, ...]) -> subprocess.Popen[bytes]:
        if self._die_with_parent:  # else nobody would be there to take the classes over
            self._classes_part = self._installation.classes.new_part()
        command = self._installation.broker_command(self._configuration_file, self._classes_part)
        if self._die_with_parent:
            me = str(os.getpid())
            command = [sys.executable, "-I", "-S", launch.__file__, me, *command]
        return _spawner().submit(self._popen, command, inherited).result()

    def _popen(self, command: list[str], inherited: tuple[int, ...]) -> subprocess.Popen[bytes]:
        with (self.data_dir / LOG_FILE).open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.data_dir,
                pass_fds=inherited,
                start_new_session=True,  # Ctrl-C is for us; we stop the broker in order
            )

    def _wait_until_ready(self) -> None:
        if wait_until_ready(self.bootstrap, timeout=START_SECONDS, still_worth_waiting=lambda: self.is_running):
            return
        fate = "is not ready" if self.is_running else "ended"
        if self.is_running:
            self.kill()
        log = self.data_dir / LOG_FILE
        raise BrokerDied(f"The broker {fate}; the end of {log}:\n{''.join(last_lines(log))}")


#: Brokers let go on purpose; kept so that Popen does not warn about them.
_released: list[subprocess.Popen[bytes] | None] = []


@functools.cache
def _spawner() -> ThreadPoolExecutor:
    """The thread that starts brokers.

    "Dies with its parent" means the parent *thread* in Linux: a broker started from a short-lived
    thread would be killed when that thread ends. This one ends with the process.
    """
    return ThreadPoolExecutor(1, thread_name_prefix="broker-spawner")


def new_cluster_id() -> str:
    """Kafka's form of a random uuid: URL-safe base64 without padding, no leading dash."""
    while True:
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        if not cluster_id.startswith("-"):  # would read as a command-line option
            return cluster_id


def last_lines(path: Path, count: int = 20) -> Iterator[str]:
    """The last lines of a log file."""
    with path.open(errors="replace") as file:
        yield from file.readlines()[-count:]
