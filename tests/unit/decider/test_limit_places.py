"""Where a waiting task stands, and who has what it waits for."""

from __future__ import annotations

from broker_engine.decider.limit_places import Standing, standing
from tests.builders import START_MS
from tests.support.limits import Limiter


def stands(limiter: Limiter, task: str) -> Standing:
    found = standing(limiter.state, task, limiter.now_ms, limiter.rules)
    assert found is not None
    return found


def test_the_place_is_counted_among_all_that_wait_for_the_limit() -> None:
    limiter = Limiter(encode={"concurrent_exec_limit": 1}).request("a").start("a")
    limiter.request("b", domain="eu").later(1).request("c", domain="us").later(1).request("d", domain="eu")

    found = stands(limiter, "d")

    assert found.limit is not None
    assert (found.limit.key, found.limit.capacity, found.position) == ("type encode", 1, 3)
    assert [entry.task_id for entry in found.holders] == ["a"]


def test_priority_counts() -> None:
    limiter = Limiter(encode={"concurrent_exec_limit": 1}).request("a", "b").request("urgent", priority=9)

    assert (stands(limiter, "urgent").position, stands(limiter, "b").position) == (1, 2)


def test_a_lock_has_one_holder_whatever_its_type() -> None:
    limiter = Limiter(encode={"resource_lock": "x"}, decode={"resource_lock": "x"})
    limiter.request("a", resource="film").request("b", resource="film", task_type="decode")

    found = stands(limiter, "b")

    assert found.limit is not None
    assert (found.limit.key, found.position, [e.task_id for e in found.holders]) == ("lock film", 1, ["a"])


def test_a_rate_says_when_its_window_opens() -> None:
    limiter = Limiter(encode={"rate_limit_per_frequency": 2, "rate_limit_frequency_in_seconds": 10})
    limiter.request("a").start("a").later(1_000).request("b").start("b").release("a").later(1_000).request("c")

    found = stands(limiter, "c")

    assert found.opens_at_ms == START_MS + 10_000
    assert [entry.task_id for entry in found.holders] == ["a", "b"]


def test_who_does_not_wait_stands_nowhere() -> None:
    limiter = Limiter(encode={"concurrent_exec_limit": 1}).request("a")

    assert standing(limiter.state, "a", limiter.now_ms, limiter.rules) is None
    assert standing(limiter.state, "unknown", limiter.now_ms, limiter.rules) is None
