"""A set-up on real Kafka: STARTING is seen while it runs, its failure is retried and told apart."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from broker_engine.model.status import Phase
from broker_engine.worker import TaskContext, task
from tests.support.roles import running_engine, until

pytestmark = pytest.mark.kafka


def test_a_task_is_starting_while_its_set_up_runs_and_runs_with_what_it_gave(
    bootstrap: str, namespace: str, tmp_path: Path
) -> None:
    go_on = threading.Event()
    folders: list[Path] = []

    def connect(context: TaskContext) -> str:
        if context.attempt == 0:
            raise OSError("no route")
        go_on.wait(60)
        return f"connection {context.attempt}"

    @task(name="uses-db", setup=connect, retryCount=1, retryDelaySeconds=0)
    def uses_db(context: TaskContext) -> dict[str, Any]:
        folders.append(context.folder)
        return {"setup": context.setup, "folder": context.folder.is_dir()}

    with running_engine(bootstrap, namespace, tmp_path, partitions=1) as engine:
        engine.work(uses_db)
        until(lambda: "uses-db" in engine.client.task_definitions(), what="the registration")
        workflow_id = engine.client.start_task("uses-db")
        until(lambda: engine.client.get(workflow_id).tasks[-1].attempt == 1, what="the second attempt")
        until(lambda: engine.client.get(workflow_id).tasks[-1].phase is Phase.STARTING, what="STARTING")
        go_on.set()
        view = engine.client.wait(workflow_id, 60)

    first, second = view.tasks
    assert (first.status, first.reason_code, first.error_code) == ("FAILED", "INIT_SETUP", "INIT_SETUP")
    assert first.reason == "the set-up failed: OSError: no route"
    assert (second.status, view.output) == ("COMPLETED", {"setup": "connection 1", "folder": True})
    assert not folders[0].exists()
