"""What the README shows is what happens: its Python, its files and its commands, as they stand there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.conftest import Cli, until
from tests.support.web import answers

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()

pytestmark = pytest.mark.kafka


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


@pytest.fixture(scope="module")
def engine(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    """The roles of `broker-engine dev` in the namespace that the README's program talks to."""
    folder = tmp_path_factory.mktemp("readme")
    cli = Cli(bootstrap=bootstrap, namespace="engine", folder=folder)
    roles = [cli.role("decider", "--data", folder / "decider"), cli.role("delays")]
    try:
        roles[0].wait_for("takeover.done", 8)
        yield cli
    finally:
        for role in roles:
            role.stop()


def test_the_ten_lines_greet_ada(engine: Cli) -> None:
    (program,) = blocks("python")
    (engine.folder / "hello.py").write_text(program)

    ran = subprocess.run(
        [sys.executable, "hello.py"],
        cwd=engine.folder,
        env=engine.environment,
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert ran.stdout.strip().splitlines()[-1] == "{'greeting': 'Hello, Ada!'}", ran.stderr[-2000:]


def test_the_commands_do_what_they_say(engine: Cli) -> None:
    tasks, workflow, _ = blocks("json")
    (engine.folder / "tasks.json").write_text(tasks)
    (engine.folder / "hello.json").write_text(workflow)
    (console,) = blocks("console")

    for line in console.splitlines():
        program, *arguments = shlex.split(line.removeprefix("$ "))
        assert program == "broker-engine"
        ran = engine(*arguments)
        assert ran.code == 0, f"{line}\n{ran.out}\n{ran.err}"

    assert engine("workflow", "get", "hello-1", "--json").json["status"] == "TERMINATED"


def test_the_tree_can_be_registered(engine: Cli) -> None:
    (engine.folder / "orders.json").write_text(blocks("json")[2])

    assert engine("workflow", "validate", "orders.json").out.strip() == "orders: valid"
    assert engine("workflow", "create", "orders.json").code == 0
    assert engine("workflow", "diagram", "orders").out == engine("workflow", "diagram", "orders.json").out
    assert "orders" in engine("workflow", "definitions", "--json").out


def test_the_requests_are_answered(engine: Cli) -> None:
    requests = blocks("sh")[-1]
    # In place of hello-1, which the commands above start and may not have yet.
    made = {"name": "streamed", "tasks": [{"name": "n", "taskReferenceName": "n", "type": "NOOP"}]}
    assert engine("workflow", "create", engine.file(made)).code == 0
    assert engine("workflow", "start", "streamed", "--id", "streamed-1", "--wait").code == 0
    gateway = engine.role("gateway", "--port", 0)
    try:
        url = gateway.wait_for("gateway.started")["url"]
        until(lambda: answers(f"{url}/readyz") == 204, 60, lambda: "the read model is not ready")
        for line in requests.splitlines():
            request = (
                line.replace("localhost:8080", url.removeprefix("http://"))
                .replace("hello-1", "streamed-1")
                .replace("curl", "curl --fail -sS -m 60", 1)
            )
            ran = subprocess.run(["bash", "-c", request], capture_output=True, text=True, timeout=90)
            assert ran.returncode == 0, f"{line}\n{ran.stdout}\n{ran.stderr}"
    finally:
        gateway.stop()
