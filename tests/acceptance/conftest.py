"""The installed command against a real broker: one decider, one delays and one worker process per test module."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.zygote import close, zygote

COMMAND = str(Path(sys.executable).with_name("broker-engine"))

TASKS = """
from broker_engine.worker import TaskContext, TaskFailed, task


@task(ownerEmail="test@example.com", retryCount=2, retryDelaySeconds=1, responseTimeoutSeconds=20)
def greet(name: str) -> dict[str, str]:
    return {"greeting": f"Hello, {name}!"}


@task(ownerEmail="test@example.com", retryCount=1, retryDelaySeconds=1)
def recover(context: TaskContext) -> dict[str, int]:
    if context.attempt == 0:
        raise TaskFailed("not yet")
    return {"attempt": context.attempt}


@task(ownerEmail="test@example.com", retryCount=0)
def fail() -> None:
    raise TaskFailed("never")


@task(ownerEmail="test@example.com")
def echo(size: int) -> dict[str, str]:
    return {"text": "y" * size}
"""


#: Every role that was started here.
_STARTED: list[subprocess.Popen[bytes]] = []


@pytest.fixture(scope="session", autouse=True)
def no_role_is_left() -> Iterator[None]:
    """A test that fails must not leave a process behind that keeps a core busy."""
    yield
    for process in _STARTED:
        if process.poll() is None:
            process.kill()
            process.wait()
    close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> Any:
        """The error object, the last line of standard error."""
        return json.loads(self.err.strip().splitlines()[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Cli:
    """The command with its connection set by the environment."""

    bootstrap: str
    namespace: str
    folder: Path

    def __call__(self, *arguments: object, stdin: str = "", timeout: float = 120) -> Ran:
        ended = zygote().run(
            [str(argument) for argument in arguments],
            environment=self.environment,
            folder=self.folder,
            stdin=stdin,
            timeout=timeout,
        )
        return Ran(code=ended.code, out=ended.out, err=ended.err)

    @property
    def environment(self) -> dict[str, str]:
        """Nothing of the test run's own settings; without ``bootstrap`` no broker is named."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("BROKER_ENGINE_") or name.startswith("BROKER_ENGINE_CACHE")
        }
        named = {"BROKER_ENGINE_KAFKA__BOOTSTRAP_SERVERS": self.bootstrap} if self.bootstrap else {}
        return {**kept, **named, "BROKER_ENGINE_NAMESPACE": self.namespace}

    def file(self, content: object) -> Path:
        path = self.folder / f"{uuid.uuid4().hex[:8]}.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    def role(self, *arguments: object) -> Role:
        return Role(self, [str(argument) for argument in arguments])


class Role:
    """A role command as a process, and what it logs."""

    def __init__(self, cli: Cli, arguments: list[str]) -> None:
        self._log = cli.folder / f"{arguments[0]}-{uuid.uuid4().hex[:6]}.log"
        self._out = self._log.with_suffix(".out")
        with self._log.open("wb") as err, self._out.open("wb") as out:
            self.process = subprocess.Popen(
                [COMMAND, *arguments], stdout=out, stderr=err, env=cli.environment, cwd=cli.folder
            )
        _STARTED.append(self.process)

    def log(self) -> list[dict[str, Any]]:
        """The log lines, each a JSON object."""
        lines = self._log.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def events(self, name: str) -> list[dict[str, Any]]:
        return [line for line in self.log() if line["event"] == name]

    def output(self) -> str:
        return self._out.read_text()

    def wait_for(self, name: str, count: int = 1, timeout: float = 60) -> dict[str, Any]:
        """The count-th log line of this name."""
        until(lambda: len(self.events(name)) >= count, timeout, lambda: f"no {name} in {self._log.read_text()[-3000:]}")
        return self.events(name)[count - 1]

    def stop(self, timeout: float = 60) -> int:
        """Ask it to stop; returns its exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


def until(is_so: Callable[[], bool], timeout: float = 60, why: Callable[[], str] = lambda: "not in time") -> None:
    deadline = time.monotonic() + timeout
    while not is_so():
        assert time.monotonic() < deadline, why()
        time.sleep(0.05)


@pytest.fixture
def cli(bootstrap: str, namespace: str, tmp_path: Path) -> Cli:
    """The command with a namespace that does not exist yet."""
    return Cli(bootstrap=bootstrap, namespace=namespace, folder=tmp_path)


@pytest.fixture(scope="module")
def engine(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    """The command with a namespace whose roles are running."""
    folder = tmp_path_factory.mktemp("engine")
    (folder / "tasks.py").write_text(TASKS)
    running = Cli(bootstrap=bootstrap, namespace=f"a{uuid.uuid4().hex[:8]}", folder=folder)
    roles = [
        running.role("decider", "--data", folder / "decider", "--partitions", 4),
        running.role("delays"),
        running.role("worker", "tasks", "--grace", 1),
    ]
    try:
        roles[0].wait_for("takeover.done", 4)
        roles[2].wait_for("worker.started")
        yield running
    finally:
        codes = [role.stop() for role in roles]
    assert codes == [0, 0, 0], "a role that is asked to stop ends without an error"
