"""How much work a queue's thread may take."""

from __future__ import annotations

import threading

from broker_engine.worker.slots import Slots


def test_room_is_what_is_free_and_what_the_pace_will_free() -> None:
    slots = Slots(2)
    assert slots.room() == 2
    slots.take()
    slots.take()
    assert slots.room() == 0

    slots.give_back()

    assert slots.room() == 2, "one free, and one that ended just now"
    slots.take()
    slots.take()
    assert slots.room() == 0


def test_work_that_was_not_run_does_not_count_as_pace() -> None:
    slots = Slots(1)
    slots.take()

    slots.give_back(has_run=False)

    assert slots.room() == 1


def test_being_full_is_counted_from_the_last_slot_taken() -> None:
    slots = Slots(1)
    assert slots.full_seconds == 0
    slots.take()
    assert slots.full_seconds >= 0
    assert slots.free == 0

    slots.give_back()

    assert slots.full_seconds == 0
    assert slots.free == 1


def test_waiting_ends_when_a_slot_is_given_back() -> None:
    slots = Slots(1)
    slots.take()
    assert not slots.wait_for_room(0.0)
    assert not slots.wait_until_idle(0.0)

    threading.Timer(0.01, slots.give_back).start()

    assert slots.wait_for_room(5.0)
    assert slots.wait_until_idle(5.0)
