"""Domains and queues on real Kafka: a task goes where a worker lives, and types that share a topic do not mix."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_engine.topics import Topic
from broker_engine.wire.codecs import EVENT, PRESENCE
from broker_engine.worker import Client, task
from tests.support.roles import RunningEngine, crowded, running_engine, tell, until

pytestmark = pytest.mark.kafka

#: Ten seconds of silence and two to notice it.
REROUTED_MS = 12_000
DOMAINS = {"work": "eu, us, NO_DOMAIN"}


@task(name="work", domain="eu", concurrency=1)
def in_eu() -> dict[str, str]:
    return {"ran": "eu"}


@task(name="work", domain="us", concurrency=1)
def in_us() -> dict[str, str]:
    return {"ran": "us"}


@task(sharedQueue=True)
def rare() -> dict[str, str]:
    return {"ran": "rare"}


@task(sharedQueue=True)
def seldom() -> dict[str, str]:
    return {"ran": "seldom"}


@pytest.fixture(scope="module")
def engine(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    folder: Path = tmp_path_factory.mktemp("domains")
    with running_engine(bootstrap, f"t{uuid.uuid4().hex[:8]}", folder, partitions=2) as running:
        yield running


def test_rows_29_and_30_a_task_follows_the_workers(engine: RunningEngine) -> None:
    presence = engine.namespace.topic(Topic.WORKERS)
    engine.client.register_task({"name": "work"})
    eu = engine.work(in_eu)
    until(lambda: "eu" in _domains(engine.client, engine.client.start_task("work", task_to_domain=DOMAINS)))
    eu.stop()
    until(lambda: any(_is_good_bye(record.value) for record in engine.records(presence)), what="the good-bye")
    waits = engine.client.start_task("work", task_to_domain={"work": "us, eu"})
    assert _domains(engine.client, waits) == ["eu"], "nobody lives, so the last one"

    engine.work(in_us)
    view = engine.client.wait(waits, 60)

    left_ms = next(record.timestamp_ms for record in engine.records(presence) if _is_good_bye(record.value))
    moved_ms = next(
        event.at_ms
        for event in (EVENT.decode(r.value) for r in engine.records(Topic.EVENTS) if r.key == waits.encode())
        for transition in event.transitions
        if transition.reason_code == "REROUTED"
    )
    assert ([attempt.domain for attempt in view.tasks], view.output) == (["us"], {"ran": "us"})
    tell(f"a waiting task went to the next domain {moved_ms - left_ms} ms after the last worker's good-bye")
    assert 10_000 <= moved_ms - left_ms <= REROUTED_MS * crowded()


def test_types_that_share_a_topic_are_run_by_their_own_workers(engine: RunningEngine) -> None:
    engine.work(rare)
    engine.work(seldom)
    until(lambda: {"rare", "seldom"} <= set(engine.client.task_definitions()), what="the registration")
    started = {name: [engine.client.start_task(name) for _ in range(3)] for name in ("rare", "seldom")}

    outputs = {name: [engine.client.wait(each, 60).output["ran"] for each in ids] for name, ids in started.items()}

    assert outputs == {name: [name] * 3 for name in started}
    admin = engine.log.admin()
    topics = [name for name in admin.topics() if engine.namespace.is_schedule(name) and name.endswith("-shared")]
    admin.close()
    assert topics == [engine.namespace.shared_schedule("default")]


def _is_good_bye(value: bytes | None) -> bool:
    return value is not None and PRESENCE.decode(value).is_leaving


def _domains(client: Client, workflow_id: str) -> list[str]:
    return [attempt.domain for attempt in client.get(workflow_id).tasks]
