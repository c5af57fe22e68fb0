"""The delay tiers: never early, nothing lost, firing twice is harmless, a burst goes out in batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from broker_engine.errors import Retriable
from broker_engine.log.ports import Delivery, TopicPartition
from broker_engine.model.commands import DelayDue
from broker_engine.runtime import delays as role
from broker_engine.runtime.delays import TierLoop
from broker_engine.testing import Engine
from broker_engine.topics import DELAY_TIERS, LAST_HOP
from broker_engine.wire.codecs import DELAYED_COMMAND
from broker_engine.wire.records import DelayedCommand
from tests.support.looking import commands


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine() as engine:
        engine.run()
        engine.nodes[0].stop()  # the commands are only looked at
        yield engine


def delay(engine: Engine, ms: int, tier: str = LAST_HOP, workflow_id: str = "w", partition: int = 0) -> int:
    """Put a wait into a tier; returns its due moment."""
    due_at_ms = engine.clock.now_ms() + ms
    value = DELAYED_COMMAND.encode(DelayedCommand(workflow_id, "a", "task", 1, due_at_ms))
    writer = engine.log.writer(client_id="test")
    writer.send(engine.namespace.delay(tier), partition, workflow_id.encode(), value)
    writer.close()
    return due_at_ms


def fired(engine: Engine) -> list[tuple[str, int]]:
    """(workflow id, moment on the log) of each command that came out."""
    return [(command.key, record.timestamp_ms) for command, record in commands(engine, DelayDue)]


def committed(engine: Engine, tier: str = LAST_HOP, partition: int = 0) -> int | None:
    group = engine.log.cluster.group(engine.namespace.delays_group(tier))
    found = group.offsets.get(TopicPartition(engine.namespace.delay(tier), partition))
    return found.offset if found else None


def restart(engine: Engine, tier: str = LAST_HOP) -> TierLoop:
    """The process that serves a tier is killed, missed by its group and started again."""
    engine.log.expire_session(engine.tiers[tier]._reader)  # type: ignore[arg-type]  # a MemoryGroupReader
    loop = engine.tiers[tier] = engine.tier(tier)
    return loop


def test_a_delay_fires_at_its_moment_not_before(engine: Engine) -> None:
    due_at_ms = delay(engine, 1_000)
    engine.run(0.999)
    assert fired(engine) == []

    engine.run(0.001)
    assert fired(engine) == [("w", due_at_ms)]


@pytest.mark.parametrize("clock_ms", [-400, 400])
def test_a_delay_never_fires_early_by_the_brokers_clock(clock_ms: int) -> None:
    """The role's machine is fast or slow: what counts is the broker's time, which its records tell."""
    with Engine() as engine:
        engine.run()
        engine.nodes[0].stop()
        engine.tiers[LAST_HOP].close()
        own = engine.clock.now_ms

        def skewed() -> int:
            return own() + clock_ms

        loop = TierLoop(engine.log, engine.namespace, LAST_HOP, engine.signer, client_id="skewed", clock=skewed)
        loop.open()
        engine.tiers = {LAST_HOP: loop}
        due_at_ms = delay(engine, 1_000)
        for _ in range(1_500):
            engine.clock.advance(1)
            loop.step()

        ((_, moment),) = fired(engine)
        assert moment >= due_at_ms


def test_later_records_that_are_due_earlier_overtake(engine: Engine) -> None:
    delay(engine, 5_000, workflow_id="slow")
    delay(engine, 1_000, workflow_id="fast")
    engine.run(6)

    assert [key for key, _ in fired(engine)] == ["fast", "slow"]


@pytest.mark.parametrize("seconds", [16, 100, 1_000, 20_000])
def test_a_long_delay_hops_through_tiers_and_is_right(engine: Engine, seconds: int) -> None:
    """Each hop waits the tier's time at most, so the rest shrinks to the last hop."""
    tier = role.tier_for(seconds * 1_000)
    assert DELAY_TIERS[tier] > 0
    due_at_ms = delay(engine, seconds * 1_000, tier)
    engine.run(seconds)

    assert fired(engine) == [("w", due_at_ms)]


def test_offsets_are_committed_only_up_to_what_has_fired(engine: Engine) -> None:
    """Committed past a record that still waits, it would be lost with the process."""
    delay(engine, 9_000, workflow_id="first")
    delay(engine, 1_000, workflow_id="second")
    delay(engine, 2_000, workflow_id="third")
    engine.run(5)
    assert [key for key, _ in fired(engine)] == ["second", "third"]
    assert committed(engine) in (None, 0)

    engine.run(5)
    assert committed(engine) == 3


def test_a_killed_role_fires_again_and_loses_nothing(engine: Engine) -> None:
    delay(engine, 9_000, workflow_id="first")
    delay(engine, 1_000, workflow_id="second")
    engine.run(2)
    restart(engine)
    engine.run(9)

    keys = [key for key, _ in fired(engine)]
    assert set(keys) == {"first", "second"}
    assert keys.count("first") == 1
    assert keys.count("second") == 2  # harmless: the decider looks at the state


def test_a_killed_tier_loses_nothing(engine: Engine) -> None:
    due_at_ms = delay(engine, 20_000, "15s")
    engine.run(10)
    restart(engine, "15s")
    engine.run(10)

    assert [(key, moment) for key, moment in fired(engine)] == [("w", due_at_ms)]


def test_a_command_that_could_not_be_sent_is_sent_later(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its offset counts as fired only when the command is in the log."""
    loop = engine.tiers[LAST_HOP]
    send, failures = loop._writer.send, [1]

    def fails_once(topic: str, partition: int, key: bytes, value: bytes, on_delivery: Any) -> None:
        if failures:
            failures.pop()
            on_delivery(Delivery(topic, partition, -1, -1, Retriable("timed out in the queue")))
        else:
            send(topic, partition, key, value, on_delivery=on_delivery)

    monkeypatch.setattr(loop._writer, "send", fails_once)
    delay(engine, 1_000)
    engine.run(2)

    assert not failures
    assert [key for key, _ in fired(engine)] == ["w"]


def test_a_burst_goes_out_in_bounded_batches(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one go it would keep the group waiting, be thrown out and fire everything again."""
    monkeypatch.setattr(role, "FIRE_BATCH", 10)
    for number in range(25):
        delay(engine, 1_000, workflow_id=f"w{number}")
    engine.run(0.5)
    engine.clock.advance(500)
    loop, counts = engine.tiers[LAST_HOP], []
    for _ in range(4):
        loop.step()
        counts.append(len(fired(engine)))

    assert counts == [10, 20, 25, 25]


def test_a_full_partition_is_paused_and_goes_on(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded: what is not held yet waits in the log."""
    loop = engine.tiers["15s"]
    monkeypatch.setattr(loop, "_max_held", 5)
    monkeypatch.setattr(role, "_READ_BATCH", 5)
    for number in range(12):
        delay(engine, 15_000, "15s", workflow_id=f"w{number}")
    engine.run()
    assert len(loop._heap) <= 10

    engine.run(40)
    assert len({key for key, _ in fired(engine)}) == 12


def test_an_undecodable_delay_is_passed_over(engine: Engine) -> None:
    writer = engine.log.writer(client_id="test")
    writer.send(engine.namespace.delay(LAST_HOP), 0, b"k", b"garbage")
    writer.close()
    delay(engine, 1_000)
    engine.run(2)

    assert [key for key, _ in fired(engine)] == ["w"]
    assert committed(engine) == 2


def test_the_loop_wakes_for_its_next_moment(engine: Engine) -> None:
    """A fixed sleep would be its lateness."""
    loop = engine.tiers[LAST_HOP]
    delay(engine, 40)
    engine.run()

    assert 0.03 <= loop._wait() <= 0.04
