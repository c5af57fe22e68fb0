"""The limiter's rules by values: who gets a slot, when, and what is kept."""

from __future__ import annotations

from typing import Any

import pytest

from broker_engine.decider.limits import AGING_MS, ASK_AFTER_MS, ASK_EVERY_MS, PATIENCE_MS
from broker_engine.model.definitions import LimitScope
from broker_engine.model.slots import ReleaseSlot, SlotStarted
from tests.support.limits import Limiter


def limited(**fields: Any) -> Limiter:
    return Limiter(encode=fields)


def test_a_freed_slot_goes_to_the_next_waiter_at_once() -> None:
    limiter = limited(concurrent_exec_limit=1).request("a").request("b")
    assert limiter.granted == ["a"]

    assert limiter.start("a").release("a").granted == ["a", "b"]


def test_a_grant_that_is_given_back_unstarted_frees_its_slot() -> None:
    assert limited(concurrent_exec_limit=1).request("a", "b").release("a").granted == ["a", "b"]


def test_a_canceled_waiter_leaves_the_line() -> None:
    assert limited(concurrent_exec_limit=1).request("a", "b", "c").release("b", "a").granted == ["a", "c"]


def test_a_repeated_request_counts_once() -> None:
    assert limited(concurrent_exec_limit=2).request("a", "a", "b").granted == ["a", "b"]


def test_a_repeated_release_frees_one_slot() -> None:
    limiter = limited(concurrent_exec_limit=2).request("a", "b", "c", "d").start("a").release("a", "a")

    assert limiter.granted == ["a", "b", "c"]


def test_a_late_release_of_an_earlier_hand_out_leaves_the_current_one() -> None:
    limiter = limited(concurrent_exec_limit=1).request("a", hand_out=2).request("b").release("a", hand_out=1)

    assert limiter.granted == ["a"]


def test_a_new_hand_out_replaces_the_one_before() -> None:
    limiter = limited(concurrent_exec_limit=1).request("a").request("a", hand_out=2)

    assert list(limiter.state.entries) == ["a/2"]


def test_an_older_request_that_comes_late_changes_nothing() -> None:
    limiter = limited(concurrent_exec_limit=1).request("a", hand_out=2).request("a", hand_out=1)

    assert list(limiter.state.entries) == ["a/2"]


def test_nothing_is_kept_of_an_ended_task_without_a_rate() -> None:
    assert not limited(concurrent_exec_limit=1).request("a").start("a").release("a").state.entries


# --- order --------------------------------------------------------------------------------------------------------


def test_higher_priority_goes_first() -> None:
    limiter = limited(concurrent_exec_limit=1).request("a").request("low").request("high", priority=5)

    assert limiter.release("a").granted == ["a", "high"]


def test_equal_priority_goes_by_age() -> None:
    limiter = limited(concurrent_exec_limit=1).request("a", "z").later(1).request("b")

    assert limiter.release("a").granted == ["a", "z"]


@pytest.mark.parametrize(("head_start_ms", "first"), [(99 * AGING_MS + 1, "old"), (99 * AGING_MS - 1, "urgent")])
def test_priority_99_overtakes_99_agings_of_waiting_and_no_more(head_start_ms: int, first: str) -> None:
    limiter = limited(concurrent_exec_limit=1).request("a", "old").later(head_start_ms).request("urgent", priority=99)

    assert limiter.release("a").granted == ["a", first]


def test_a_hand_out_that_was_voided_keeps_its_age() -> None:
    limiter = limited(concurrent_exec_limit=1).request("a").later(10).request("b").later(10)
    limiter.request("a", hand_out=2, asked_at_ms=limiter.now_ms - 20)

    assert limiter.granted == ["a", "a"]


# --- scopes and several limits -------------------------------------------------------------------------------------


def test_a_limit_counts_all_domains_together() -> None:
    assert limited(concurrent_exec_limit=1).request("a").request("b", domain="gpu").granted == ["a"]


def test_a_limit_by_domain_counts_each_queue() -> None:
    limiter = limited(concurrent_exec_limit=1, limit_scope=LimitScope.TYPE_AND_DOMAIN)

    assert limiter.request("a").request("b", domain="gpu").granted == ["a", "b"]


def test_the_global_cap_counts_all_types() -> None:
    limiter = Limiter(encode={}, mail={}, global_cap=1).request("a").request("b", task_type="mail")

    assert limiter.granted == ["a"]


def test_the_tenant_cap_holds_nobody_else_back() -> None:
    limiter = Limiter(encode={}, tenant_cap=1).request("a", "b", tenant="x").request("c", tenant="y")

    assert limiter.granted == ["a", "c"]


def test_a_lock_has_one_holder_over_all_types() -> None:
    limiter = Limiter(parse={}, load={}).request("a", task_type="parse", resource="f1")
    limiter.request("b", task_type="load", resource="f1").request("c", task_type="load", resource="f2")

    assert limiter.granted == ["a", "c"]


def test_the_next_holder_of_a_lock_follows_at_once() -> None:
    limiter = limited().request("a", "b", resource="f1").start("a").release("a")

    assert limiter.granted == ["a", "b"]


def test_a_waiter_for_a_lock_holds_no_slot_meanwhile() -> None:
    limiter = limited(concurrent_exec_limit=2).request("a", "b", resource="f1").request("c")

    assert limiter.granted == ["a", "c"]


def test_a_waiter_out_of_patience_gets_what_frees_kept_for_it() -> None:
    """Without that, b would need lock and slot to be free at the same moment."""
    limiter = limited(concurrent_exec_limit=1).request("a").request("b", resource="f1")
    limiter.request("holder", task_type="other", resource="f1").release("holder")
    limiter.request("holder", task_type="other", resource="f1", hand_out=2).later(PATIENCE_MS)
    limiter.release("holder", hand_out=2).request("thief", task_type="other", resource="f1")

    assert "thief" not in limiter.granted


def test_only_one_impatient_waiter_has_something_kept() -> None:
    limiter = limited(concurrent_exec_limit=1).request("a")
    limiter.request("b", resource="f1").request("c", resource="f2").later(PATIENCE_MS)

    assert limiter.request("d", task_type="other", resource="f2").granted == ["a", "d"]


# --- rate ---------------------------------------------------------------------------------------------------------


def test_the_window_opens_exactly_one_window_after_the_start() -> None:
    limiter = limited(rate_limit_per_frequency=1, rate_limit_frequency_in_seconds=5).request("a", "b").later(40)
    limiter.start("a")

    assert limiter.later(4_999).tick().granted == ["a"]
    assert limiter.later(1).tick().granted == ["a", "b"]


def test_the_limiter_says_when_the_window_opens() -> None:
    limiter = limited(rate_limit_per_frequency=1, rate_limit_frequency_in_seconds=5).request("a", "b").later(40)

    assert limiter.start("a").next_due_ms == limiter.now_ms + 5_000


def test_the_window_is_measured_by_the_start_s_own_log_time_even_when_it_is_ahead() -> None:
    """Starts and limits may be read from partitions whose log times differ."""
    limiter = limited(rate_limit_per_frequency=1, rate_limit_frequency_in_seconds=5).request("a", "b")
    limiter.tell(SlotStarted("a", 1, limiter.now_ms + 300))

    assert limiter.later(5_299).tick().granted == ["a"]
    assert limiter.later(1).tick().granted == ["a", "b"]


def test_an_unstarted_grant_counts_for_the_rate_however_old_it_is() -> None:
    limiter = limited(rate_limit_per_frequency=1, rate_limit_frequency_in_seconds=1).request("a", "b").later(60_000)

    assert limiter.tick().granted == ["a"]


def test_a_grant_given_back_unstarted_does_not_count_for_the_rate() -> None:
    limiter = limited(rate_limit_per_frequency=1, rate_limit_frequency_in_seconds=5).request("a", "b").release("a")

    assert limiter.granted == ["a", "b"]


def test_a_start_that_has_left_the_window_is_forgotten() -> None:
    limiter = limited(rate_limit_per_frequency=1, rate_limit_frequency_in_seconds=5).request("a").start("a")

    assert not limiter.release("a").later(5_000).tick().state.entries


# --- changes of the definition ------------------------------------------------------------------------------------


def test_a_raised_limit_lets_waiters_in_with_the_next_tick() -> None:
    limiter = limited(concurrent_exec_limit=1).request("a", "b", "c").define(concurrent_exec_limit=2).tick()

    assert limiter.granted == ["a", "b"]


def test_a_lowered_limit_takes_effect_as_slots_free() -> None:
    limiter = limited(concurrent_exec_limit=2).request("a", "b", "c").define(concurrent_exec_limit=1).release("a")
    assert limiter.granted == ["a", "b"]

    assert limiter.release("b").granted == ["a", "b", "c"]


def test_a_removed_definition_limits_nothing() -> None:
    limiter = limited(concurrent_exec_limit=1).request("a", "b")
    limiter.definitions.clear()

    assert limiter.tick().granted == ["a", "b"]


# --- grants that rot ----------------------------------------------------------------------------------------------


def test_a_grant_not_started_in_time_is_asked_about_and_stays_taken() -> None:
    limiter = limited(concurrent_exec_limit=1).request("a", "b").later(ASK_AFTER_MS).tick()

    assert (limiter.expired, limiter.granted) == (["a"], ["a"])


def test_a_grant_is_asked_about_again_only_later() -> None:
    limiter = limited(concurrent_exec_limit=1).request("a").later(ASK_AFTER_MS).tick()
    limiter.later(ASK_EVERY_MS - 1).tick()
    assert limiter.expired == ["a"]

    assert limiter.later(1).tick().expired == ["a", "a"]


def test_nobody_asks_about_a_started_grant() -> None:
    assert not limited(concurrent_exec_limit=1).request("a").start("a").later(ASK_AFTER_MS).tick().expired


def test_an_end_that_overtakes_its_start_still_counts_for_the_rate() -> None:
    """Messages come on two ways: as commands, and at once from the limiter's own process."""
    limiter = Limiter(encode={"rate_limit_per_frequency": 1, "rate_limit_frequency_in_seconds": 10})
    limiter.request("a").tell(ReleaseSlot("a", 1, limiter.now_ms)).start("a").request("b")
    assert limiter.granted == ["a"]

    assert limiter.later(10_000).tick().granted == ["a", "b"]


def test_the_next_request_that_overtakes_the_start_before_it_lets_that_start_count() -> None:
    limiter = Limiter(encode={"rate_limit_per_frequency": 1, "rate_limit_frequency_in_seconds": 10})
    limiter.request("a").request("a", hand_out=2).start("a").release("a")
    assert limiter.granted == ["a"]

    assert limiter.later(10_000).tick().granted == ["a", "a"]
