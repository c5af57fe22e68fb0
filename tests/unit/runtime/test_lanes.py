"""Starts wait in lanes of their own: what runs comes first, no tenant waits behind another, nothing overtakes."""

from __future__ import annotations

from collections.abc import Iterator

import orjson
import pytest

from broker_engine.decider.definition_tree import single_task_workflow
from broker_engine.errors import NotFound
from broker_engine.log.ports import Record, TopicPartition
from broker_engine.model.commands import StartWorkflow, TerminateWorkflow
from broker_engine.runtime.lanes import MAX_WAITING, RESUME_BELOW, Lanes
from broker_engine.testing import Engine
from broker_engine.topics import START_LANES, Topic, lane_of
from tests.support.looking import dead_letters, name_in, workflow

LANES = {"starts.0": 0, "starts.1": 1}


def start(lane: int, offset: int, partition: int = 0, size: int = 1) -> Record:
    return Record(f"starts.{lane}", partition, offset, 0, b"k", b"x" * size, ())


def filled(*counts: int) -> Lanes:
    lanes = Lanes(LANES)
    lanes.sort([start(lane, offset) for lane, count in enumerate(counts) for offset in range(count)])
    return lanes


# --- the buffers ------------------------------------------------------------------------------------------------------


def test_lanes_take_turns() -> None:
    lanes = filled(100, 2)

    assert [(r.topic[-1], r.offset) for r in lanes.take(5)] == [("0", 0), ("1", 0), ("0", 1), ("1", 1), ("0", 2)]
    assert len(lanes) == 97


def test_partitions_of_a_lane_take_turns_too() -> None:
    lanes = Lanes(LANES)
    lanes.sort([start(0, offset, partition) for partition in (0, 1) for offset in range(3)])

    assert [(r.partition, r.offset) for r in lanes.take(4)] == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_what_is_no_start_is_handed_through() -> None:
    lanes, command = Lanes(LANES), Record("commands", 0, 0, 0, b"k", b"v", ())

    assert lanes.sort([start(0, 0), command]) == [command]
    assert lanes.sort([command]) == [command]
    assert len(lanes) == 1


@pytest.mark.parametrize(("count", "size"), [(MAX_WAITING, 1), (5, 1024 * 1024)], ids=["many", "large"])
def test_a_full_lane_is_paused_once_and_read_on_when_it_has_room(count: int, size: int) -> None:
    lanes = Lanes(LANES)
    lanes.sort([start(0, offset, size=size) for offset in range(count)])

    assert lanes.to_pause() == [TopicPartition("starts.0", 0)]
    assert lanes.to_pause() == []
    lanes.take(max(count - RESUME_BELOW - 1, 0))
    assert lanes.to_resume() == ([] if count > RESUME_BELOW else [TopicPartition("starts.0", 0)])
    lanes.take(1)
    lanes.take(1)
    assert lanes.to_resume() == ([TopicPartition("starts.0", 0)] if count > RESUME_BELOW else [])


def test_a_partition_that_is_given_away_leaves_nothing_behind() -> None:
    lanes = Lanes(LANES)
    lanes.sort([start(0, 0, partition=0), start(0, 0, partition=1), start(1, 0, partition=1)])
    lanes.drop(1)

    assert [r.partition for r in lanes.take(10)] == [0]
    assert not lanes.waits(lanes.of(1))


# --- in the engine ----------------------------------------------------------------------------------------------------


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine(partitions=2, batch_records=10) as engine:
        engine.run()
        engine.register_task({"name": "work"})
        yield engine


def a_start(engine: Engine, key: str, tenant: str | None = None) -> StartWorkflow:
    definition = orjson.dumps(single_task_workflow("work"))
    return StartWorkflow(key=key, name="work", definition=definition, tenant=tenant, **engine.asked())


def another_lane_than(tenant: str) -> str:
    return next(f"t{n}" for n in range(100) if lane_of(f"t{n}") != lane_of(tenant))


def test_a_flood_of_one_tenant_does_not_hold_up_another(engine: Engine) -> None:
    for number in range(600):
        engine.send(a_start(engine, f"flood-{number}", "big"))
    engine.step()
    engine.send(a_start(engine, "small", another_lane_than("big")))
    for _ in range(25):  # turns of ten
        engine.step()

    started = [record.key for record in engine.records(Topic.WORKFLOW_STATE)]
    assert b"small" in started
    assert len(started) < 300


def test_a_command_waits_for_the_start_that_it_is_about(engine: Engine) -> None:
    """Sent after its start, read before it: answered 404 the client would believe that its workflow was lost."""
    for number in range(60):
        engine.send(a_start(engine, f"flood-{number}"))
    engine.send(a_start(engine, "mine"))
    terminate = TerminateWorkflow(key="mine", **engine.asked())
    engine.send(terminate)
    engine.run()

    assert engine.answers[terminate.command_id or ""].status == 200
    assert workflow(engine, "mine").status == "TERMINATED"


def test_a_command_about_nothing_is_answered_once_all_starts_are_read(engine: Engine) -> None:
    for number in range(60):
        engine.send(a_start(engine, f"flood-{number}"))

    with pytest.raises(NotFound):
        engine.terminate("nothing")


def test_a_start_that_waits_long_in_its_lane_does_not_expire(engine: Engine) -> None:
    """Its sender's patience counts until it is on the log: a flood of a hundred thousand takes longer than a minute."""
    (node,) = engine.nodes
    node.stop()
    engine.send(a_start(engine, "patient"))
    engine.clock.advance(3_600_000)
    node.start()
    engine.send(TerminateWorkflow(key="log time moves on"))
    engine.run()

    assert workflow(engine, "patient").status == "RUNNING"
    assert workflow(engine, "patient").created_at_ms <= engine.clock.now_ms()


@pytest.mark.parametrize("moment", ["clean", "crash"])
def test_another_owner_goes_on_where_the_lane_was(engine: Engine, moment: str) -> None:
    ids = [name_in(number % 2, prefix=f"p{number}-") for number in range(20)]
    for key in ids:
        engine.send(a_start(engine, key))
    engine.step()
    (node,) = engine.nodes
    if moment == "clean":
        node.stop()
    else:
        node.kill()
        node.bury()
    engine.nodes.append(engine.node("1"))
    engine.run()

    started = [record.key.decode() for record in engine.records(Topic.WORKFLOW_STATE) if record.key]
    assert sorted(started) == sorted(ids), "each exactly once"


def test_anything_but_a_start_in_a_lane_is_a_dead_letter(engine: Engine) -> None:
    topic = engine.namespace.starts(0)
    start = a_start(engine, name_in(0))
    engine.send(start)
    engine.run()
    for record in engine.records(Topic.COMMANDS)[:1]:
        engine.send_bytes(record.key, record.value, record.partition, topic)
    engine.send_bytes(b"k", b"noise", 0, topic)
    engine.run()

    reasons = [letter["reason"] for letter in dead_letters(engine)]
    assert any("only starts may stand" in reason for reason in reasons)
    assert any("not a framed Avro record" in reason for reason in reasons)


def test_a_tenant_has_one_lane() -> None:
    assert {lane_of(f"tenant-{number}") for number in range(200)} == set(range(START_LANES))
    assert lane_of(None) == lane_of("")
