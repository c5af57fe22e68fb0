"""How long a retry waits: Conductor's formulas, saturating, capped, then jittered."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_engine.decider.identity import jitter_ms
from broker_engine.decider.retries import (
    MAX_DELAY_SECONDS,
    RETRY_LOGICS,
    retry_delay_ms,
    retry_delay_seconds,
)
from broker_engine.model.definitions import RetryLogic, TaskDef
from tests.builders import FIXED, a_task_def

FIXED_LOGIC, LINEAR, EXPONENTIAL = RetryLogic.FIXED, RetryLogic.LINEAR_BACKOFF, RetryLogic.EXPONENTIAL_BACKOFF

seconds = st.integers(0, 2**31 - 1)
attempts = st.integers(0, 10_000)
definitions = st.builds(
    a_task_def,
    retry_logic=st.sampled_from(RetryLogic),
    retry_delay_seconds=seconds | st.integers(0, 120),
    backoff_scale_factor=st.integers(1, 2**31 - 1) | st.integers(1, 10),
    max_retry_delay_seconds=st.just(0) | seconds | st.integers(0, 3_600),
    backoff_jitter_ms=st.just(0) | seconds | st.integers(0, 5_000),
)


@FIXED
@given(definitions, attempts)
def test_a_delay_is_whole_seconds_between_nothing_and_where_java_saturates(definition: TaskDef, n: int) -> None:
    delay = retry_delay_seconds(definition, n)

    assert type(delay) is int
    assert 0 <= delay <= MAX_DELAY_SECONDS


@FIXED
@given(definitions, st.integers(0, 60))
def test_delays_never_shrink(definition: TaskDef, n: int) -> None:
    delays = [retry_delay_seconds(definition, attempt) for attempt in range(n, n + 5)]

    assert delays == sorted(delays)


@FIXED
@given(definitions, attempts)
def test_the_cap_holds_for_every_logic(definition: TaskDef, n: int) -> None:
    cap = definition.max_retry_delay_seconds

    if cap:
        assert retry_delay_seconds(definition, n) <= cap


@FIXED
@given(definitions, attempts)
def test_only_a_base_of_zero_gives_no_delay(definition: TaskDef, n: int) -> None:
    assert (retry_delay_seconds(definition, n) == 0) == (definition.retry_delay_seconds == 0)


@FIXED
@given(definitions, attempts, st.text(max_size=40))
def test_jitter_comes_on_top_of_the_capped_delay(definition: TaskDef, n: int, task_id: str) -> None:
    delay_ms = retry_delay_ms(definition, n, task_id)

    assert type(delay_ms) is int
    assert 0 <= delay_ms - retry_delay_seconds(definition, n) * 1_000 <= definition.backoff_jitter_ms


@FIXED
@given(definitions, attempts, st.text(max_size=40))
def test_the_same_failure_waits_the_same(definition: TaskDef, n: int, task_id: str) -> None:
    assert retry_delay_ms(definition, n, task_id) == retry_delay_ms(definition, n, task_id)


def test_every_retry_logic_has_its_formula() -> None:
    assert set(RETRY_LOGICS) == set(RetryLogic)


@pytest.mark.parametrize(
    ("logic", "delays"),
    [(FIXED_LOGIC, [5, 5, 5, 5]), (LINEAR, [10, 20, 30, 40]), (EXPONENTIAL, [5, 10, 20, 40])],
)
def test_the_first_delays_of_each_logic(logic: RetryLogic, delays: list[int]) -> None:
    definition = a_task_def(retry_logic=logic, retry_delay_seconds=5, backoff_scale_factor=2)

    assert [retry_delay_seconds(definition, n) for n in range(4)] == delays


@pytest.mark.parametrize("base", [1, 4, 5, 20, 60])
@pytest.mark.parametrize("n", [31, 50, 10_000])
def test_a_long_exponential_back_off_saturates(base: int, n: int) -> None:
    """D1: Conductor's 32-bit product wraps to 0 or below for some of these."""
    definition = a_task_def(retry_logic=EXPONENTIAL, retry_delay_seconds=base)

    assert retry_delay_seconds(definition, n) == MAX_DELAY_SECONDS


@pytest.mark.parametrize("base", [4, 5, 20, 60])
def test_an_exponential_back_off_saturates_where_conductor_wraps_to_small_numbers(base: int) -> None:
    """D1: with n=30 Conductor waits 0 s for 4, 20 and 60, and 1073741824 s for 5."""
    assert retry_delay_seconds(a_task_def(retry_logic=EXPONENTIAL, retry_delay_seconds=base), 30) == MAX_DELAY_SECONDS


def test_the_largest_exponential_delay_that_fits_is_exact() -> None:
    assert retry_delay_seconds(a_task_def(retry_logic=EXPONENTIAL, retry_delay_seconds=1), 30) == 2**30


def test_a_long_linear_back_off_saturates() -> None:
    """D1: 86400 s * 1000 * 50 wraps to 25032704 s in Conductor."""
    definition = a_task_def(retry_logic=LINEAR, retry_delay_seconds=86_400, backoff_scale_factor=1_000)

    assert retry_delay_seconds(definition, 49) == MAX_DELAY_SECONDS


@pytest.mark.parametrize("limit", [0, 1, 5_000, 2**31 - 1])
def test_jitter_is_bounded_by_its_limit_inclusive(limit: int) -> None:
    drawn = {jitter_ms(f"task-{i}", limit) for i in range(200)}

    assert min(drawn) >= 0
    assert max(drawn) <= limit
    assert limit > 1 or drawn == set(range(limit + 1))


def test_jitter_is_spread_evenly() -> None:
    drawn = [jitter_ms(f"task-{i}", 5_000) for i in range(2_000)]

    per_fifth = [sum(low <= value < low + 1_000 for value in drawn) for low in range(0, 5_000, 1_000)]
    assert all(300 < count < 500 for count in per_fifth), per_fifth


def test_attempts_of_one_task_draw_different_jitter() -> None:
    assert len({jitter_ms(f"task-attempt-{n}", 1_000_000) for n in range(10)}) == 10
