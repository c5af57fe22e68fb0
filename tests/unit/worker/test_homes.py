"""On which topics a worker reads its task types."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
import structlog

from broker_engine.log.ports import CommittedOffset, TopicPartition
from broker_engine.testing import Engine
from broker_engine.worker import TaskWorker, task
from broker_engine.worker import homes as module
from broker_engine.worker.homes import Homes


@task(name="a")
def work() -> None: ...


@pytest.fixture
def engine() -> Iterator[Engine]:
    with structlog.testing.capture_logs(), Engine() as engine:
        engine.run()
        yield engine


def register(engine: Engine, name: str, *, shared: bool) -> None:
    engine.register_task({"name": name, "sharedQueue": shared})
    engine.run()


class Seen:
    """What a worker of these tasks would read; ``stop`` once it has begun with so many topics."""

    def __init__(self, engine: Engine, *tasks: TaskWorker, until: int = 0) -> None:
        self.topics: list[tuple[str, str]] = []
        self._stop = threading.Event()
        self._until = until
        if not until:
            self._stop.set()
        Homes(engine.log, engine.namespace, tasks, self._serve).run(self._stop)

    def _serve(self, task: TaskWorker, shared: bool) -> threading.Thread:
        self.topics.append((task.name, "shared" if shared else "own"))
        if len(self.topics) == self._until:
            self._stop.set()
        return threading.Thread(target=lambda: None)


def test_a_plain_type_is_read_on_its_own_topic_before_that_exists(engine: Engine) -> None:
    assert Seen(engine, work).topics == [("a", "own")]


def test_a_shared_type_is_read_on_the_shared_topic_only(engine: Engine) -> None:
    register(engine, "a", shared=True)

    assert Seen(engine, work).topics == [("a", "shared")]


def test_a_shared_type_with_a_topic_of_its_own_is_read_on_both(engine: Engine) -> None:
    register(engine, "a", shared=False)
    register(engine, "a", shared=True)
    register(engine, "b", shared=True)

    assert Seen(engine, work).topics == [("a", "own"), ("a", "shared")]


def test_other_types_of_the_domain_do_not_share_what_they_never_shared(engine: Engine) -> None:
    register(engine, "b", shared=True)

    assert Seen(engine, work).topics == [("a", "own")]


def test_a_type_that_once_shared_reads_what_it_left_behind(engine: Engine) -> None:
    register(engine, "a", shared=True)
    group = engine.namespace.shared_worker_group("default", "a")
    tp = TopicPartition(engine.namespace.shared_schedule("default"), 0)
    engine.log.cluster.group(group).offsets[tp] = CommittedOffset(1)
    register(engine, "a", shared=False)

    assert Seen(engine, work).topics == [("a", "own"), ("a", "shared")]


def test_the_shared_topic_of_another_domain_is_another_one(engine: Engine) -> None:
    register(engine, "a", shared=True)

    assert Seen(engine, replace(work, domain="eu")).topics == []


def test_a_type_that_becomes_shared_is_noticed(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY_SECONDS", 0.01)
    seen: list[Seen] = []
    thread = threading.Thread(target=lambda: seen.append(Seen(engine, work, until=2)))
    thread.start()
    register(engine, "a", shared=True)
    thread.join(10)

    assert seen[0].topics == [("a", "own"), ("a", "shared")]
