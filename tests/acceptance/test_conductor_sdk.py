"""Conductor's own Python client, unmodified, against a gateway on real Kafka."""

# No `from __future__ import annotations`: the client reads the functions' annotations as they stand.

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conductor.client.automator.task_runner import TaskRunner
from conductor.client.configuration.configuration import Configuration
from conductor.client.context.task_context import TaskInProgress
from conductor.client.http.models import (
    RerunWorkflowRequest,
    SkipTaskRequest,
    StartWorkflowRequest,
    TaskDef,
    TaskResult,
    WorkflowDef,
    WorkflowTask,
)
from conductor.client.http.models.task_result_status import TaskResultStatus
from conductor.client.http.rest import ApiException
from conductor.client.orkes_clients import OrkesClients
from conductor.client.worker.exception import NonRetryableException
from conductor.client.worker.worker import Worker

from tests.support.gateway import RunningGateway, running_gateway
from tests.support.roles import running_engine, until

pytestmark = [
    pytest.mark.kafka,
    # The client under test leaves sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module")
def gateway(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    folder = tmp_path_factory.mktemp("gateway")
    with (
        running_engine(bootstrap, f"sdk{time.time_ns() % 10**9}", folder / "decider") as engine,
        running_gateway(engine, folder / "read-model") as running,
    ):
        yield running


@pytest.fixture(scope="module")
def configuration(gateway: RunningGateway) -> Configuration:
    return Configuration(server_api_url=f"{gateway.url}/api")


@pytest.fixture(scope="module")
def clients(configuration: Configuration) -> OrkesClients:
    return OrkesClients(configuration)


def a_task_def(name: str, **fields: Any) -> TaskDef:
    defaults: dict[str, Any] = {"retry_count": 1, "retry_delay_seconds": 1, "owner_email": "test@example.com"}
    return TaskDef(name=name, **{**defaults, **fields})


def register(clients: OrkesClients, name: str, *task_types: str, **fields: Any) -> None:
    """A workflow of these tasks in a row, and their definitions."""
    metadata = clients.get_metadata_client()
    for task_type in task_types:
        metadata.register_task_def(a_task_def(task_type, **fields))
    steps = [
        WorkflowTask(
            name=task_type, task_reference_name=f"{task_type}_ref", input_parameters={"n": "${workflow.input.n}"}
        )
        for task_type in task_types
    ]
    metadata.register_workflow_def(
        WorkflowDef(name=name, version=1, tasks=steps, timeout_seconds=600, owner_email="test@example.com"),
        overwrite=True,
    )


def register_human(clients: OrkesClients, name: str) -> None:
    """A workflow of two HUMAN tasks, first and second."""
    steps = [
        WorkflowTask(name="human", task_reference_name=reference, type="HUMAN") for reference in ("first", "second")
    ]
    clients.get_metadata_client().register_workflow_def(
        WorkflowDef(name=name, version=1, tasks=steps, timeout_seconds=600, owner_email="test@example.com"),
        overwrite=True,
    )


def start(clients: OrkesClients, name: str, **fields: Any) -> str:
    request = StartWorkflowRequest(name=name, version=1, **{"input": {"n": 7}, **fields})
    return clients.get_workflow_client().start_workflow(request)


def ended(clients: OrkesClients, workflow_id: str) -> Any:
    """The workflow when it has ended."""
    client = clients.get_workflow_client()
    until(
        lambda: client.get_workflow(workflow_id, include_tasks=True).status not in ("RUNNING", "PAUSED"),
        what=f"the end of {workflow_id}",
    )
    return client.get_workflow(workflow_id, include_tasks=True)


def polled(clients: OrkesClients, task_type: str) -> Any:
    """The next task of a type (the first poll has to join the queue)."""
    client = clients.get_task_client()
    return until(
        lambda: client.batch_poll_tasks(task_type, "test-worker", count=1, timeout_in_millisecond=500),
        what=f"a task {task_type}",
    )[0]


class Running:
    """The client's worker framework: a runner per function, in threads."""

    def __init__(self, configuration: Configuration, **functions: Callable[..., Any]) -> None:
        workers = [
            Worker(task_definition_name=name, execute_function=function, poll_interval=10, lease_extend_enabled=True)
            for name, function in functions.items()
        ]
        self._runners = [TaskRunner(worker=worker, configuration=configuration) for worker in workers]
        self._threads = [threading.Thread(target=runner.run, daemon=True) for runner in self._runners]

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_error: object) -> None:
        for runner in self._runners:
            runner.stop()
        for thread in self._threads:
            thread.join(20)


# --- metadata


def test_a_task_definition_is_registered_read_changed_and_removed(clients: OrkesClients) -> None:
    metadata = clients.get_metadata_client()
    metadata.register_task_def(a_task_def("sdk_crud", retry_count=5))
    assert metadata.get_task_def("sdk_crud").retry_count == 5

    metadata.update_task_def(a_task_def("sdk_crud", retry_count=2))
    assert metadata.get_task_def("sdk_crud").retry_count == 2
    assert "sdk_crud" in [definition.name for definition in metadata.get_all_task_defs()]

    metadata.unregister_task_def("sdk_crud")
    with pytest.raises(ApiException) as refused:
        metadata.get_task_def("sdk_crud")
    assert refused.value.status == 404


def test_a_workflow_definition_is_registered_read_changed_and_removed(clients: OrkesClients) -> None:
    metadata = clients.get_metadata_client()
    register(clients, "sdk_flow_crud", "sdk_step")
    found = metadata.get_workflow_def("sdk_flow_crud", version=1)
    assert [task.task_reference_name for task in found.tasks] == ["sdk_step_ref"]

    found.description = "changed"
    metadata.update_workflow_def(found, overwrite=True)
    assert metadata.get_workflow_def("sdk_flow_crud").description == "changed"

    metadata.unregister_workflow_def("sdk_flow_crud", 1)
    with pytest.raises(ApiException) as refused:
        metadata.get_workflow_def("sdk_flow_crud")
    assert refused.value.status == 404


# --- workflows


def test_a_workflow_is_started_found_paused_and_ended(clients: OrkesClients) -> None:
    register(clients, "sdk_ops", "sdk_nobody")
    client = clients.get_workflow_client()
    workflow_id = start(clients, "sdk_ops", correlation_id="order-1", priority=7)

    seen = client.get_workflow(workflow_id)
    assert (seen.status, seen.correlation_id, seen.input, seen.priority) == ("RUNNING", "order-1", {"n": 7}, 7)
    assert [(task.reference_task_name, task.status) for task in seen.tasks] == [("sdk_nobody_ref", "SCHEDULED")]
    found = client.search(query=f"workflowId = '{workflow_id}' AND status = RUNNING").results
    assert [summary.workflow_id for summary in found] == [workflow_id]
    by_correlation = client.get_by_correlation_ids("sdk_ops", ["order-1"], include_completed=True)
    assert [found.workflow_id for found in by_correlation["order-1"]] == [workflow_id]

    client.pause_workflow(workflow_id)
    assert client.get_workflow_status(workflow_id).status == "PAUSED"
    client.resume_workflow(workflow_id)
    assert client.get_workflow_status(workflow_id).status == "RUNNING"
    client.terminate_workflow(workflow_id, reason="enough")
    ended_now = client.get_workflow(workflow_id)
    assert (ended_now.status, ended_now.reason_for_incompletion) == ("TERMINATED", "enough")


def test_a_key_starts_one_workflow(clients: OrkesClients) -> None:
    register(clients, "sdk_once", "sdk_nobody")
    request = {"idempotency_key": "order-2", "idempotency_strategy": "RETURN_EXISTING"}

    assert start(clients, "sdk_once", **request) == start(clients, "sdk_once", **request)


# --- tasks by hand


def test_a_polled_task_is_completed(clients: OrkesClients) -> None:
    register(clients, "sdk_manual", "sdk_by_hand")
    client = clients.get_task_client()
    workflow_id = start(clients, "sdk_manual")

    task = polled(clients, "sdk_by_hand")
    assert (task.workflow_instance_id, task.input_data) == (workflow_id, {"n": 7})
    assert client.get_task(task.task_id).status == "IN_PROGRESS"
    client.add_task_log(task.task_id, 'half "of" the way')
    client.update_task(
        TaskResult(
            task_id=task.task_id,
            workflow_instance_id=workflow_id,
            worker_id="test-worker",
            status=TaskResultStatus.COMPLETED,
            output_data={"answer": 42},
        )
    )

    done = ended(clients, workflow_id)
    assert (done.status, done.output) == ("COMPLETED", {"answer": 42})
    assert done.tasks[0].worker_id == "test-worker"
    until(lambda: client.get_task_logs(task.task_id), what="the log line")
    assert [line.log for line in client.get_task_logs(task.task_id)] == ['half "of" the way']


def test_a_task_is_ended_by_its_reference_without_a_worker(clients: OrkesClients) -> None:
    register(clients, "sdk_by_ref", "sdk_nobody")
    workflow_id = start(clients, "sdk_by_ref")

    clients.get_task_client().update_task_by_ref_name(workflow_id, "sdk_nobody_ref", "COMPLETED", {"by": "hand"})

    done = ended(clients, workflow_id)
    assert (done.status, done.output) == ("COMPLETED", {"result": {"by": "hand"}}), "the client wraps an output so"


# --- the worker framework


def test_the_framework_s_worker_runs_a_workflow(clients: OrkesClients, configuration: Configuration) -> None:
    register(clients, "sdk_success", "sdk_double", "sdk_triple")

    def double(n: int) -> dict[str, int]:
        return {"value": n * 2}

    def triple(n: int) -> dict[str, int]:
        return {"value": n * 3}

    with Running(configuration, sdk_double=double, sdk_triple=triple):
        done = ended(clients, start(clients, "sdk_success"))

    assert done.status == "COMPLETED"
    assert [task.output_data for task in done.tasks] == [{"value": 14}, {"value": 21}]


def test_a_function_that_raises_is_retried(clients: OrkesClients, configuration: Configuration) -> None:
    register(clients, "sdk_retry", "sdk_flaky")
    calls: list[int] = []

    def flaky(n: int) -> dict[str, int]:
        calls.append(n)
        if len(calls) == 1:
            raise RuntimeError("not yet")
        return {"calls": len(calls)}

    with Running(configuration, sdk_flaky=flaky):
        done = ended(clients, start(clients, "sdk_retry"))

    assert (done.status, done.output) == ("COMPLETED", {"calls": 2})
    assert [(task.status, task.retry_count) for task in done.tasks] == [("FAILED", 0), ("COMPLETED", 1)]
    assert "not yet" in done.tasks[0].reason_for_incompletion


def test_a_failure_for_good_is_not_retried(clients: OrkesClients, configuration: Configuration) -> None:
    register(clients, "sdk_terminal", "sdk_hopeless")

    def hopeless(n: int) -> None:
        raise NonRetryableException(f"{n} is no account")

    with Running(configuration, sdk_hopeless=hopeless):
        done = ended(clients, start(clients, "sdk_terminal"))

    assert done.status == "FAILED"
    assert [task.status for task in done.tasks] == ["FAILED_WITH_TERMINAL_ERROR"]


def test_a_task_that_is_not_done_comes_back(clients: OrkesClients, configuration: Configuration) -> None:
    register(clients, "sdk_callback", "sdk_patient")
    calls: list[int] = []

    def patient(n: int) -> Any:
        calls.append(n)
        if len(calls) == 1:
            return TaskInProgress(callback_after_seconds=1, output={"so": "far"})
        return {"calls": len(calls)}

    with Running(configuration, sdk_patient=patient):
        done = ended(clients, start(clients, "sdk_callback"))

    assert (done.status, done.output) == ("COMPLETED", {"calls": 2})
    assert len(done.tasks) == 1, "coming back uses up no attempt"


def test_a_long_task_keeps_its_lease(clients: OrkesClients, configuration: Configuration) -> None:
    register(clients, "sdk_lease", "sdk_long", response_timeout_seconds=6, retry_count=0)

    def long(n: int) -> dict[str, int]:
        time.sleep(8)
        return {"n": n}

    with Running(configuration, sdk_long=long):
        done = ended(clients, start(clients, "sdk_lease"))

    assert (done.status, done.output) == ("COMPLETED", {"n": 7})


def test_an_ended_workflow_is_taken_up_in_every_way(clients: OrkesClients) -> None:
    register_human(clients, "sdk_again")
    client, tasks = clients.get_workflow_client(), clients.get_task_client()
    workflow_id = start(clients, "sdk_again")
    tasks.update_task_by_ref_name(workflow_id, "first", "FAILED_WITH_TERMINAL_ERROR", {})
    assert ended(clients, workflow_id).status == "FAILED"

    client.retry_workflow(workflow_id)
    assert client.get_workflow(workflow_id).status == "RUNNING"
    tasks.update_task_by_ref_name(workflow_id, "first", "COMPLETED", {"n": 1})
    tasks.update_task_by_ref_name(workflow_id, "second", "COMPLETED", {})
    assert ended(clients, workflow_id).status == "COMPLETED"

    first = client.get_workflow(workflow_id).tasks[0].task_id
    client.rerun_workflow(workflow_id, RerunWorkflowRequest(re_run_from_task_id=first, task_input={"again": True}))
    (only,) = client.get_workflow(workflow_id).tasks
    assert (only.reference_task_name, only.input_data) == ("first", {"again": True})
    client.skip_task_from_workflow(workflow_id, "second", SkipTaskRequest())
    tasks.update_task_by_ref_name(workflow_id, "first", "COMPLETED", {})
    assert [task.status for task in ended(clients, workflow_id).tasks] == ["COMPLETED", "SKIPPED"]

    client.restart_workflow(workflow_id)
    assert client.get_workflow(workflow_id).status == "RUNNING"
    client.terminate_workflow(workflow_id)
