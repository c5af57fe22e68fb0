"""The supervisor of `broker-engine dev`: every role as a child process, started again when it ends by itself.

Not an init system: it serves one developer on one machine. Children die with it, however it ends (Linux), and they are
stopped in order: roles first, so that they can hand back what they hold while the broker still answers.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import structlog

from broker_engine.runtime.local_broker import launch
from broker_engine.runtime.local_broker.broker import last_lines

_log = structlog.get_logger(__name__)

#: A role that ends is started again after this pause, doubled each time it ends again soon.
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 10.0
#: A role that lived this long was well: its next pause is the first again.
WELL_SECONDS = 30.0
#: Longer than a worker lets its running tasks finish.
STOP_SECONDS = 40.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """A process to keep running: arguments of the `broker-engine` command."""

    name: str
    arguments: Sequence[str]


@dataclass(slots=True)
class _Child:
    role: Role
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    start_at: float = 0.0
    pause: float = FIRST_PAUSE_SECONDS
    restarts: int = 0


@dataclass(slots=True, kw_only=True)
class Supervisor:
    """Keeps roles running while ``watch`` is called from time to time, always by the thread that made it.

    ("Dies with its parent" means the parent thread in Linux.)
    """

    #: Where each role's output goes, one file per role; None: where this process's goes.
    log_folder: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    _children: dict[str, _Child] = field(default_factory=dict)

    def start(self, roles: Iterable[Role]) -> None:
        for role in roles:
            child = self._children[role.name] = _Child(role)
            self._spawn(child)

    @property
    def pids(self) -> dict[str, int]:
        """The running roles' process ids."""
        return {
            name: child.process.pid
            for name, child in self._children.items()
            if child.process is not None and child.process.poll() is None
        }

    @property
    def restarts(self) -> dict[str, int]:
        """How often each role was started again."""
        return {name: child.restarts for name, child in self._children.items()}

    def watch(self) -> None:
        """Notice roles that have ended, and start those again whose pause is over."""
        now = time.monotonic()
        for child in self._children.values():
            if child.process is None:
                if now >= child.start_at:
                    child.restarts += 1
                    self._spawn(child)
            elif (code := child.process.poll()) is not None:
                self._plan_restart(child, code, now)

    def kill(self, name: str) -> int:
        """End a role at once, as a crash would (SIGKILL); returns the process id it had."""
        process = self._children[name].process
        assert process is not None, f"{name} is not running"
        process.kill()
        return process.pid

    def stop(self, timeout: float = STOP_SECONDS) -> None:
        """Ask every role to stop and wait; those that take too long are killed."""
        running = {name: c.process for name, c in self._children.items() if c.process and c.process.poll() is None}
        for process in running.values():
            process.terminate()
        deadline = time.monotonic() + timeout
        for name, process in running.items():
            try:
                process.wait(max(deadline - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                _log.warning("dev.role_killed", supervised=name, pid=process.pid, after_seconds=timeout)
                process.kill()
                process.wait()
        self._children.clear()

    def stop_at_once(self) -> None:
        """Kill every role."""
        for child in self._children.values():
            if child.process is not None and child.process.poll() is None:
                child.process.kill()

    # --- one role

    def _spawn(self, child: _Child) -> None:
        command = [sys.executable, "-m", "broker_engine.cli.main", *child.role.arguments]
        if sys.platform == "linux":
            command = [sys.executable, "-I", "-S", launch.__file__, str(os.getpid()), *command]
        with self._output(child.role) as output:
            child.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **self.environment},
                start_new_session=True,  # Ctrl-C is for us; we stop the roles in order
            )
        child.started_at = time.monotonic()
        _log.info("dev.role_started", supervised=child.role.name, pid=child.process.pid)

    @contextmanager
    def _output(self, role: Role) -> Iterator[IO[bytes] | None]:
        if self.log_folder is None:
            yield None
            return
        self.log_folder.mkdir(parents=True, exist_ok=True)
        with self.log_path(role.name).open("ab") as file:
            yield file

    def log_path(self, name: str) -> Path:
        assert self.log_folder is not None, "the roles share our own output"
        return self.log_folder / f"{name}.log"

    def _plan_restart(self, child: _Child, code: int, now: float) -> None:
        if now - child.started_at >= WELL_SECONDS:
            child.pause = FIRST_PAUSE_SECONDS
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        _log.warning("dev.role_ended", supervised=child.role.name, how=how, restarts_in_seconds=child.pause)
        if self.log_folder is not None and code > 0:
            _log.warning("dev.last_words", supervised=child.role.name, log=_tail(self.log_path(child.role.name)))
        child.process = None
        child.start_at = now + child.pause
        child.pause = min(child.pause * 2, LONGEST_PAUSE_SECONDS)


def _tail(path: Path) -> str:
    return "".join(last_lines(path, 3)).strip()
