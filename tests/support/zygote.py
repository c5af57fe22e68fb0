"""Commands in processes of their own that need not import anything: forks of one that has imported it all.

A command takes a second to import; a test module runs dozens. The fork happens before there is any thread or Kafka
client, so each command starts as it would in a fresh interpreter. Roles, and one test of the installed command itself,
still start the command as users do.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from importlib import import_module
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import NamedTuple

_START_SECONDS = 60.0


class Ended(NamedTuple):
    """A command that has ended."""

    code: int
    out: str
    err: str


class Zygote:
    """The process that commands are forked from."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="zygote-")
        self._address = str(Path(self._folder.name) / "socket")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.zygote", self._address],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        ready = self._process.stdout.readline()
        assert ready == b"ready\n", "the process that commands are forked from did not start"
        self._count = 0
        self._lock = threading.Lock()

    def run(
        self, arguments: Sequence[str], *, environment: Mapping[str, str], folder: Path, stdin: str, timeout: float
    ) -> Ended:
        """Run a command to its end.

        Raises:
            TimeoutError: it took too long and was killed.
        """
        with self._lock:
            self._count += 1
            base = Path(self._folder.name) / str(self._count)
        files = [base.with_suffix(suffix) for suffix in (".in", ".out", ".err")]
        files[0].write_text(stdin)
        with Client(self._address, "AF_UNIX") as connection:
            connection.send((list(arguments), dict(environment), str(folder), [str(file) for file in files]))
            pid = connection.recv()
            if not connection.poll(timeout):
                os.kill(pid, signal.SIGKILL)
                raise TimeoutError(f"{arguments} took more than {timeout} s")
            try:
                code = connection.recv()
            except EOFError:
                code = -1  # it was killed
        return Ended(code, files[1].read_text(), files[2].read_text())

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._folder.cleanup()


_started: list[Zygote] = []


def zygote() -> Zygote:
    """The one of this test process."""
    if not _started:
        _started.append(Zygote())
    return _started[0]


def close() -> None:
    """End it, if it was started."""
    while _started:
        _started.pop().close()


def _serve(address: str) -> None:
    """The process itself: imports, then forks for whoever asks."""
    from broker_engine.cli.main import COMMANDS

    for module in COMMANDS.values():
        import_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    listener = Listener(address, "AF_UNIX", backlog=64)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        connection = listener.accept()
        if os.fork() == 0:
            with contextlib.suppress(Exception):
                _command(connection)
            os._exit(70)
        connection.close()


def _command(connection: Connection) -> None:
    from broker_engine.cli.main import app

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    arguments, environment, folder, files = connection.recv()
    connection.send(os.getpid())
    for number, (file, flags) in enumerate(
        zip(files, (os.O_RDONLY, os.O_WRONLY | os.O_CREAT, os.O_WRONLY | os.O_CREAT), strict=True)
    ):
        os.dup2(os.open(file, flags, 0o600), number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = ["broker-engine", *arguments]
    code: object = 0
    try:
        app()
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    connection.send(code if isinstance(code, int) else int(code is not None))
    os._exit(0)


if __name__ == "__main__":
    _serve(sys.argv[1])
