"""Steps on real Kafka: a worker killed in the third of four leaves two that never run again."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_engine.log.confluent import ConfluentLog
from broker_engine.model.status import StepStatus
from broker_engine.topics import Namespace
from broker_engine.worker import Client
from tests.support.roles import KEY, decider_role, delays_role, until, worker_role

pytestmark = pytest.mark.kafka


def test_after_kill_9_in_the_third_step_the_first_two_do_not_run_again(
    bootstrap: str, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPPING_FOLDER", str(tmp_path))
    ran = tmp_path / "steps.log"
    roles = [
        decider_role(bootstrap, namespace, tmp_path / "data", partitions=2, log_file=tmp_path / "decider.log"),
        delays_role(bootstrap, namespace, log_file=tmp_path / "delays.log"),
    ]
    try:
        until(lambda: (tmp_path / "decider.log").read_text().count("takeover.done") == 2, what="the takeover")
        worker = worker_role(bootstrap, namespace, "tests.support.stepping", log_file=tmp_path / "worker.log")
        roles.append(worker)
        with Client(ConfluentLog(bootstrap), Namespace(namespace), key=KEY, timeout=60) as client:
            until(lambda: "import-csv" in client.task_definitions(), what="the registration")
            workflow_id = client.start_task("import-csv")
            until(lambda: ran.exists() and "UPSERT" in ran.read_text(), what="the third step")
            worker.kill()
            (tmp_path / "go-on").touch()
            roles.append(worker_role(bootstrap, namespace, "tests.support.stepping", log_file=tmp_path / "worker2.log"))
            view = client.wait(workflow_id, 60)
    finally:
        for role in roles:
            role.stop()

    first, second = view.tasks
    assert ran.read_text().split() == ["VALIDATE", "PARSE", "UPSERT", "UPSERT", "REPORT"]
    assert view.output == {"did": ["validate", "parse", "upsert", "report"]}
    assert [(step.name, step.status) for step in first.steps] == [
        ("VALIDATE", StepStatus.COMPLETED),
        ("PARSE", StepStatus.COMPLETED),
        ("UPSERT", StepStatus.STARTED),
    ]
    assert [(step.name, step.status, step.tries) for step in second.steps] == [
        ("VALIDATE", StepStatus.COMPLETED, 1),
        ("PARSE", StepStatus.COMPLETED, 1),
        ("UPSERT", StepStatus.COMPLETED, 2),
        ("REPORT", StepStatus.COMPLETED, 1),
    ]
    assert all(step.output_size > 0 and (step.ended_at_ms or 0) >= step.started_at_ms for step in second.steps)
