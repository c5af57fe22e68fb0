"""Heartbeats, callbacks and extended leases: signs of life that use up no attempt."""

import orjson
import pytest

from broker_engine.model.decision import Answer, Delay, Schedule
from broker_engine.model.status import Phase, ReasonCode, TaskStatus, WaitingFor
from tests.builders import SMALL_PAYLOAD, START_MS, Story, a_step, asked


def running(**fields: int) -> Story:
    return Story(a_step("a", **fields)).start().taken()


# --- callbacks ------------------------------------------------------------------------------------


def test_a_callback_puts_the_task_back_until_it_is_due() -> None:
    story = running().progressed(callback_after_ms=2_000)

    task = story.task
    assert (task.status, task.phase, task.waiting_for) == (TaskStatus.SCHEDULED, Phase.QUEUED, WaitingFor.DELAY)
    assert [delay.due_at_ms for delay in story.now(Delay)] == [START_MS + 2_000]
    assert story.now(Schedule) == []


def test_a_callback_that_is_due_is_a_new_hand_out_of_the_same_attempt() -> None:
    story = running()
    first = story.task
    story.progressed(callback_after_ms=2_000).later(2_000).delay_due().later(50).taken()

    task = story.task
    assert (task.task_id, task.attempt, task.hand_out) == (first.task_id, 0, 2)
    assert (task.poll_count, task.started_at_ms) == (2, first.started_at_ms)


def test_a_callback_that_fires_early_is_not_honoured() -> None:
    story = running().progressed(callback_after_ms=10_000).later(5_000).delay_due()

    assert story.task.waiting_for is WaitingFor.DELAY
    assert story.now(Schedule) == []


def test_a_lost_callback_record_is_replaced_by_the_backstop() -> None:
    story = running(response_timeout_seconds=3_600).progressed(callback_after_ms=1_000).next_deadline()

    assert story.codes() == [ReasonCode.DELAY_LOST]
    assert story.now_ms == START_MS + 61_000


def test_the_poll_clock_starts_anew_when_the_callback_is_due() -> None:
    story = running(poll_timeout_seconds=5).progressed(callback_after_ms=20_000).later(20_000)
    assert story.deadline().task.status is TaskStatus.SCHEDULED

    story.delay_due()
    assert (story.task.next_deadline, story.task.next_deadline_at_ms) == ("poll", START_MS + 25_000)


def test_the_task_clock_goes_on_during_a_callback() -> None:
    story = running(timeout_seconds=10, response_timeout_seconds=10, retry_count=0)
    story.progressed(callback_after_ms=30_000).next_deadline()

    assert story.now_ms == START_MS + 10_000
    assert story.task.status is TaskStatus.TIMED_OUT


def test_a_worker_that_put_its_task_away_holds_no_lease() -> None:
    story = running()
    held = story.task
    story.progressed(callback_after_ms=2_000)

    before = story.execution
    story.completed({}, of=held, sequence=9).assert_untouched(before, says="lease")


def test_the_hand_out_that_was_put_away_cannot_be_started_again() -> None:
    story = running().progressed(callback_after_ms=2_000)
    before = story.execution

    story.taken().assert_untouched(before, says="put away")


# --- heartbeats -----------------------------------------------------------------------------------


def test_a_heartbeat_restarts_the_response_clock_and_keeps_the_task_in_progress() -> None:
    story = running(response_timeout_seconds=10).later(9_000).progressed()

    assert (story.task.status, story.task.poll_count) == (TaskStatus.IN_PROGRESS, 1)
    assert (story.task.next_deadline, story.task.next_deadline_at_ms) == ("response", START_MS + 19_000)
    assert story.decision.transitions == ()


def test_a_second_start_restarts_the_response_clock_of_a_beating_task() -> None:
    story = running(response_timeout_seconds=10).later(1_000).progressed().later(5_000).taken()

    assert story.task.next_deadline_at_ms == START_MS + 16_000


def test_a_heartbeat_names_the_worker_that_has_the_task_now() -> None:
    story = running()
    assert story.task.worker_id != "collector"

    assert story.progressed(worker_id="collector").task.worker_id == "collector"


def test_heartbeats_merge_output_by_key_and_the_result_replaces_it() -> None:
    story = running().progressed({"a": 1, "b": 1}).progressed({"b": 2})
    assert orjson.loads(story.task.output or b"") == {"a": 1, "b": 2}

    story.completed({"c": 3}, sequence=3)
    assert orjson.loads(story.task.output or b"") == {"c": 3}


def test_a_callback_merges_output_too() -> None:
    story = running().progressed({"a": 1}).progressed({"b": 2}, callback_after_ms=1_000)

    assert orjson.loads(story.task.output or b"") == {"a": 1, "b": 2}


def test_interim_output_over_the_limit_ends_the_attempt() -> None:
    story = running().given(max_payload_bytes=SMALL_PAYLOAD).progressed({"text": "x" * SMALL_PAYLOAD})

    assert story.task.status is TaskStatus.FAILED_WITH_TERMINAL_ERROR
    assert story.task.reason_code is ReasonCode.PAYLOAD_TOO_LARGE


def test_a_repeated_heartbeat_changes_nothing() -> None:
    story = running().progressed({"a": 1})
    before = story.execution

    story.later(1_000).progressed({"a": 2}, sequence=1).assert_untouched(before, says="report 1 was applied already")


def test_a_heartbeat_under_an_older_lease_changes_nothing() -> None:
    story = running()
    old = story.task
    story.taken(worker="worker-2")
    before = story.execution

    story.progressed({"a": 2}, of=old).assert_untouched(before, says="is not the current one")


@pytest.mark.parametrize("callback_after_ms", [0, 1_000])
def test_a_task_that_nobody_runs_has_no_progress(callback_after_ms: int) -> None:
    story = Story("a").start()
    before = story.execution

    story.progressed(callback_after_ms=callback_after_ms).assert_untouched(before, says="no worker runs it")


# --- leases ---------------------------------------------------------------------------------------


def test_an_extended_lease_restarts_only_the_response_clock() -> None:
    story = running(response_timeout_seconds=10, timeout_seconds=15)
    before = story.task
    story.later(9_000).extend_lease()

    assert (story.task.next_deadline, story.task.next_deadline_at_ms) == ("task", START_MS + 15_000)
    assert (story.task.sequence, story.task.output) == (before.sequence, before.output)


def test_an_older_lease_is_not_extended() -> None:
    story = running()
    old = story.task
    story.taken(worker="worker-2")
    before = story.execution

    story.extend_lease(of=old).assert_untouched(before, says="is not the current one")


def test_a_client_extends_whatever_lease_is_held() -> None:
    story = running().later(1_000).extend_lease(lease=None, **asked())

    assert story.answer.status == 200
    assert story.task.heartbeat_at_ms == START_MS + 1_000


def test_extending_an_earlier_attempt_does_nothing_and_is_no_error() -> None:
    story = running()
    first = story.task
    story.failed().extend_lease(of=first, lease=None, **asked())

    assert story.answer.status == 200
    assert "not the latest attempt" in (story.ignored or "")


# --- reset ----------------------------------------------------------------------------------------


def test_a_reset_leaves_the_back_off_of_a_retry_alone() -> None:
    story = running().failed()
    before = story.execution

    story.reset_callbacks().assert_untouched(before, says="no task waits for a callback")


def test_the_delay_record_of_a_reset_callback_changes_nothing() -> None:
    story = running().progressed(callback_after_ms=60_000)
    waiting = story.task
    story.reset_callbacks().later(60_000)
    before = story.execution

    story.delay_due(of=waiting).assert_untouched(before, says="waits for no delay")


def test_a_reset_is_answered_once() -> None:
    story = running().progressed(callback_after_ms=60_000).reset_callbacks(**asked()).reset_callbacks(**asked())

    assert [answer.status for answer in story.outputs(Answer)] == [200, 200]
    assert story.ignored == "repeated command"
