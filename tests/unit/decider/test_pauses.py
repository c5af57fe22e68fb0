"""Pausing and resuming a task or a workflow: who waits for what, and which clocks stand still meanwhile."""

import pytest

from broker_engine.model.decision import ControlKind, Delay, Schedule, TellWorker
from broker_engine.model.definitions import TimeoutPolicy
from broker_engine.model.status import Phase, ReasonCode, StepStatus, TaskStatus, WaitingFor, WorkflowStatus
from tests.builders import START_MS, Story, a_step, asked

WHY = "paused by user:ann: look first"


# --- a task that waits


def test_a_queued_task_is_held_at_once_and_its_hand_out_is_void() -> None:
    story = Story("a").start()
    before = story.task

    story.pause(reason="look first", **asked())

    assert (story.task.phase, story.task.status) == (Phase.PAUSED, TaskStatus.SCHEDULED)
    assert (story.task.waiting_for, story.task.reason, story.task.paused_by) == (WaitingFor.RESUME, WHY, "user:ann")
    assert story.task.paused_at_ms == START_MS
    assert story.answer.message == "paused"
    (told,) = story.now(TellWorker)
    assert (told.kind, told.hand_out) == (ControlKind.PAUSE, 1)
    story.taken(of=before, wants_confirmation=True)
    assert not story.confirm.accepted
    assert story.task.phase is Phase.PAUSED


def test_resumed_it_is_handed_out_under_the_next_number() -> None:
    story = Story("a").start().pause().later(5_000).resume(**asked())

    (schedule,) = story.now(Schedule)
    assert (schedule.task.attempt, schedule.task.hand_out) == (0, 2)
    assert (story.task.phase, story.task.waiting_for) == (Phase.QUEUED, WaitingFor.WORKER)
    assert (story.task.paused_by, story.task.paused_at_ms, story.task.reason) == (None, None, None)
    assert story.codes() == [ReasonCode.RESUMED]


def test_a_delay_that_fires_meanwhile_is_remembered() -> None:
    story = Story("a").start().taken().failed().pause().later(1_000)

    assert story.delay_due().now(Schedule) == []

    assert story.later(60_000).resume().now(Schedule)[0].task.attempt == 1


@pytest.mark.parametrize("phase", [Phase.CREATED, Phase.RETRY_WAIT, Phase.QUEUED])
def test_what_is_left_of_a_delay_goes_on_after_a_short_pause(phase: Phase) -> None:
    step = a_step("a", retry_delay_seconds=30, start_delay_seconds=30 if phase is Phase.CREATED else 0)
    story = Story(step).start()
    if phase is Phase.RETRY_WAIT:
        story.taken().failed()
    if phase is Phase.QUEUED:
        story.taken().progressed(callback_after_ms=30_000)
    story.pause().later(10_000).resume()

    assert (story.task.phase, story.task.waiting_for) == (phase, WaitingFor.DELAY)
    assert story.task.due_at_ms == START_MS + 30_000
    assert story.later(20_000).delay_due().now(Schedule)


def test_a_delay_that_comes_back_a_moment_early_does_not_end_the_wait_early() -> None:
    story = Story("a").start().taken().failed().pause().later(600).delay_due().resume()

    assert story.task.phase is Phase.RETRY_WAIT
    assert story.next_deadline().now(Schedule)[0].task.attempt == 1
    assert story.now_ms == START_MS + 1_000


# --- a task that runs


def running(**step: object) -> Story:
    return Story(a_step("a", **step), "b").start().taken().step("PARSE", StepStatus.COMPLETED, result=b"7")


def test_a_running_task_goes_on_to_its_next_safe_point() -> None:
    story = running(response_timeout_seconds=10).later(1_000).pause(reason="look first", **asked())

    assert (story.task.phase, story.task.status, story.task.paused_by) == (
        Phase.RUNNING,
        TaskStatus.IN_PROGRESS,
        "user:ann",
    )
    assert story.task.next_deadline_at_ms == START_MS + 10_000  # the request was no sign of life
    assert [told.kind for told in story.now(TellWorker)] == [ControlKind.PAUSE]
    assert story.codes() == [ReasonCode.PAUSE_REQUESTED]
    assert story.answer.message == "worker worker-1 was asked to pause; it does at the task's next safe point"


def test_there_its_hand_out_ends_and_it_is_paused() -> None:
    story = running().pause().later(500).paused()

    assert (story.task.phase, story.task.waiting_for, story.task.lease) == (Phase.PAUSED, WaitingFor.RESUME, None)
    assert story.task.paused_at_ms == START_MS + 500
    assert [told.kind for told in story.now(TellWorker)] == [None]


def test_resumed_it_continues_the_same_attempt_after_its_last_completed_step() -> None:
    story = running(retry_count=0).pause().paused().later(60_000).resume()

    (schedule,) = story.now(Schedule)
    assert (schedule.task.attempt, schedule.task.hand_out) == (0, 2)
    assert [(step.name, step.status, step.result) for step in schedule.task.steps] == [
        ("PARSE", StepStatus.COMPLETED, b"7")
    ]


def test_a_result_that_crosses_the_request_wins() -> None:
    story = running().pause().completed()

    assert (story["a"].status, story["b"].phase) == (TaskStatus.COMPLETED, Phase.QUEUED)


def test_a_failure_that_crosses_it_is_retried_when_the_task_is_resumed() -> None:
    story = running(retry_delay_seconds=0).pause().failed()

    assert (story.task.attempt, story.task.phase, story.task.paused_by) == (1, Phase.PAUSED, "user:ann")
    assert story.now(Schedule) == []
    assert story.resume().now(Schedule)[0].task.attempt == 1


def test_a_callback_that_crosses_it_is_held() -> None:
    story = running().pause().progressed(callback_after_ms=5_000)

    assert (story.task.phase, story.task.due_at_ms) == (Phase.PAUSED, START_MS + 5_000)


def test_resumed_before_its_worker_has_stopped_it_just_goes_on() -> None:
    story = running().pause().resume(**asked())

    assert (story.task.phase, story.task.paused_by) == (Phase.RUNNING, None)
    assert [told.kind for told in story.now(TellWorker)] == [None]


def test_a_worker_that_had_stopped_all_the_same_is_handed_the_task_again() -> None:
    story = running().pause().resume().paused()

    assert story.now(Schedule)[0].task.hand_out == 2


def test_canceled_before_it_has_stopped_it_ends() -> None:
    story = running().pause().cancel().paused()

    assert story["a"].status is TaskStatus.CANCELED


def test_a_word_of_an_earlier_hand_out_pauses_nothing() -> None:
    story = running().pause()
    before = story.task

    story.paused().resume().taken(worker="worker-2").paused(of=before)

    assert story.ignored == "paused: lease 2 is not the current one (7)"
    assert story.task.phase is Phase.RUNNING


def test_the_clock_of_an_attempt_stands_still_in_a_pause_and_the_budget_goes_on() -> None:
    story = running(timeout_seconds=20, total_timeout_seconds=600).later(5_000).pause().paused()
    assert (story.task.next_deadline, story.task.next_deadline_at_ms) == ("total", START_MS + 600_000)

    story.later(100_000).resume().taken()

    assert story.task.started_at_ms == START_MS
    assert (story.task.next_deadline, story.task.next_deadline_at_ms) == ("task", START_MS + 120_000)


def test_the_budget_ends_a_paused_task() -> None:
    story = running(total_timeout_seconds=600).pause().paused().next_deadline()

    assert story["a"].status is TaskStatus.TIMED_OUT


# --- repeated, too late, wrong


def test_pausing_twice_changes_nothing() -> None:
    story = Story("a").start().pause()
    before = story.task

    story.pause(**asked())

    assert story.task == before
    assert (story.answer.status, story.answer.message) == (200, "paused by user:ann already")


def test_an_ended_task_cannot_be_paused_or_resumed() -> None:
    story = Story("a", "b").start().taken().completed()

    assert story.pause("a", **asked("1")).answer.status == 409
    assert story.resume("a", **asked("2")).answer.status == 409


def test_what_is_not_paused_cannot_be_resumed() -> None:
    story = Story("a").start().resume(**asked())

    assert (story.answer.status, story.answer.message) == (409, "task a is QUEUED: only a paused task can be resumed")


def test_what_is_about_to_end_cannot_be_paused() -> None:
    story = Story("a").start().taken().cancel().pause(**asked())

    assert (story.answer.status, story.answer.message) == (
        409,
        "task a is about to end: asked to stop by user:ann",
    )


# --- a workflow


def test_a_paused_workflow_hands_nothing_out_and_lets_what_runs_finish() -> None:
    story = Story("a", "b").start().taken().pause_workflow(reason="look first", **asked()).completed({"n": 1})

    assert (story.workflow.status, story.workflow.reason) == (WorkflowStatus.PAUSED, WHY)
    assert story["a"].status is TaskStatus.COMPLETED
    assert (story["b"].phase, story["b"].waiting_for) == (Phase.PAUSED, WaitingFor.RESUME)
    assert story.now(Schedule) == []


def test_resumed_it_hands_out_what_became_ready_meanwhile() -> None:
    story = Story("a", "b").start().taken().pause_workflow().completed().later(9_000).resume_workflow(**asked())

    assert (story.workflow.status, story.workflow.reason, story.workflow.paused_at_ms) == ("RUNNING", None, None)
    assert story.now(Schedule)[0].task.reference == "b"
    assert story.taken().completed().workflow.status is WorkflowStatus.COMPLETED


def test_what_it_has_handed_out_before_may_be_started_and_completed() -> None:
    story = Story("a", "b").start().pause_workflow().taken().completed()

    assert (story["a"].status, story["b"].phase) == (TaskStatus.COMPLETED, Phase.PAUSED)


def test_the_poll_clock_of_what_it_has_handed_out_stands_still() -> None:
    story = Story(a_step("a", poll_timeout_seconds=10)).start().later(4_000).pause_workflow()
    assert story.task.next_deadline is None

    story.later(100_000).resume_workflow()

    assert (story.task.next_deadline, story.task.next_deadline_at_ms) == ("poll", story.now_ms + 6_000)
    assert story.now(Schedule) == []


def test_a_task_that_began_in_the_pause_has_its_whole_time_after_it() -> None:
    story = Story(a_step("a", timeout_seconds=60, response_timeout_seconds=10)).start().pause_workflow()

    story.later(50_000).taken().later(50_000).resume_workflow()
    assert (story.task.next_deadline, story.task.next_deadline_at_ms) == ("response", story.now_ms + 10_000)

    assert (story.task.started_at_ms or 0) + story.task.paused_ms == story.now_ms


def test_what_waits_for_its_topic_is_held() -> None:
    story = Story("a")
    story.queues.missing.add("encode")
    story.start().pause_workflow()
    story.queues.missing.clear()

    assert story.queue_ready().now(Schedule) == []
    assert story.resume_workflow().now(Schedule)[0].task.hand_out == 1


def test_the_clocks_of_its_running_task_stand_still() -> None:
    story = Story(a_step("a", timeout_seconds=60, response_timeout_seconds=10)).start().taken().later(4_000)

    story.pause_workflow()
    assert story.task.next_deadline is None
    story.later(100_000).resume_workflow()

    assert (story.task.next_deadline, story.task.next_deadline_at_ms) == ("response", story.now_ms + 6_000)
    story.extend_lease().later(1).extend_lease()
    assert story.task.paused_ms == 100_000


def test_a_sign_of_life_in_the_pause_counts_as_of_its_end() -> None:
    story = Story(a_step("a", response_timeout_seconds=10)).start().taken().later(4_000)

    story.pause_workflow().later(1_000).extend_lease().later(1_000).resume_workflow()

    assert story.task.next_deadline_at_ms == story.now_ms + 10_000


def test_its_own_time_out_goes_on() -> None:
    story = (
        Story("a", timeout_seconds=60, timeout_policy=TimeoutPolicy.TIME_OUT_WF)
        .start()
        .pause_workflow()
        .next_deadline()
    )

    assert (story.workflow.status, story.now_ms) == (WorkflowStatus.TIMED_OUT, START_MS + 60_000)


def test_a_failure_in_the_pause_is_retried_after_it() -> None:
    story = Story("a").start().taken().pause_workflow().failed()
    assert (story.task.phase, story.task.attempt) == (Phase.PAUSED, 1)
    assert len(story.now(Delay)) == 1

    story.later(1_000).delay_due().later(9_000).resume_workflow()

    assert story.now(Schedule)[0].task.attempt == 1


def test_a_task_that_was_paused_by_itself_stays_paused() -> None:
    story = Story("a").start().pause().pause_workflow().resume_workflow()
    assert story.task.phase is Phase.PAUSED

    assert story.resume().now(Schedule)


def test_a_task_of_a_paused_workflow_goes_on_with_it() -> None:
    story = Story("a").start().pause().pause_workflow().resume(**asked("1"))
    assert story.now(Schedule) == []
    assert story.answer.message == "the workflow is paused by user:ann: the task goes on with it"
    assert story.resume(**asked("2")).answer.status == 409

    assert story.resume_workflow().now(Schedule)


def test_a_task_may_be_canceled_in_the_pause() -> None:
    story = Story("a").start().pause_workflow().cancel()

    assert (story.task.status, story.workflow.status) == (TaskStatus.CANCELED, WorkflowStatus.TERMINATED)


def test_a_running_task_that_is_canceled_in_the_pause_has_its_clocks_again() -> None:
    story = Story(a_step("a", response_timeout_seconds=10)).start().taken().pause_workflow().later(50_000).cancel()

    assert story.next_deadline().now_ms == START_MS + 60_000
    assert story.task.status is TaskStatus.CANCELED


def test_pausing_a_workflow_twice_changes_nothing() -> None:
    story = Story("a").start().pause_workflow()

    story.pause_workflow(**asked())

    assert story.ignored == "the workflow is paused already"
    assert story.answer.status == 200


def test_an_ended_workflow_cannot_be_paused() -> None:
    story = Story("a").start().taken().completed().pause_workflow(**asked())

    assert (story.answer.status, story.answer.message) == (
        409,
        "the workflow is COMPLETED: only a running workflow can be paused",
    )


def test_a_running_workflow_cannot_be_resumed() -> None:
    story = Story("a").start().resume_workflow(**asked())

    assert (story.answer.status, story.answer.message) == (
        409,
        "the workflow is RUNNING: only a paused workflow can be resumed",
    )


def test_a_paused_workflow_may_be_terminated() -> None:
    story = Story("a").start().pause_workflow().terminate()

    assert (story.workflow.status, story.task.status) == (WorkflowStatus.TERMINATED, TaskStatus.CANCELED)
