"""Conformance rows about callbacks and leases, told as values through the decider."""

from broker_engine.model.status import TaskStatus, WaitingFor
from tests.builders import START_MS, Story, a_step, asked


def test_row_23_a_callback_of_2_s_is_invisible_and_then_polled_again() -> None:
    story = Story("a").start().taken()
    first = story.task
    story.progressed(callback_after_ms=2_000)
    assert (story.task.status, len(story.schedules)) == (TaskStatus.SCHEDULED, 1)

    story.later(1_999).delay_due()
    assert len(story.schedules) == 1

    story.later(1).deadline().taken()
    assert (story.task.task_id, story.task.poll_count) == (first.task_id, 2)
    assert story.task.started_at_ms == first.started_at_ms


def test_row_24_reset_callbacks_makes_a_callback_visible_now() -> None:
    story = Story("a").start().taken().progressed(callback_after_ms=3_600_000).reset_callbacks(**asked())

    assert story.answer.status == 200
    assert (story.task.waiting_for, story.task.due_at_ms) == (WaitingFor.WORKER, None)
    assert [schedule.task.hand_out for schedule in story.schedules] == [1, 2]


def test_row_24_reset_callbacks_of_an_ended_workflow_is_a_conflict() -> None:
    story = Story("a").start().taken().completed({}).reset_callbacks(**asked())

    assert story.answer.status == 409
    assert "only a live workflow" in story.answer.message


def test_row_25_extend_lease_moves_the_update_time_and_nothing_else() -> None:
    story = Story("a").start().taken().later(5_000).extend_lease()

    assert story.task.updated_at_ms == START_MS + 5_000
    assert story.task.status is TaskStatus.IN_PROGRESS


def test_row_25_extend_lease_of_an_ended_task_does_nothing() -> None:
    story = Story("a").start().taken().completed({})
    before = story.task

    story.later(5_000).extend_lease(lease=None, **asked())
    assert (story.answer.status, story.task) == (200, before)


def test_row_25_extend_lease_of_an_unknown_task_is_not_found() -> None:
    story = Story("a").start().taken().extend_lease(task_id="unknown", **asked())

    assert story.answer.status == 404


def test_row_45_a_heartbeat_after_the_poll_time_out_keeps_the_task_running() -> None:
    """D4: the poll clock concerns a task that waits in its queue, not one that runs."""
    story = Story(a_step("a", poll_timeout_seconds=5)).start().taken().later(60_000).progressed().deadline()

    assert (story.task.status, story.task.attempt) == (TaskStatus.IN_PROGRESS, 0)


def test_row_45_a_callback_after_the_poll_time_out_is_handed_out_with_a_new_poll_clock() -> None:
    """D4: it does not poll-time-out at once."""
    story = Story(a_step("a", poll_timeout_seconds=5)).start().taken().later(60_000)
    story.progressed(callback_after_ms=2_000).later(2_000).delay_due().later(4_999).deadline()
    assert story.task.status is TaskStatus.SCHEDULED

    story.later(1).deadline()
    assert story.task.status is TaskStatus.TIMED_OUT
