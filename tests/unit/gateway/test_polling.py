"""How much the gateway takes from a queue: what polls ask for, and nothing else."""

from __future__ import annotations

from broker_engine.gateway.polling import Demand


def test_without_a_poll_nothing_is_taken() -> None:
    assert Demand().room() == 0


def test_what_is_on_its_way_or_waits_to_be_collected_is_not_taken_twice() -> None:
    demand = Demand()
    demand.want(3)
    assert demand.room() == 3

    demand.take()
    assert demand.room() == 2
    demand.arrived()
    assert demand.room() == 2
    demand.want(-3)
    assert demand.room() == 0
    demand.gone(1)
    assert demand.room() == 0


def test_a_start_that_was_refused_makes_room_again() -> None:
    demand = Demand()
    demand.want(1)
    demand.take()
    assert demand.room() == 0

    demand.give_back(has_run=False)

    assert demand.room() == 1


def test_an_idle_gateway_does_not_seem_busy() -> None:
    assert Demand().full_seconds == 0.0
