"""The REST API by plain HTTP: what the guides show, what is refused, what is found."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from broker_engine.topics import Topic
from broker_engine.wire.codecs import EVENT
from tests.acceptance.conftest import Cli, Role
from tests.support.gateway import RunningGateway, running_gateway
from tests.support.roles import RunningEngine, crowded, running_engine, tell, until

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def running(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    folder = tmp_path_factory.mktemp("gateway")
    with running_engine(bootstrap, f"gw{time.time_ns() % 10**9}", folder) as engine:
        yield engine


@pytest.fixture(scope="module")
def gateway(running: RunningEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    with running_gateway(running, tmp_path_factory.mktemp("read-model")) as found:
        yield found


@pytest.fixture
def http(gateway: RunningGateway) -> httpx.Client:
    return gateway.http


def ok(answer: httpx.Response) -> httpx.Response:
    assert answer.status_code in (200, 204), answer.text
    return answer


def register(http: httpx.Client, name: str, task_type: str, **fields: Any) -> None:
    """A workflow of one task."""
    ok(http.post("/metadata/taskdefs", json=[{"name": task_type, "ownerEmail": "a@b.c", "retryCount": 0, **fields}]))
    step = {"name": task_type, "taskReferenceName": "only", "inputParameters": {"n": "${workflow.input.n}"}}
    ok(http.post("/metadata/workflow?overwrite=true", json={"name": name, "tasks": [step]}))


def start(http: httpx.Client, name: str, **fields: Any) -> str:
    return ok(http.post("/workflow", json={"name": name, "input": {"n": 1}, **fields})).text


def take(http: httpx.Client, task_type: str, **options: Any) -> dict[str, Any]:
    """The next task (the first poll has to join the queue)."""
    parameters = {"workerid": "curl", "timeout": 1_000, **options}
    found: httpx.Response = until(
        lambda: (
            answer
            if (answer := ok(http.get(f"/tasks/poll/{task_type}", params=parameters))).status_code == 200
            else None
        ),
        what=f"a task {task_type}",
    )
    task: dict[str, Any] = found.json()
    return task


def report(http: httpx.Client, task: dict[str, Any], status: str = "COMPLETED", **fields: Any) -> httpx.Response:
    body = {"taskId": task["taskId"], "workflowInstanceId": task["workflowInstanceId"], "status": status, **fields}
    return http.post("/tasks", json=body)


# --- definitions


def test_the_commands_of_a_guide_on_task_definitions(http: httpx.Client) -> None:
    definition = {
        **{"name": "process_order", "description": "Processes one order", "retryCount": 3, "retryLogic": "FIXED"},
        **{"retryDelaySeconds": 5, "timeoutSeconds": 120, "timeoutPolicy": "TIME_OUT_WF"},
        **{"responseTimeoutSeconds": 60, "ownerEmail": "team@example.com"},
    }
    assert ok(http.post("/metadata/taskdefs", json=[definition])).text == ""
    assert ok(http.put("/metadata/taskdefs", json={**definition, "retryCount": 5})).text == ""
    assert "process_order" in [found["name"] for found in ok(http.get("/metadata/taskdefs")).json()]
    found = ok(http.get("/metadata/taskdefs/process_order")).json()
    assert {name: found[name] for name in definition} == {**definition, "retryCount": 5}
    ok(http.delete("/metadata/taskdefs/process_order"))
    assert http.get("/metadata/taskdefs/process_order").status_code == 404
    assert http.delete("/metadata/taskdefs/process_order").status_code == 404
    assert http.put("/metadata/taskdefs", json=definition).status_code == 404


def test_row_41_a_definition_that_breaks_rules_is_refused_with_each_of_them(http: httpx.Client) -> None:
    broken = {"name": "bad", "timeoutSeconds": 10, "responseTimeoutSeconds": 20, "retryLogic": "SOMETIMES"}

    refused = http.post("/metadata/taskdefs", json=[{"name": "good"}, broken])

    assert refused.status_code == 400
    paths = {violation["path"] for violation in refused.json()["validationErrors"]}
    assert "[1].retryLogic" in paths
    assert http.get("/metadata/taskdefs/good").status_code == 404, "all of a request, or nothing"


def test_a_field_that_there_is_not_is_a_warning_or_an_error_as_asked(http: httpx.Client) -> None:
    definition = [{"name": "lenient", "ownerEmail": "a@b.c", "retyrCount": 3}]

    assert "retyrCount" in ok(http.post("/metadata/taskdefs", json=definition)).headers["warning"]
    assert http.post("/metadata/taskdefs?strict=true", json=definition).status_code == 400


# --- errors


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "says"),
    [
        ("GET", "/workflow/none", None, 404, "there is no workflow none"),
        ("GET", "/nothing/here", None, 404, "/api-docs"),
        ("PATCH", "/workflow/none", None, 405, "PATCH is not possible"),
        ("POST", "/workflow", {"name": "none"}, 404, "none"),
        ("POST", "/workflow", {"name": "x", "priority": 100}, 400, "priority"),
        ("POST", "/workflow", {"name": "x", "idempotencyStrategy": "MAYBE"}, 400, "RETURN_EXISTING"),
        ("POST", "/workflow", {"name": "x", "workflowId": "a", "idempotencyKey": "b"}, 400, "exclude each other"),
        ("POST", "/workflow", [1], 400, "body"),
        ("GET", "/workflow/search?size=5001", None, 400, "5000"),
        ("GET", "/workflow/search?query=colour='red'", None, 400, "colour"),
        ("GET", "/tasks/poll/batch/x?timeout=5001", None, 400, "timeout"),
        ("POST", "/tasks", {"taskId": "x", "status": "TIMED_OUT"}, 400, "must be one of"),
        ("POST", "/tasks", {"taskId": "none", "status": "COMPLETED"}, 404, "there is no task none"),
        # 404 would make Conductor's client give this endpoint up for good.
        ("POST", "/tasks/update-v2", {"taskId": "none", "status": "COMPLETED"}, 400, "there is no task none"),
        ("POST", "/workflow/none/jump/a", None, 400, "not yet supported here"),
        ("POST", "/workflow/none/restart", None, 404, "there is no workflow none"),
    ],
)
def test_what_cannot_be_done_is_refused_with_a_reason(
    http: httpx.Client, method: str, path: str, body: Any, status: int, says: str
) -> None:
    refused = http.request(method, path, json=body) if body is not None else http.request(method, path)

    assert refused.status_code == status, refused.text
    told = refused.json()
    assert (told["status"], told["retryable"]) == (status, False)
    assert says in told["message"]


def test_a_body_that_is_no_json_is_the_caller_s_mistake(http: httpx.Client) -> None:
    assert http.post("/workflow", content=b"{", headers={"content-type": "application/json"}).status_code == 400


def test_a_wrong_state_is_a_conflict(http: httpx.Client) -> None:
    register(http, "gw_conflict", "gw_idle")
    workflow_id = start(http, "gw_conflict")
    assert http.put(f"/workflow/{workflow_id}/resume").status_code == 409
    ok(http.delete(f"/workflow/{workflow_id}?reason=over"))
    assert http.put(f"/workflow/{workflow_id}/pause").status_code == 409


# --- workflows


def test_a_message_to_a_workflow_is_taken_by_its_task(http: httpx.Client) -> None:
    pull = {"name": "p", "taskReferenceName": "p", "type": "PULL_WORKFLOW_MESSAGES"}
    ok(http.post("/metadata/workflow?overwrite=true", json={"name": "gw_messages", "tasks": [pull]}))
    workflow_id = start(http, "gw_messages")

    message_id = ok(http.post(f"/workflow/{workflow_id}/messages", json={"paid": True})).text

    found = ok(http.get(f"/workflow/{workflow_id}")).json()
    (message,) = found["output"]["messages"]
    assert (found["status"], message["id"], message["payload"]) == ("COMPLETED", message_id, {"paid": True})
    assert http.post(f"/workflow/{workflow_id}/messages", json={}).status_code == 409
    assert http.post("/workflow/none/messages", json={}).status_code == 404


def test_what_was_done_can_be_read_at_once(http: httpx.Client) -> None:
    register(http, "gw_reads", "gw_idle")
    for number in range(10):
        workflow_id = start(http, "gw_reads", workflowId=f"gw-reads-{number}")
        assert ok(http.get(f"/workflow/{workflow_id}")).json()["status"] == "RUNNING"
        ok(http.put(f"/workflow/{workflow_id}/pause"))
        assert ok(http.get(f"/workflow/{workflow_id}/status")).json()["status"] == "PAUSED"


def test_a_live_task_tells_what_it_waits_for_and_until_when(http: httpx.Client) -> None:
    register(http, "gw_waits", "gw_unserved", pollTimeoutSeconds=600)

    task = ok(http.get(f"/workflow/{start(http, 'gw_waits')}")).json()["tasks"][0]

    assert (task["status"], task["phase"], task["waitingFor"]) == ("SCHEDULED", "QUEUED", "worker")
    assert task["nextDeadline"]["at"] > task["scheduledTime"]
    assert task["workflowTask"]["taskReferenceName"] == "only"


def test_workflows_are_found_by_field_text_and_page(http: httpx.Client) -> None:
    register(http, "gw_found", "gw_idle")
    ids = [start(http, "gw_found", correlationId=f"batch-{n}", input={"colour": "vermilion"}) for n in range(3)]
    ok(http.delete(f"/workflow/{ids[0]}"))

    def search(**parameters: Any) -> tuple[int, list[str]]:
        answer = ok(http.get("/workflow/search", params=parameters)).json()
        return answer["totalHits"], [found["workflowId"] for found in answer["results"]]

    running = "workflowType = gw_found AND status = 'RUNNING'"
    assert search(query=running, sort="startTime:ASC") == (2, ids[1:])
    assert search(query=running, sort="startTime:DESC", start=1, size=1) == (2, ids[1:2])
    assert search(query="correlationId = 'batch-*' AND status IN (TERMINATED)") == (1, ids[:1])
    assert search(freeText="vermilion RUNNING")[0] == 2
    assert sorted(ok(http.get("/workflow/running/gw_found")).json()) == sorted(ids[1:])


def test_many_are_ended_at_once_and_what_was_refused_is_listed(http: httpx.Client) -> None:
    register(http, "gw_bulk", "gw_idle")
    workflow_id = start(http, "gw_bulk")

    answer = ok(http.post("/workflow/bulk/terminate", json=[workflow_id, "none"])).json()

    assert answer["bulkSuccessfulResults"] == [workflow_id]
    assert list(answer["bulkErrorResults"]) == ["none"]


def test_execute_answers_when_the_workflow_has_ended(http: httpx.Client) -> None:
    register(http, "gw_execute", "gw_executed")
    answers: list[httpx.Response] = []
    waiting = threading.Thread(
        target=lambda: answers.append(
            http.post("/workflow/execute/gw_execute/1?waitForSeconds=60&requestId=r1", json={"name": "gw_execute"})
        )
    )
    waiting.start()
    ok(report(http, take(http, "gw_executed"), outputData={"done": True}))
    waiting.join(60)

    run = ok(answers[0]).json()
    assert (run["status"], run["output"], run["requestId"]) == ("COMPLETED", {"done": True}, "r1")


def test_a_stream_tells_every_change_until_the_end(http: httpx.Client) -> None:
    register(http, "gw_stream", "gw_idle")
    workflow_id = start(http, "gw_stream")
    told: list[str] = []

    with http.stream("GET", f"/workflow/{workflow_id}/stream") as stream:
        for line in stream.iter_lines():
            if line.startswith("data:"):
                told.append(json.loads(line[5:])["status"])
                if len(told) == 1:
                    ok(http.put(f"/workflow/{workflow_id}/pause"))
                if told[-1] == "PAUSED":
                    ok(http.delete(f"/workflow/{workflow_id}"))

    assert (told[0], told[-1]) == ("RUNNING", "TERMINATED")
    assert "PAUSED" in told


def test_a_task_inside_operators_is_shown_with_its_definition_wherever_it_is_asked_for(http: httpx.Client) -> None:
    work = {"name": "gw_inner", "ownerEmail": "a@b.c", "retryCount": 0, "responseTimeoutSeconds": 17}
    ok(http.post("/metadata/taskdefs", json=[work]))
    inner = {"name": "gw_inner", "taskReferenceName": "inner"}
    loop = {"name": "l", "taskReferenceName": "l", "type": "DO_WHILE", "items": [1], "loopOver": [inner]}
    ok(http.post("/metadata/workflow", json={"name": "gw_tree", "tasks": [loop]}))
    workflow_id = start(http, "gw_tree")

    whole = ok(http.get(f"/workflow/{workflow_id}")).json()["tasks"]
    task_id = next(task["taskId"] for task in whole if task["referenceTaskName"] == "inner__1")
    paged = ok(http.get(f"/workflow/{workflow_id}/tasks")).json()["results"]
    with http.stream("GET", f"/workflow/{workflow_id}/stream") as stream:
        first = next(line for line in stream.iter_lines() if line.startswith("data:"))
    streamed = json.loads(first[5:])["tasks"]
    single = ok(http.get(f"/tasks/{task_id}")).json()

    for task in (single, *(t for listed in (whole, paged, streamed) for t in listed if t["taskId"] == task_id)):
        assert task["taskDefinition"]["responseTimeoutSeconds"] == task["responseTimeoutSeconds"] == 17
    ok(http.delete(f"/workflow/{workflow_id}"))


# --- workers


def test_a_ready_task_is_polled_within_milliseconds(http: httpx.Client) -> None:
    register(http, "gw_fast", "gw_polled")
    start(http, "gw_fast")
    took = []
    ok(report(http, take(http, "gw_polled")))
    for _ in range(30):
        start(http, "gw_fast")
        began = time.perf_counter()
        task = take(http, "gw_polled")
        took.append(time.perf_counter() - began)
        ok(report(http, task))

    p50_ms = sorted(took)[15] * 1_000
    tell(f"poll of a ready task: p50 {p50_ms:.1f} ms")
    assert p50_ms <= 10 * crowded()


def test_a_batch_holds_what_is_ready(http: httpx.Client) -> None:
    register(http, "gw_batch", "gw_batched")
    ids = {start(http, "gw_batch") for _ in range(5)}
    tasks: list[dict[str, Any]] = []

    def polled() -> bool:
        tasks.extend(ok(http.get("/tasks/poll/batch/gw_batched?workerid=curl&count=10&timeout=500")).json())
        return len(tasks) >= 5

    until(polled)
    assert {task["workflowInstanceId"] for task in tasks} == ids
    assert ok(http.get("/tasks/poll/batch/gw_batched?workerid=curl&count=10&timeout=50")).json() == []
    polls = ok(http.get("/tasks/queue/polldata?taskType=gw_batched")).json()
    assert [(entry["queueName"], entry["workerId"]) for entry in polls] == [("gw_batched", "curl")]


def test_a_domain_s_tasks_go_to_its_pollers(http: httpx.Client) -> None:
    register(http, "gw_domain", "gw_placed")
    workflow_id = start(http, "gw_domain", taskToDomain={"gw_placed": "eu"})
    assert ok(http.get("/tasks/queue/all")).json()["eu:gw_placed"] == 1
    assert ok(http.get("/tasks/queue/sizes?taskType=gw_placed")).json() == {"gw_placed": 1}

    task = take(http, "gw_placed", domain="eu")

    assert (task["workflowInstanceId"], task["domain"]) == (workflow_id, "eu")


def test_the_answer_to_a_result_is_the_next_task(http: httpx.Client) -> None:
    """If there is one within a tenth of a second, which on a loaded machine may take some results."""
    register(http, "gw_next", "gw_chained")
    ids = [start(http, "gw_next") for _ in range(10)]
    task, deadline = take(http, "gw_chained"), time.monotonic() + 90
    while (answer := ok(http.post("/tasks/update-v2", json=completed(task)))).status_code == 204:
        assert time.monotonic() < deadline, "no answer was the next task"
        ids.append(start(http, "gw_next"))
        task = take(http, "gw_chained")

    assert answer.json()["taskType"] == "gw_chained"
    ok(report(http, answer.json()))
    while not _all_ended(http, ids):
        for other in ok(http.get("/tasks/poll/batch/gw_chained?workerid=curl&count=20&timeout=500")).json():
            ok(report(http, other))
        assert time.monotonic() < deadline, "not all have ended"


def completed(task: dict[str, Any]) -> dict[str, Any]:
    return {"taskId": task["taskId"], "status": "COMPLETED"}


def _all_ended(http: httpx.Client, ids: list[str]) -> bool:
    query = f"workflowId IN ({', '.join(ids)}) AND status = COMPLETED"
    total: int = ok(http.get("/workflow/search", params={"query": query})).json()["totalHits"]
    return total == len(ids)


def test_row_15_a_late_result_is_ignored_recorded_and_answered_with_200(
    http: httpx.Client, running: RunningEngine
) -> None:
    register(http, "gw_late", "gw_slow")
    workflow_id = start(http, "gw_late")
    task = take(http, "gw_slow")
    ok(http.delete(f"/workflow/{workflow_id}"))

    assert ok(report(http, task, outputData={"too": "late"})).text == task["taskId"]

    assert ok(http.get(f"/tasks/{task['taskId']}")).json()["status"] == "CANCELED"
    events = [EVENT.decode(record.value) for record in running.records(Topic.EVENTS)]
    ignored = [event.ignored for event in events if event.workflow_id == workflow_id and event.ignored]
    assert any("14 bytes" in reason for reason in ignored), ignored


def test_the_read_model_is_the_same_after_it_was_lost(
    http: httpx.Client, running: RunningEngine, tmp_path: Path
) -> None:
    register(http, "gw_rebuilt", "gw_idle")
    workflow_id = start(http, "gw_rebuilt")

    with running_gateway(running, tmp_path) as other:
        assert other.http.get(f"/workflow/{workflow_id}").json() == http.get(f"/workflow/{workflow_id}").json()
        query = "/workflow/search?size=5000&sort=workflowId"
        assert other.http.get(query).json() == http.get(query).json()
        assert other.http.get("/admin/read-model").json()["lag"] >= 0


def test_what_nobody_collected_goes_back_to_its_queue(http: httpx.Client, gateway: RunningGateway) -> None:
    register(http, "gw_back", "gw_uncollected")
    start(http, "gw_back")
    pollers = gateway.hub.pollers
    started = until(lambda: asyncio.run(pollers.poll("default", "gw_uncollected", "gone", 1, 1.0)))

    pollers.put_back(started)

    task = take(http, "gw_uncollected")
    assert (task["taskId"], task["retryCount"], task["pollCount"]) == (started[0].work.task_id, 0, 2)


def test_a_gateway_that_stops_takes_nothing_with_it(running: RunningEngine, tmp_path: Path) -> None:
    with running_gateway(running, tmp_path / "one") as stopped:
        register(stopped.http, "gw_drained", "gw_left")
        assert stopped.http.get("/tasks/poll/gw_left?workerid=curl&timeout=2000").status_code == 204
        workflow_id = start(stopped.http, "gw_drained")

    with running_gateway(running, tmp_path / "two") as other:
        assert take(other.http, "gw_left")["workflowInstanceId"] == workflow_id


# --- processes


def gateway_process(engine: Cli, folder: Path) -> tuple[Role, httpx.Client]:
    role = engine.role("gateway", "--port", 0, "--data", folder)
    url = role.wait_for("gateway.started")["url"]
    http = httpx.Client(base_url=f"{url}/api", timeout=30)
    until(lambda: http.get("/health").status_code == 200)
    return role, http


def test_a_task_outlives_the_gateway_that_handed_it_out(engine: Cli, tmp_path: Path) -> None:
    killed, http = gateway_process(engine, tmp_path / "one")
    register(http, "gw_outlives", "gw_long", responseTimeoutSeconds=300)
    workflow_id = start(http, "gw_outlives")
    task = take(http, "gw_long")
    until(lambda: http.get(f"/tasks/{task['taskId']}").json()["workerId"] == "curl")
    killed.process.kill()
    killed.process.wait()
    http.close()

    other, http = gateway_process(engine, tmp_path / "two")
    time.sleep(12)  # a lost worker is noticed after ten seconds: this must not be one
    assert http.get(f"/tasks/{task['taskId']}").json()["status"] == "IN_PROGRESS"
    ok(report(http, task, outputData={"by": "another"}))
    assert ok(http.get(f"/workflow/{workflow_id}")).json()["output"] == {"by": "another"}
    http.close()
    assert other.stop() == 0
