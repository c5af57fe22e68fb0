"""What waits in a domain that nobody polls goes to another one of its list; by the log time of the workers' topic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from broker_engine.errors import Retriable
from broker_engine.log.memory import MemoryWriter
from broker_engine.model.commands import RerouteTask
from broker_engine.model.state import TaskState
from broker_engine.model.status import ReasonCode
from broker_engine.runtime import rerouting as module
from broker_engine.testing import Engine
from broker_engine.testing.worker import SteppedWorker
from broker_engine.topics import Topic
from broker_engine.wire.codecs import EVENT, PRESENCE
from broker_engine.wire.records import WorkerPresence
from tests.support.looking import commands

DOMAINS = {"work": "eu, us"}
#: Ten seconds of silence and two to notice it.
NOTICED_SECONDS = 12


@pytest.fixture
def engine() -> Iterator[Engine]:
    with structlog.testing.capture_logs(), Engine() as engine:
        engine.run()
        engine.register_task({"name": "work", "retryCount": 0})
        pass_time(engine, 8, "eu")
        yield engine


def speak(engine: Engine, domain: str, *, is_leaving: bool = False) -> None:
    value = PRESENCE.encode(WorkerPresence(f"in-{domain}", "work", domain, 4, 4, "1", 0, is_leaving))
    engine.send_bytes(domain.encode(), value, 0, engine.namespace.topic(Topic.WORKERS))


def pass_time(engine: Engine, seconds: int, *speaking: str) -> None:
    """Time passes, in which the workers of these domains go on speaking."""
    for _ in range(seconds):
        for domain in speaking:
            speak(engine, domain)
        engine.run(1.0)


def start(engine: Engine, domains: dict[str, str] | None = None) -> str:
    return engine.start_task("work", task_to_domain=DOMAINS if domains is None else domains)


def task(engine: Engine, workflow_id: str) -> TaskState:
    (only,) = engine.workflow(workflow_id).tasks
    return only


def serve(engine: Engine, domain: str) -> SteppedWorker:
    worker = engine.serve("work", takes_ms=lambda _work: 60_000)
    worker.domain = domain
    return worker


def test_what_waits_in_a_domain_that_fell_silent_is_rerouted_within_two_seconds(engine: Engine) -> None:
    started = start(engine)
    assert task(engine, started).domain == "eu"
    worker = serve(engine, "us")

    pass_time(engine, 9, "us")
    assert task(engine, started).domain == "eu"
    pass_time(engine, NOTICED_SECONDS - 9, "us")

    found = task(engine, started)
    assert (found.domain, found.domain_choices, found.status) == ("us", "eu,us", "IN_PROGRESS")
    assert worker.ran == []
    (told,) = [command for command, _ in commands(engine, RerouteTask)]
    assert told.reason.startswith("no worker has polled domain eu for 1")


def test_the_event_tells_of_it(engine: Engine) -> None:
    started = start(engine)
    pass_time(engine, NOTICED_SECONDS, "us")

    told = [
        (event.command, transition.reason)
        for event in map(EVENT.decode, (record.value for record in engine.records(Topic.EVENTS)))
        for transition in event.transitions
        if event.workflow_id == started and transition.reason_code == ReasonCode.REROUTED
    ]
    ((command, reason),) = told
    assert command == "REROUTE_TASK"
    assert reason is not None
    assert reason.endswith("re-routed to us")


def test_a_domain_that_said_good_bye_is_waited_for_as_long(engine: Engine) -> None:
    started = start(engine)
    speak(engine, "eu", is_leaving=True)

    pass_time(engine, 9, "us")
    assert task(engine, started).domain == "eu"
    pass_time(engine, NOTICED_SECONDS - 9, "us")

    assert task(engine, started).domain == "us"


def test_a_task_in_a_domain_that_nobody_ever_polled_goes_where_a_worker_comes_up(engine: Engine) -> None:
    started = start(engine, {"work": "asia, mars"})
    assert task(engine, started).domain == "mars"

    pass_time(engine, 9, "asia")
    assert task(engine, started).domain == "mars"
    pass_time(engine, NOTICED_SECONDS - 9, "asia")

    assert task(engine, started).domain == "asia"


def test_nothing_moves_while_no_listed_domain_is_polled(engine: Engine) -> None:
    started = start(engine)

    pass_time(engine, 30, "mars")

    assert task(engine, started).domain == "eu"


def test_a_task_with_one_domain_stays_there(engine: Engine) -> None:
    started = start(engine, {"work": "eu"})

    pass_time(engine, 30, "us")

    assert task(engine, started).domain == "eu"


def test_a_started_task_stays_with_its_worker(engine: Engine) -> None:
    serve(engine, "eu")
    started = start(engine)
    engine.run(0.5)
    assert task(engine, started).status == "IN_PROGRESS"

    pass_time(engine, 12, "us")

    assert commands(engine, RerouteTask) == []


def test_a_task_that_waits_for_a_slot_goes_too(engine: Engine) -> None:
    engine.register_task({"name": "work", "retryCount": 0, "concurrentExecLimit": 1})
    first, second = start(engine), start(engine)
    engine.run(0.5)

    pass_time(engine, NOTICED_SECONDS, "us")

    assert {task(engine, first).domain, task(engine, second).domain} == {"us"}


def test_a_domain_is_not_silent_because_nobody_could_speak(engine: Engine) -> None:
    """After an outage the first words come in any order."""
    started = start(engine)
    engine.clock.advance(30_000)
    pass_time(engine, 2, "us")
    pass_time(engine, 10, "us", "eu")

    assert task(engine, started).domain == "eu"


def test_the_next_owner_of_the_partition_reroutes_as_well(engine: Engine) -> None:
    started = start(engine)
    (node,) = engine.nodes
    node.stop()
    node.start()
    pass_time(engine, NOTICED_SECONDS + 8, "us")

    assert task(engine, started).domain == "us"


def test_a_long_line_goes_in_portions(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_AT_ONCE", 2)
    started = [start(engine) for _ in range(7)]

    pass_time(engine, NOTICED_SECONDS + 5, "us")

    assert {task(engine, workflow_id).domain for workflow_id in started} == {"us"}
    assert len(commands(engine, RerouteTask)) == len(started), "each was told once"


def test_what_could_not_be_sent_is_found_again(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    started = start(engine)
    sent: list[bytes] = []

    def refuses(writer: MemoryWriter, topic: str, partition: int, key: bytes, *rest: Any, **more: Any) -> None:
        if key == started.encode() and not sent:
            sent.append(key)
            raise Retriable("not now")
        send(writer, topic, partition, key, *rest, **more)

    send = MemoryWriter.send
    monkeypatch.setattr(MemoryWriter, "send", refuses)
    pass_time(engine, NOTICED_SECONDS + 1, "us")

    assert sent
    assert task(engine, started).domain == "us"


def test_nothing_is_kept_of_what_has_ended_or_was_moved(engine: Engine) -> None:
    ended, moved = start(engine), start(engine)
    (node,) = engine.nodes
    assert sum(len(partition.choosers) for partition in node.partitions.values()) == 2

    engine.terminate(ended)
    engine.move(moved, "mars")

    assert sum(len(partition.choosers) for partition in node.partitions.values()) == 0


def test_workflows_without_domains_are_not_known_here(engine: Engine) -> None:
    engine.start_task("work")
    (node,) = engine.nodes

    assert sum(len(partition.choosers) for partition in node.partitions.values()) == 0
