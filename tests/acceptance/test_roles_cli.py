"""Role commands as processes: waiting, stopping, and `dev`."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from broker_engine.runtime.local_broker.detached import find_detached, start_detached
from broker_engine.runtime.local_broker.ports import reserve_port
from tests.acceptance.conftest import Cli, until
from tests.support.web import answers

pytestmark = pytest.mark.kafka


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def test_roles_wait_for_a_broker_that_is_down_at_start(tmp_path: Path, namespace: str) -> None:
    reserved = reserve_port()
    reserved.lock.close()
    (tmp_path / "tasks.py").write_text("from broker_engine.worker import task\n@task\ndef idle() -> None: ...\n")
    cli = Cli(bootstrap=f"127.0.0.1:{reserved.number}", namespace=namespace, folder=tmp_path)
    decider, worker = cli.role("decider", "--data", tmp_path / "decider"), cli.role("worker", "tasks")
    try:
        for role in (decider, worker):
            said = role.wait_for("role.waits")
            assert f"no broker answers at {cli.bootstrap}" in said["reason"]
            assert role.process.poll() is None

        broker = start_detached(tmp_path / "broker", port=reserved.number)
        try:
            decider.wait_for("decider.started")
            worker.wait_for("worker.started")
            assert (decider.stop(), worker.stop()) == (0, 0)
        finally:
            broker.stop()
    finally:
        for role in (decider, worker):
            role.process.kill()
            role.process.wait()


def test_a_second_signal_ends_a_role_at_once(cli: Cli) -> None:
    (cli.folder / "slow.py").write_text(
        "import time\nfrom broker_engine.worker import task\n@task\ndef slow() -> None: time.sleep(60)\n"
    )
    waiting = cli.role("worker", "slow")  # there is no namespace
    waiting.wait_for("role.waits")
    assert waiting.stop(10) == 0

    decider, worker = cli.role("decider", "--data", cli.folder / "decider"), cli.role("worker", "slow")
    try:
        worker.wait_for("worker.started")
        made = {"name": "sleeps", "tasks": [{"name": "slow", "taskReferenceName": "slow"}]}
        assert cli("workflow", "create", cli.file(made)).code == 0
        own = cli("workflow", "start", "sleeps").out.strip()
        until(lambda: [t["phase"] for t in cli("workflow", "get", own, "--json").json["tasks"]] == ["RUNNING"])

        worker.process.terminate()
        worker.wait_for("role.stops")
        assert worker.process.poll() is None, "a running task is waited for"
        worker.process.terminate()
        assert worker.process.wait(5) == 1
    finally:
        worker.process.kill()
        worker.process.wait()
        assert decider.stop() == 0


@pytest.mark.parametrize(
    ("module", "sentence"),
    [("no.such.module", "cannot import"), ("json", "holds no @task function"), ("json:nothing", "has no nothing")],
)
def test_a_worker_without_tasks_is_a_usage_error(cli: Cli, module: str, sentence: str) -> None:
    ran = cli("worker", module)

    assert ran.code == 2
    assert sentence in " ".join(ran.err.replace("│", " ").split())


def test_dev_runs_everything_restarts_a_killed_role_and_stops_cleanly(tmp_path: Path) -> None:
    alone = Cli(bootstrap="", namespace="engine", folder=tmp_path)
    dev = alone.role("dev", "--data", tmp_path / "data")
    try:
        until(lambda: "Stop" in dev.output(), 90, lambda: str(dev.log()))
        bootstrap = dev.output().split()[1]
        user = Cli(bootstrap=bootstrap, namespace="engine", folder=tmp_path)
        greet = ("workflow", "start", "greeting", "--input", '{"name": "Ada"}', "--wait", "--json")
        assert user(*greet).json["output"] == {"greeting": "Hello, Ada!"}
        url = dev.output().partition("API")[2].split()[0]
        until(lambda: answers(f"{url}/health") == 200, 60, lambda: f"no health at {url}")

        pids = {event["supervised"]: event["pid"] for event in dev.events("dev.role_started")}
        assert set(pids) == {"decider-0", "delays", "gateway", "worker", "system"}
        for name in ("decider-0", "worker"):
            os.kill(pids[name], signal.SIGKILL)
        until(lambda: len(dev.events("dev.role_started")) >= 7)
        ended = {event["supervised"]: event["how"] for event in dev.events("dev.role_ended")}
        assert ended == {"decider-0": "signal SIGKILL", "worker": "signal SIGKILL"}
        until(lambda: user(*greet).code == 0, 90, lambda: "the new decider and worker do not answer")

        assert dev.stop() == 0
        left = [event["pid"] for event in dev.events("dev.role_started") if is_alive(event["pid"])]
        assert left == []
        assert user("task", "list").code == 5, "the broker that dev started has ended with it"
        assert find_detached(tmp_path / "data" / "broker") is None
    finally:
        dev.process.kill()
        dev.process.wait()


def test_roles_die_with_a_killed_dev(cli: Cli) -> None:
    dev = cli.role("dev", "--data", cli.folder / "data", "--decider-slots", 2)
    try:
        until(lambda: len(dev.events("dev.role_started")) == 6)
        pids = [event["pid"] for event in dev.events("dev.role_started")]
        dev.process.kill()
        dev.process.wait()
        until(lambda: not any(is_alive(pid) for pid in pids), 10)
    finally:
        dev.process.kill()
        dev.process.wait()
