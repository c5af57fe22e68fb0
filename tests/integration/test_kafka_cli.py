"""`broker-engine kafka`: a broker that keeps running and is found again."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_engine.cli.exits import CONFLICT, NOT_FOUND, UNREACHABLE, USAGE
from broker_engine.runtime.local_broker.detached import find_detached, is_running
from broker_engine.runtime.local_broker.ports import reserve_port
from broker_engine.runtime.local_broker.readiness import is_ready

pytestmark = [pytest.mark.kafka]


def kafka(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does: in a process that ends."""
    command = [sys.executable, "-m", "broker_engine.cli.main", "kafka", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "broker"
    if (left_running := find_detached(tmp_path / "broker")) is not None:
        left_running.stop()


@pytest.fixture
def port() -> int:
    reserved = reserve_port()
    reserved.lock.close()
    return reserved.number


def test_a_started_broker_outlives_the_command_and_is_found_until_stopped(data: Path, port: int) -> None:
    started = kafka("start", "--data", data, "--port", port, "--json")
    assert started.returncode == 0, started.stderr
    state = json.loads(started.stdout)
    assert state["bootstrap"] == f"127.0.0.1:{port}"
    assert is_ready(state["bootstrap"])

    assert json.loads(kafka("status", "--data", data, "--json").stdout) == state

    again = kafka("start", "--data", data, "--json")
    assert json.loads(again.stdout) == state | {"state": "already running"}

    elsewhere = kafka("start", "--data", data, "--port", port + 1)
    assert elsewhere.returncode == CONFLICT
    assert state["bootstrap"] in elsewhere.stderr

    stopped = kafka("stop", "--data", data)
    assert stopped.returncode == 0
    assert "stopped" in stopped.stdout
    assert not is_running(data)
    assert kafka("status", "--data", data).returncode == NOT_FOUND


def test_a_suspended_broker_is_reported_as_deaf_and_can_still_be_stopped(data: Path, port: int) -> None:
    state = json.loads(kafka("start", "--data", data, "--port", port, "--json").stdout)
    subprocess.run(["kill", "-STOP", str(state["pid"])], check=True)

    assert kafka("status", "--data", data).returncode == UNREACHABLE
    assert kafka("stop", "--data", data).returncode == 0
    assert not is_running(data)


def test_a_crashed_broker_is_not_taken_for_a_running_one(data: Path, port: int) -> None:
    state = json.loads(kafka("start", "--data", data, "--port", port, "--json").stdout)
    subprocess.run(["kill", "-KILL", str(state["pid"])], check=True)

    while is_running(data):  # the system takes a moment to end it
        pass

    assert kafka("status", "--data", data).returncode == NOT_FOUND
    assert kafka("start", "--data", data, "--port", port).returncode == 0


def test_stopping_nothing_is_no_error(data: Path) -> None:
    stopped = kafka("stop", "--data", data)

    assert stopped.returncode == 0
    assert "not running" in stopped.stdout


def test_a_setting_that_is_no_pair_is_a_usage_error(data: Path) -> None:
    assert kafka("start", "--data", data, "--set", "heap").returncode == USAGE
