"""How the loss of a worker is noticed: by the log time of the topic on which workers speak."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog

from broker_engine.model.commands import WorkerLost
from broker_engine.model.status import ReasonCode
from broker_engine.testing import Engine
from broker_engine.testing.worker import Behaviour
from broker_engine.topics import Topic
from broker_engine.wire.codecs import PRESENCE
from broker_engine.wire.commands import decode_command
from broker_engine.wire.records import WorkerPresence

TASK = {"name": "work", "retryCount": 3, "retryDelaySeconds": 1, "responseTimeoutSeconds": 3_600}
#: Ten seconds of silence, one turn of looking, and the way to the partition.
NOTICED_SECONDS = 15


@pytest.fixture
def engine() -> Iterator[Engine]:
    with structlog.testing.capture_logs(), Engine() as engine:
        engine.run()
        engine.register_task(TASK)
        yield engine


def speak(engine: Engine, worker: str = "worker-0", *, is_leaving: bool = False) -> None:
    presence = WorkerPresence(worker, "work", "default", 4, 4, "1", 0, is_leaving)
    engine.send_bytes(b"key-" + worker.encode(), PRESENCE.encode(presence), 0, engine.namespace.topic(Topic.WORKERS))


def pass_time(engine: Engine, seconds: int, *speaking: str) -> None:
    """Time passes, in which these workers go on speaking."""
    for _ in range(seconds):
        for worker in speaking:
            speak(engine, worker)
        engine.run(1.0)


def running(engine: Engine) -> str:
    """A workflow whose first attempt was taken by a worker that never ends it."""
    engine.serve("work", behaves=lambda work: Behaviour.DIES_RUNNING if work.attempt == 0 else Behaviour.ANSWERS)
    started = engine.start_task("work")
    engine.run(0.5)
    assert engine.workflow(started).tasks[0].status == "IN_PROGRESS"
    return started


def told(engine: Engine) -> list[WorkerLost]:
    commands = [
        decode_command(record.value, engine.signer, at_ms=0, offset=0) for record in engine.records(Topic.COMMANDS)
    ]
    return [command for command in commands if isinstance(command, WorkerLost)]


def test_the_work_of_a_silent_worker_is_retried(engine: Engine) -> None:
    started = running(engine)
    pass_time(engine, 8, "worker-0")

    pass_time(engine, NOTICED_SECONDS)

    first, second = engine.workflow(started).tasks
    assert (first.status, first.reason_code) == ("TIMED_OUT", ReasonCode.WORKER_LOST)
    assert (second.status, second.attempt) == ("COMPLETED", 1)


def test_a_worker_that_goes_on_speaking_keeps_its_work(engine: Engine) -> None:
    started = running(engine)

    pass_time(engine, 40, "worker-0")

    (only,) = engine.workflow(started).tasks
    assert only.status == "IN_PROGRESS"


def test_a_worker_that_said_good_bye_is_not_lost(engine: Engine) -> None:
    started = running(engine)
    pass_time(engine, 8, "worker-0")
    speak(engine, is_leaving=True)

    pass_time(engine, 40)

    assert engine.workflow(started).tasks[0].status == "IN_PROGRESS"


def test_nobody_is_lost_after_less_than_ten_seconds(engine: Engine) -> None:
    running(engine)
    pass_time(engine, 8, "worker-0")

    pass_time(engine, 9)

    assert told(engine) == []


def test_only_the_partition_in_which_its_work_runs_is_told(engine: Engine) -> None:
    started = running(engine)
    pass_time(engine, 8, "worker-0", "worker-idle")

    pass_time(engine, NOTICED_SECONDS)

    assert {command.worker_id for command in told(engine)} == {"worker-0"}
    (partition,) = {r.partition for r in engine.records(Topic.COMMANDS) if (r.key or b"").startswith(b"lost-")}
    assert partition == engine.log.partition_of(started, engine.partitions)


def test_a_worker_is_not_lost_because_nobody_could_speak(engine: Engine) -> None:
    """After an outage the first words come in any order."""
    running(engine)
    pass_time(engine, 8, "worker-0", "worker-1")
    engine.clock.advance(30_000)
    speak(engine, "worker-1")
    engine.run(1.0)

    pass_time(engine, 20, "worker-0", "worker-1")

    assert told(engine) == []


def test_a_new_session_judges_nobody_before_its_grace_is_over(engine: Engine) -> None:
    started = running(engine)
    pass_time(engine, 8, "worker-0")
    (node,) = engine.nodes
    node.stop()
    for _ in range(12):
        engine.clock.advance(1_000)
        speak(engine, "worker-1")
    node.start()
    pass_time(engine, 4, "worker-1")
    assert told(engine) == []

    pass_time(engine, 5, "worker-1")

    assert engine.workflow(started).tasks[0].reason_code == ReasonCode.WORKER_LOST


def test_a_lost_worker_is_asked_after_for_a_minute_only(engine: Engine) -> None:
    pass_time(engine, 8, "worker-0")
    pass_time(engine, 90)
    asked = len(engine.records(Topic.WORKERS))

    pass_time(engine, 30)

    assert len(engine.records(Topic.WORKERS)) == asked
