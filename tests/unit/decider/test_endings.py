"""How workflows end: by their last task, by a failure, on request; and what a quarantine holds still."""

import pytest

from broker_engine.decider.deadlines import earliest_deadline_ms
from broker_engine.decider.decide import quarantine
from broker_engine.model.decision import Schedule
from broker_engine.model.definitions import TimeoutPolicy
from broker_engine.model.status import Phase, ReasonCode, ReportStatus, TaskStatus, WorkflowStatus
from tests.builders import Story, a_step, asked

FAILURES = (ReportStatus.FAILED, ReportStatus.FAILED_WITH_TERMINAL_ERROR, ReportStatus.CANCELED)

# --- completing -----------------------------------------------------------------------------------


def test_tasks_follow_one_another() -> None:
    story = Story("a", "b", "c").start()

    for reference in ("a", "b"):
        assert story.task.reference == reference
        story.taken().completed()
        assert story.codes()[-1] is ReasonCode.PREVIOUS_TASK_DONE
        assert story.workflow.status is WorkflowStatus.RUNNING
        assert not story.decision.workflow_changed, "the workflow itself did not change, so no record of it is written"

    story.taken().completed()
    assert (story.workflow.status, story.workflow.reason_code) == (WorkflowStatus.COMPLETED, ReasonCode.ALL_TASKS_DONE)
    assert story.workflow.ended_at_ms == story.now_ms
    assert story.decision.workflow_changed
    assert [task.seq for task in story.attempts] == [1, 2, 3]


def test_every_step_of_a_story_is_told() -> None:
    story = Story("a").start().taken().failed().next_deadline().taken().completed()

    told = [(t.attempt, t.from_phase, t.to_phase, t.reason_code) for t in story.transitions if t.reference]
    assert told == [
        (0, None, "QUEUED", "WORKFLOW_STARTED"),
        (0, "QUEUED", "RUNNING", "WORKER_STARTED"),
        (0, "RUNNING", "FAILED", "RETRYABLE_ERROR"),
        (1, None, "RETRY_WAIT", "RETRYABLE_ERROR"),
        (1, "RETRY_WAIT", "QUEUED", "DELAY_LOST"),
        (1, "QUEUED", "RUNNING", "WORKER_STARTED"),
        (1, "RUNNING", "SUCCEEDED", "WORKER_REPORTED"),
    ]
    assert [t.status for t in story.transitions if t.reference is None] == ["RUNNING", "COMPLETED"]


# --- failing --------------------------------------------------------------------------------------


def test_a_failed_workflow_names_the_task_that_failed_it() -> None:
    story = Story("a", a_step("b", retry_count=0), "c").start().taken().completed().taken().failed("disk full")

    workflow = story.workflow
    assert (workflow.status, workflow.reason, workflow.reason_code) == (
        WorkflowStatus.FAILED,
        "disk full",
        ReasonCode.RETRYABLE_ERROR,
    )
    assert (workflow.failed_reference, workflow.failed_task_id) == ("b", story["b"].task_id)
    assert "c" not in story.execution_now.tasks


def test_a_failure_without_reason_gets_one() -> None:
    story = Story(a_step("a", retry_count=0)).start().taken().failed()

    assert story.workflow.reason == "task a ended FAILED"


@pytest.mark.parametrize("status", FAILURES)
def test_an_optional_task_goes_straight_to_completed_with_errors(status: ReportStatus) -> None:
    """D25: never FAILED first; the failure is in the reason and the event."""
    story = Story(a_step("a", optional=True, retry_count=0), "b").start().taken().reported(status, reason="disk full")

    assert (story["a"].phase, story["a"].status) == (Phase.SUCCEEDED, TaskStatus.COMPLETED_WITH_ERRORS)
    assert (story["a"].reason, story["a"].reason_code) == ("disk full", ReasonCode.OPTIONAL_FAILED)
    assert [t.to_phase for t in story.decision.transitions] == [Phase.SUCCEEDED, Phase.QUEUED]
    assert story.taken().completed().workflow.status is WorkflowStatus.COMPLETED


def test_an_optional_task_without_reason_says_how_it_ended() -> None:
    story = Story(a_step("a", optional=True)).start().taken().failed_terminally()

    assert story.task.reason == "the optional task ended FAILED_WITH_TERMINAL_ERROR"
    assert story.workflow.status is WorkflowStatus.COMPLETED


@pytest.mark.parametrize("kind", ["timeout_seconds", "poll_timeout_seconds", "response_timeout_seconds"])
@pytest.mark.parametrize("policy", [TimeoutPolicy.RETRY, TimeoutPolicy.TIME_OUT_WF])
def test_an_optional_task_that_times_out_for_good_lets_the_flow_go_on(kind: str, policy: TimeoutPolicy) -> None:
    """D6."""
    step = a_step("a", optional=True, retry_count=0, timeout_policy=policy, **{kind: 5})
    story = Story(step, "b").start()
    if kind != "poll_timeout_seconds":
        story.taken()

    story.next_deadline()

    assert story["a"].status is TaskStatus.COMPLETED_WITH_ERRORS
    assert story["b"].status is TaskStatus.SCHEDULED


@pytest.mark.parametrize("status", FAILURES)
def test_a_permissive_task_keeps_its_failure_and_the_flow_goes_on(status: ReportStatus) -> None:
    story = Story(a_step("a", permissive=True, retry_count=0), "b").start().taken().reported(status, reason="disk full")

    assert story["a"].status == status.value
    assert story["b"].status is TaskStatus.SCHEDULED
    assert story.workflow.status is WorkflowStatus.RUNNING


def test_permissive_failures_fail_the_workflow_at_its_end_with_all_their_reasons() -> None:
    story = Story(
        a_step("a", permissive=True, retry_count=0),
        a_step("b", permissive=True, retry_count=0),
        a_step("c", permissive=True, optional=True, retry_count=0),
        "d",
    ).start()

    story.taken().failed("first").taken().failed().taken().failed("optional").taken().completed({"x": 1})

    workflow = story.workflow
    assert workflow.status is WorkflowStatus.FAILED
    assert workflow.reason == "a FAILED: first; b FAILED: no reason given"
    assert (workflow.reason_code, workflow.failed_reference) == (ReasonCode.RETRIES_EXHAUSTED, "a")


def test_a_permissive_task_that_recovers_fails_nothing() -> None:
    story = Story(a_step("a", permissive=True), "b").start().fail_once().taken().completed().taken().completed()

    assert story.workflow.status is WorkflowStatus.COMPLETED


def test_a_permissive_task_at_the_end_fails_the_workflow() -> None:
    story = Story("a", a_step("b", permissive=True, retry_count=0)).start().taken().completed().taken().failed("no")

    assert (story.workflow.status, story.workflow.reason) == (WorkflowStatus.FAILED, "b FAILED: no")


# --- terminating ----------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", [Phase.CREATED, Phase.QUEUED, Phase.RUNNING, Phase.RETRY_WAIT])
def test_terminating_cancels_whatever_lives(phase: Phase) -> None:
    story = Story(a_step("a", start_delay_seconds=5 if phase is Phase.CREATED else 0)).start()
    if phase in (Phase.RUNNING, Phase.RETRY_WAIT):
        story.taken()
    if phase is Phase.RETRY_WAIT:
        story.failed()
    assert story.task.phase is phase

    story.terminate("not needed any more", **asked())

    assert (story.workflow.status, story.workflow.reason) == (WorkflowStatus.TERMINATED, "not needed any more")
    assert story.workflow.reason_code is ReasonCode.CANCEL_REQUESTED
    assert (story.task.phase, story.task.reason) == (Phase.CANCELED, "not needed any more")
    assert (story.task.waiting_for, story.task.next_deadline_at_ms) == (None, None)
    assert (story.answer.status, story.answer.message) == (200, "w")
    assert earliest_deadline_ms(story.execution_now) is None
    assert story.now(Schedule) == []


def test_terminating_leaves_ended_tasks_alone() -> None:
    story = Story("a", "b").start().taken().completed({"x": 1})
    done = story["a"]

    story.terminate()

    assert story["a"] == done
    assert (story["b"].status, story.workflow.reason) == (TaskStatus.CANCELED, "terminated on request")


def test_terminating_twice_is_answered_and_does_nothing() -> None:
    story = Story("a").start().terminate("first", **asked("c1"))
    ended = story.workflow

    story.later(1_000).terminate("second", **asked("c2"))

    assert story.ignored == "the workflow is TERMINATED already"
    assert (story.answer.status, story.decision.transitions, story.decision.changed_tasks) == (200, (), ())
    assert (story.workflow.reason, story.workflow.ended_at_ms) == ("first", ended.ended_at_ms)


def test_a_completed_workflow_cannot_be_terminated() -> None:
    story = Story("a").start().taken().completed().terminate(**asked())

    assert story.answer.status == 409
    assert "COMPLETED already" in story.answer.message
    assert story.workflow.status is WorkflowStatus.COMPLETED


def test_ending_keeps_the_output_parameters() -> None:
    story = Story("a", "b", output_parameters={"x": "${a.output.x}"}).start().taken().completed({"x": 1}).terminate()

    assert story.output == {"x": 1}


# --- quarantine -----------------------------------------------------------------------------------


def test_a_quarantined_workflow_says_why_and_its_clocks_stand_still() -> None:
    story = Story(a_step("a", timeout_seconds=5), timeout_seconds=10).start().taken()
    before = story.workflow

    story.execution = quarantine(story.execution_now, "x" * 600, story.now_ms + 7)

    assert story.workflow.quarantine == "x" * 500
    assert story.workflow.updated_at_ms == story.now_ms + 7
    assert story.workflow.status is before.status
    assert earliest_deadline_ms(story.execution_now) is None


def test_a_released_workflow_goes_on() -> None:
    story = Story("a").start().taken()
    tasks = story.execution_now.tasks
    story.execution = quarantine(story.execution_now, "a bug", story.now_ms)

    story.release(**asked())

    assert (story.workflow.quarantine, story.answer.status) == (None, 200)
    assert story.codes() == [ReasonCode.RELEASED]
    assert story.decision.workflow_changed
    assert story.execution_now.tasks == tasks
    assert earliest_deadline_ms(story.execution_now) is not None
    assert story.completed().workflow.status is WorkflowStatus.COMPLETED


def test_only_a_quarantined_workflow_can_be_released() -> None:
    story = Story("a").start().release(**asked())

    assert (story.answer.status, story.ignored) == (409, "the workflow is not in quarantine")
    assert story.decision.transitions == ()
