"""Cancelling a task: what waits ends at once, what runs is asked and ends when its worker has stopped."""

import pytest

from broker_engine.model.commands import WorkerLost
from broker_engine.model.decision import ControlKind, Schedule, TellWorker
from broker_engine.model.status import Phase, ReasonCode, ReportStatus, StepStatus, TaskStatus, WorkflowStatus
from tests.builders import START_MS, Story, a_step, asked

WHY = "asked to stop by user:ann: wrong file"


def waiting(phase: Phase) -> Story:
    story = Story(a_step("a", start_delay_seconds=9 if phase is Phase.CREATED else 0)).start()
    if phase is Phase.RETRY_WAIT:
        story.taken().failed()
    if phase is Phase.PAUSED:
        story.pause()
    assert story.task.phase is phase
    return story


def canceling(**step: object) -> Story:
    return Story(a_step("a", **step), "b").start().taken().cancel(reason="wrong file", **asked())


@pytest.mark.parametrize("phase", [Phase.CREATED, Phase.QUEUED, Phase.RETRY_WAIT, Phase.PAUSED])
def test_a_waiting_task_ends_at_once_and_its_workflow_is_terminated(phase: Phase) -> None:
    story = waiting(phase).cancel(reason="wrong file", **asked())

    assert (story.task.phase, story.task.status) == (Phase.CANCELED, TaskStatus.CANCELED)
    assert (story.task.reason, story.task.reason_code) == (WHY, ReasonCode.CANCEL_REQUESTED)
    assert (story.workflow.status, story.workflow.reason) == (WorkflowStatus.TERMINATED, WHY)
    assert (story.answer.status, story.answer.message) == (200, "canceled")


def test_a_start_of_the_voided_hand_out_is_refused() -> None:
    story = waiting(Phase.QUEUED)
    before = story.task

    story.cancel().taken(of=before, wants_confirmation=True)

    assert story.ignored == "the task is CANCELED already"
    assert not story.confirm.accepted


def test_whoever_has_taken_a_waiting_task_meanwhile_hears_of_the_cancel() -> None:
    story = waiting(Phase.QUEUED)
    before = story.task

    (told,) = story.cancel().now(TellWorker)

    assert (told.task_id, told.hand_out, told.kind) == (before.task_id, 1, ControlKind.CANCEL)


def test_a_running_task_goes_on_until_its_worker_has_stopped() -> None:
    story = canceling()

    assert (story.task.phase, story.task.status, story.task.reason) == (Phase.CANCELING, TaskStatus.IN_PROGRESS, WHY)
    assert (story.task.cancel_reason, story.task.cancel_requested_at_ms) == (WHY, START_MS)
    assert story.workflow.status is WorkflowStatus.RUNNING
    (told,) = story.now(TellWorker)
    assert (told.task_id, told.hand_out, told.kind, told.reason) == (story.task.task_id, 1, ControlKind.CANCEL, WHY)
    assert story.answer.message == "worker worker-1 was asked to stop; it does at the task's next safe point"


def test_it_ends_as_canceled_with_the_worker_s_word_and_its_note_is_taken_away() -> None:
    story = canceling().canceled(reason="at a safe point")

    assert (story["a"].status, story["a"].reason) == (TaskStatus.CANCELED, WHY)
    assert (story.workflow.status, story.workflow.reason) == (WorkflowStatus.TERMINATED, WHY)
    assert [told.kind for told in story.now(TellWorker)] == [None]


def test_a_result_that_crosses_the_request_wins() -> None:
    story = canceling().completed({"done": True}, of=None)

    assert story["a"].status is TaskStatus.COMPLETED
    assert story["b"].phase is Phase.QUEUED


@pytest.mark.parametrize("status", [ReportStatus.FAILED, ReportStatus.FAILED_WITH_TERMINAL_ERROR])
def test_however_else_it_ends_it_is_canceled_and_not_retried(status: ReportStatus) -> None:
    story = canceling(retry_count=3).reported(status, reason="boom")

    assert [(task.attempt, task.status) for task in story.attempts] == [(0, TaskStatus.CANCELED)]
    assert story["a"].reason == f"{WHY}; it ended {status}: boom"


def test_a_silent_worker_ends_it_as_canceled_when_its_response_time_is_over() -> None:
    story = canceling(retry_count=3, response_timeout_seconds=10)
    assert story.task.next_deadline_at_ms == START_MS + 10_000  # the request was no sign of life

    story.next_deadline()

    assert [(task.attempt, task.status) for task in story.attempts] == [(0, TaskStatus.CANCELED)]
    assert story.workflow.status is WorkflowStatus.TERMINATED


def test_a_lost_worker_ends_it_as_canceled() -> None:
    story = canceling(retry_count=3).later(11_000)

    story.send(WorkerLost(key="w", worker_id="worker-1", lost_at_ms=story.now_ms))

    assert [(task.attempt, task.status) for task in story.attempts] == [(0, TaskStatus.CANCELED)]


def test_signs_of_life_and_steps_still_count_while_it_stops() -> None:
    story = canceling(response_timeout_seconds=10).later(9_000).extend_lease()
    assert story.task.next_deadline_at_ms == START_MS + 19_000

    story.step("CLOSE", StepStatus.COMPLETED)

    assert [step.name for step in story.task.steps] == ["CLOSE"]


def test_a_callback_of_a_task_that_was_asked_to_stop_ends_it() -> None:
    story = canceling().progressed(callback_after_ms=60_000)

    assert story["a"].status is TaskStatus.CANCELED


def test_a_second_start_of_a_task_that_was_asked_to_stop_is_void() -> None:
    story = canceling()

    story.taken(worker="worker-2")

    assert story.ignored == "the task is CANCELING, not on its queue"


def test_an_optional_task_counts_as_done() -> None:
    story = canceling(optional=True).canceled()

    assert (story["a"].status, story["b"].phase) == (TaskStatus.COMPLETED_WITH_ERRORS, Phase.QUEUED)


def test_cancel_twice_changes_nothing_and_says_so() -> None:
    story = canceling()
    before = story.task

    story.cancel(**asked("again"))

    assert story.ignored == "the task was asked to stop already"
    assert story.task == before
    assert (story.answer.status, story.answer.message) == (200, f"{WHY} already")


@pytest.mark.parametrize("reference", ["a", "b"])
def test_cancel_after_the_end_changes_nothing_and_says_so(reference: str) -> None:
    story = Story("a", "b").start().taken().completed().taken().completed()
    before = story.execution_now.tasks

    story.cancel(reference, **asked("late"))

    assert story.execution_now.tasks == before
    assert (story.answer.status, story.answer.message) == (200, "already COMPLETED")
    assert story.ignored == "the task is COMPLETED already"


def test_a_task_that_is_not_scheduled_yet_cannot_be_canceled() -> None:
    story = Story("a", "b").start().cancel("b", **asked())

    assert (story.answer.status, story.answer.message) == (404, "task b of workflow w is not scheduled yet")


def test_an_unknown_reference_is_refused_with_those_there_are() -> None:
    story = Story("a", "b").start().cancel("c", **asked())

    assert (story.answer.status, story.answer.message) == (404, "workflow w has no task c; it has a, b")


def test_an_earlier_attempt_cannot_be_canceled() -> None:
    story = Story("a").start()
    first = story.task

    story.taken().failed().cancel("a", task_id=first.task_id, **asked())

    assert story.answer.status == 409
    assert story.task.phase is Phase.RETRY_WAIT


def test_terminating_a_workflow_tells_the_worker_of_its_running_task() -> None:
    story = Story("a").start().taken()

    (told,) = story.terminate("no longer needed").now(TellWorker)

    assert (told.kind, told.reason) == (ControlKind.CANCEL, "no longer needed")


def test_a_time_out_tells_the_worker_that_the_attempt_goes_on_without_it() -> None:
    story = Story(a_step("a", response_timeout_seconds=10)).start().taken()
    first = story.task

    (told,) = story.next_deadline().now(TellWorker)

    assert (told.kind, told.task_id) == (ControlKind.SUPERSEDED, first.task_id)


def test_a_plain_task_tells_no_worker_anything() -> None:
    story = Story("a", "b").start().taken().completed().taken().failed().later(1_000).delay_due().taken().completed()

    assert story.workflow.status is WorkflowStatus.COMPLETED
    assert story.outputs(TellWorker) == []
    assert len(story.outputs(Schedule)) == 3
