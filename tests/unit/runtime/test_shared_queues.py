"""Task types that share a topic: one topic per domain for all of them, and each gets its own hand-outs from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from broker_engine.testing import Engine
from broker_engine.wire.codecs import SCHEDULED_TASK
from broker_engine.worker.queue_views import QueueViews

SHARED = "test.schedule.default.-shared"


@pytest.fixture
def engine() -> Iterator[Engine]:
    with structlog.testing.capture_logs(), Engine() as engine:
        engine.run()
        yield engine


def register(engine: Engine, name: str, **fields: Any) -> None:
    engine.register_task({"name": name, "sharedQueue": True, **fields})
    engine.run()


def schedules(engine: Engine) -> list[str]:
    return sorted(name for name in engine.log.cluster.topics if ".schedule." in name)


def test_types_that_share_a_queue_make_one_topic_per_domain(engine: Engine) -> None:
    register(engine, "a")
    register(engine, "b")
    engine.start_task("b", task_to_domain={"*": "eu"})
    engine.run()

    assert schedules(engine) == [SHARED, "test.schedule.eu.-shared"]


def test_each_type_gets_its_own_hand_outs_and_swallows_no_others(engine: Engine) -> None:
    workers = {}
    for name in ("a", "b", "c"):
        register(engine, name)
        workers[name] = engine.serve(name)
        workers[name].is_shared = True
    started = [engine.start_task(name) for name in ("a", "b", "c", "a")]
    engine.run(1)

    assert {engine.workflow(workflow_id).status for workflow_id in started} == {"COMPLETED"}
    assert {name: [work.task_type for work in worker.ran] for name, worker in workers.items()} == {
        "a": ["a", "a"],
        "b": ["b"],
        "c": ["c"],
    }


def test_a_queue_with_a_topic_of_its_own_keeps_it(engine: Engine) -> None:
    engine.register_task({"name": "a"})
    engine.run()
    register(engine, "a")
    worker = engine.serve("a")
    started = engine.start_task("a")
    engine.run(1)

    assert engine.workflow(started).status == "COMPLETED"
    assert len(worker.ran) == 1
    assert schedules(engine) == ["test.schedule.default.a"]


def test_a_type_that_no_longer_shares_gets_a_topic_of_its_own(engine: Engine) -> None:
    register(engine, "a")
    engine.register_task({"name": "a", "sharedQueue": False})
    engine.run()
    engine.start_task("a")
    engine.run()

    (record,) = engine.records(engine.namespace.schedule("default", "a"))
    assert SCHEDULED_TASK.decode(record.value).hand_out == 1
    assert engine.records(SHARED) == []


def test_the_topic_of_a_queue_is_made_with_the_partitions_of_its_definition(engine: Engine) -> None:
    engine.register_task({"name": "wide", "queuePartitions": 5})
    engine.register_task({"name": "usual"})
    engine.run()

    counts = {name: len(topic.partitions) for name, topic in engine.log.cluster.topics.items()}
    assert counts["test.schedule.default.wide"] == 5
    assert counts["test.schedule.default.usual"] == 2, "as the decider is set"


def test_a_task_waits_for_the_shared_topic_to_be_made(engine: Engine) -> None:
    register(engine, "a")
    worker = engine.serve("a")
    worker.is_shared, worker.domain = True, "eu"
    started = engine.start_task("a", task_to_domain={"a": "eu"})
    engine.run(1)

    (task,) = engine.workflow(started).tasks
    assert (task.status, task.domain) == ("COMPLETED", "eu")


def test_the_lag_of_a_type_counts_its_own_records_only(engine: Engine) -> None:
    register(engine, "a")
    register(engine, "b")
    engine.start_task("a")
    for _ in range(3):
        engine.start_task("b")
    views = QueueViews(engine.log, engine.namespace, engine.views).all(engine.clock.now_ms())

    assert {view.name: view.lag for view in views} == {"default/a": 1, "default/b": 3}
