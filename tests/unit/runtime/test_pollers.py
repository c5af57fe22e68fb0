"""What the decider knows of workers, from their signs of life."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker_engine.runtime import pollers as module
from broker_engine.runtime.pollers import Pollers
from broker_engine.testing import Engine
from broker_engine.topics import Topic
from broker_engine.wire.codecs import PRESENCE
from broker_engine.wire.records import WorkerPresence


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine() as engine:
        yield engine


def tell(engine: Engine, worker: str, domain: str, task_type: str = "work", *, is_leaving: bool = False) -> int:
    presence = WorkerPresence(worker, task_type, domain, 4, 4, "1", 0, is_leaving)
    return send(engine, f"{worker}/{domain}/{task_type}", PRESENCE.encode(presence))


def send(engine: Engine, key: str, value: bytes | None) -> int:
    return engine.send_bytes(key.encode(), value, 0, engine.namespace.topic(Topic.WORKERS)).timestamp_ms


def heard(engine: Engine) -> Pollers:
    pollers = Pollers(engine.log, engine.namespace)
    pollers.start()
    pollers.read_on()
    return pollers


def test_the_newest_sign_of_life_of_a_queue_counts(engine: Engine) -> None:
    tell(engine, "one", "eu")
    engine.clock.advance(3_000)
    newest_ms = tell(engine, "two", "eu")
    tell(engine, "three", "us")

    assert heard(engine).last_seen_ms("eu", "work") == newest_ms


def test_nothing_is_known_of_a_queue_without_workers(engine: Engine) -> None:
    tell(engine, "one", "eu")

    assert heard(engine).last_seen_ms("us", "work") is None


def test_a_worker_is_seen_in_whatever_queue_it_was_last_heard_of(engine: Engine) -> None:
    tell(engine, "one", "eu", "a")
    engine.clock.advance(3_000)
    newest_ms = tell(engine, "one", "eu", "b")

    assert heard(engine).workers() == {"one": newest_ms}


def test_a_worker_that_leaves_is_forgotten(engine: Engine) -> None:
    tell(engine, "one", "eu")
    tell(engine, "one", "eu", is_leaving=True)
    pollers = heard(engine)

    assert (pollers.last_seen_ms("eu", "work"), pollers.workers()) == (None, {})


def test_a_deleted_record_is_forgotten(engine: Engine) -> None:
    tell(engine, "one", "eu")
    send(engine, "one/eu/work", None)
    pollers = heard(engine)

    assert (pollers.last_seen_ms("eu", "work"), pollers.workers()) == (None, {})


def test_a_record_that_is_no_sign_of_life_changes_nothing(engine: Engine) -> None:
    send(engine, "other", b"no record")
    seen_ms = tell(engine, "one", "eu")

    assert heard(engine).last_seen_ms("eu", "work") == seen_ms


def test_those_heard_of_longest_ago_go_first(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KEPT", 2)
    for worker in ("one", "two", "one", "three"):
        tell(engine, worker, "eu")

    assert sorted(heard(engine).workers()) == ["one", "three"]


def test_it_reads_at_most_once_a_second(engine: Engine) -> None:
    now = [0.0]
    pollers = Pollers(engine.log, engine.namespace, lambda: now[0])
    pollers.start()
    pollers.read_on()
    tell(engine, "one", "eu")

    now[0] = 0.9
    pollers.read_on()
    assert pollers.workers() == {}
    now[0] = 1.0
    pollers.read_on()
    assert list(pollers.workers()) == ["one"]


def test_a_task_goes_to_the_domain_whose_worker_is_alive(engine: Engine) -> None:
    engine.run()
    engine.register_task({"name": "work"})
    workers = {domain: engine.serve("work") for domain in ("eu", "us")}
    for domain, worker in workers.items():
        worker.domain = domain
    tell(engine, "worker-1", "us")
    engine.run(1.5)

    started = engine.start_task("work", task_to_domain={"work": "eu, us, NO_DOMAIN"})
    engine.run(1.0)

    (attempt,) = engine.workflow(started).tasks
    assert (attempt.status, attempt.domain, attempt.domain_choices) == ("COMPLETED", "us", "eu,us,default")
    assert [len(worker.ran) for worker in workers.values()] == [0, 1]
