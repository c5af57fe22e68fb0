"""Domains on real Kafka: a task goes where a worker lives, and on to the next domain when that worker has left."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_engine.topics import Topic
from broker_engine.wire.codecs import EVENT, PRESENCE
from broker_engine.worker import Client, task
from tests.support.roles import crowded, running_engine, tell, until

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


def test_rows_29_and_30_a_task_follows_the_workers(bootstrap: str, namespace: str, tmp_path: Path) -> None:
    with running_engine(bootstrap, namespace, tmp_path, partitions=2) as engine:
        presence = engine.namespace.topic(Topic.WORKERS)
        engine.client.register_task({"name": "work"})
        eu = engine.work(in_eu)
        until(lambda: engine.records(presence), what="the worker's word")
        until(lambda: "eu" in _domains(engine.client, engine.client.start_task("work", task_to_domain=DOMAINS)))
        eu.stop()
        until(lambda: any(PRESENCE.decode(record.value).is_leaving for record in engine.records(presence)))
        waits = engine.client.start_task("work", task_to_domain={"work": "us, eu"})
        assert _domains(engine.client, waits) == ["eu"], "nobody lives, so the last one"

        engine.work(in_us)
        view = engine.client.wait(waits, 60)

        words = [record for record in engine.records(presence) if record.value is not None]
        left_ms = next(r.timestamp_ms for r in words if PRESENCE.decode(r.value).is_leaving)
        moved_ms = next(
            event.at_ms
            for event in map(EVENT.decode, (record.value for record in engine.records(Topic.EVENTS)))
            for transition in event.transitions
            if transition.reason_code == "REROUTED"
        )

    assert ([attempt.domain for attempt in view.tasks], view.output) == (["us"], {"ran": "us"})
    tell(f"a waiting task went to the next domain {moved_ms - left_ms} ms after the last worker's good-bye")
    assert 10_000 <= moved_ms - left_ms <= REROUTED_MS * crowded()


def _domains(client: Client, workflow_id: str) -> list[str]:
    return [attempt.domain for attempt in client.get(workflow_id).tasks]
