"""Conformance rows about task domains: as values through the decider, then end to end."""

from __future__ import annotations

from collections.abc import Iterator

import orjson
import pytest
import structlog

from broker_engine.testing import Engine
from broker_engine.testing.worker import SteppedWorker
from broker_engine.topics import Topic
from broker_engine.wire.codecs import PRESENCE
from broker_engine.wire.records import ScheduledTask, WorkerPresence
from broker_engine.worker import TaskFailed
from tests.builders import START_MS, Pollers, Story, a_step

POLLED_5_S_AGO, POLLED_11_S_AGO = START_MS - 5_000, START_MS - 11_000


def test_row_29_each_task_type_gets_its_domain() -> None:
    steps = [a_step(f"ref{number}", name=f"task{number}") for number in (1, 2, 3, 4)]
    domains = {
        "*": "mydomain",
        "task2": "inactive, NO_DOMAIN",
        "task3": "active, NO_DOMAIN",
        "task4": "in1, in2",
    }
    story = Story(*steps).given(pollers=Pollers({("active", "task3"): POLLED_5_S_AGO}))

    story.start(task_to_domain=orjson.dumps(domains))
    for _ in steps[1:]:
        story.taken().completed({})

    found = [story.execution_now.tasks[step.reference].domain for step in steps]
    assert found == ["mydomain", "default", "active", "in2"]


def test_row_30_a_domain_polled_5_s_ago_wins_over_one_polled_11_s_ago() -> None:
    pollers = Pollers({("a", "encode"): POLLED_11_S_AGO, ("b", "encode"): POLLED_5_S_AGO})
    story = Story("a").given(pollers=pollers).start(task_to_domain=b'{"encode": "a,b,c"}')

    assert story.task.domain == "b"


def test_row_30_the_last_domain_is_taken_when_none_is_polled() -> None:
    pollers = Pollers({("a", "encode"): POLLED_11_S_AGO})
    story = Story("a").given(pollers=pollers).start(task_to_domain=b'{"encode": "a,b"}')

    assert story.task.domain == "b"


# --- end to end, on an engine in memory


@pytest.fixture
def engine() -> Iterator[Engine]:
    with structlog.testing.capture_logs(), Engine() as engine:
        engine.run()
        yield engine


def polled(engine: Engine, domain: str, *task_types: str) -> None:
    """A worker of this domain says that it lives."""
    for task_type in task_types:
        presence = WorkerPresence(f"in-{domain}", task_type, domain, 4, 4, "1", 0)
        key = f"{domain}/{task_type}".encode()
        engine.send_bytes(key, PRESENCE.encode(presence), 0, engine.namespace.topic(Topic.WORKERS))


def serve(engine: Engine, domain: str, task_type: str) -> SteppedWorker:
    worker = engine.serve(task_type)
    worker.domain = domain
    return worker


def test_row_29_each_task_runs_in_its_domain(engine: Engine) -> None:
    expected = {"task1": "mydomain", "task2": "default", "task3": "active", "task4": "in2"}
    steps = [{"name": name, "taskReferenceName": name} for name in expected]
    domains = {"*": "mydomain", "task2": "inactive, NO_DOMAIN", "task3": "active, NO_DOMAIN", "task4": "in1, in2"}
    engine.register_workflow({"name": "flow", "tasks": steps})
    engine.run()
    polled(engine, "active", "task3")
    engine.run(1.5)
    workers = [serve(engine, domain, name) for name, domain in expected.items()]
    elsewhere = [serve(engine, domain, name) for name, domain in expected.items() for domain in ("in1", "inactive")]

    started = engine.start("flow", task_to_domain=domains)
    engine.run(1)

    view = engine.workflow(started)
    assert view.status == "COMPLETED"
    assert {task.task_type: task.domain for task in view.tasks} == expected
    assert [len(worker.ran) for worker in workers] == [1] * len(workers)
    assert [worker.ran for worker in elsewhere] == [[]] * len(elsewhere)


@pytest.mark.parametrize(("last_seconds", "domain"), [(5, "b"), (11, "c")])
def test_row_30_a_domain_counts_for_ten_seconds_after_its_last_poll(
    engine: Engine, last_seconds: int, domain: str
) -> None:
    polled(engine, "a", "encode")
    engine.run(11 - last_seconds if last_seconds < 11 else 0)
    polled(engine, "b", "encode")
    engine.run(last_seconds)
    worker = serve(engine, domain, "encode")

    started = engine.start_task("encode", task_to_domain={"encode": "a,b,c"})
    engine.run(1)

    (task,) = engine.workflow(started).tasks
    assert (task.domain, task.domain_choices, task.status) == (domain, "a,b,c", "COMPLETED")
    assert len(worker.ran) == 1


def test_row_30_a_retry_chooses_anew(engine: Engine) -> None:
    engine.register_task({"name": "encode", "retryCount": 1, "retryDelaySeconds": 1})
    polled(engine, "a", "encode")
    engine.run(1.5)

    def fails_in_a(_data: object, work: ScheduledTask) -> dict[str, str]:
        if work.domain == "a":
            raise TaskFailed("no")
        return {}

    for domain in ("a", "b"):
        worker = serve(engine, domain, "encode")
        worker.handler, worker.takes_ms = fails_in_a, lambda _work: 12_000
    started = engine.start_task("encode", task_to_domain={"encode": "a,b"})
    engine.run(40)

    assert [task.domain for task in engine.workflow(started).tasks] == ["a", "b"]
