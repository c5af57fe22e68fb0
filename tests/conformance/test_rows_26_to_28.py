"""Rows 26 to 28 by values, through the limiter's rules: where a poll finds nothing, the task is not granted."""

from tests.support.limits import Limiter


def test_row_26_with_limit_1_the_second_task_is_handed_out_when_the_first_ends() -> None:
    limiter = Limiter(encode={"concurrent_exec_limit": 1}).request("a").start("a").request("b").later(1_000).tick()
    assert limiter.granted == ["a"]

    assert limiter.release("a").granted == ["a", "b"]


def test_row_27_with_limit_2_eight_pollers_never_run_more_than_two_of_three_tasks() -> None:
    limiter = Limiter(encode={"concurrent_exec_limit": 2}).request("a", "b", "c").start("a", "b")
    for _ in range(8):
        limiter.tick()
    assert limiter.granted == ["a", "b"]

    assert limiter.release("b").granted == ["a", "b", "c"]


def test_row_27_a_task_that_cannot_go_yet_does_not_block_ready_ones() -> None:
    limiter = Limiter(encode={"concurrent_exec_limit": 2}).request("a", resource="busy").request("b", resource="busy")

    assert limiter.request("c").granted == ["a", "c"]


def test_row_28_with_rate_1_per_10_s_the_next_goes_when_the_window_opens_whatever_has_ended() -> None:
    definition = {"rate_limit_per_frequency": 1, "rate_limit_frequency_in_seconds": 10}
    limiter = Limiter(encode=definition).request("a").start("a").release("a").request("b").later(9_999).tick()
    assert limiter.granted == ["a"]

    assert limiter.later(1).tick().granted == ["a", "b"]
