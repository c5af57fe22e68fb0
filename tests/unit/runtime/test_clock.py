"""Knowing the broker's time from its records, though the own clock differs and records lie unread."""

from __future__ import annotations

import pytest

from broker_engine.runtime.clock import BrokerClock
from broker_engine.testing import FakeClock


@pytest.mark.parametrize("skew_ms", [-700, 0, 700])
def test_fresh_records_tell_the_difference_of_the_clocks(skew_ms: int) -> None:
    own = FakeClock()
    clock = BrokerClock(own)
    for delivery_ms in (30, 5, 20):
        clock.observe(own() + skew_ms - delivery_ms)

    assert clock.now_ms() == own() + skew_ms - 5


def test_a_record_that_lay_unread_says_nothing() -> None:
    """Taken for fresh, a restarted process would think it earlier by the record's age, and be late by that."""
    own = FakeClock()
    clock = BrokerClock(own)
    clock.observe(own() - 600_000)

    assert clock.now_ms() == own()


def test_a_record_that_was_just_written_tells_of_any_difference() -> None:
    own = FakeClock()
    clock = BrokerClock(own)
    clock.observe(own() - 60_000, is_new=True)

    assert clock.now_ms() == own() - 60_000


def test_a_record_from_the_future_is_believed() -> None:
    """The broker has written it, so its time is that already."""
    own = FakeClock()
    clock = BrokerClock(own)
    clock.observe(own() + 60_000)

    assert clock.now_ms() == own() + 60_000


def test_a_drift_is_noticed_within_two_minutes() -> None:
    own = FakeClock()
    clock = BrokerClock(own)
    clock.observe(own() + 500)
    for _ in range(3):
        own.advance(60_001)
        clock.observe(own() + 100)

    assert clock.now_ms() == own() + 100
