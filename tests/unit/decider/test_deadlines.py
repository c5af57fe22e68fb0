"""The clocks of a task: from when each runs (D3), what it does, and in which order."""

import pytest

from broker_engine.decider.deadlines import (
    DEADLINES,
    DELAY_GRACE_MS,
    TIMEOUT_CODES,
    TOPIC_GRACE_MS,
    DeadlineKind,
    earliest_deadline_ms,
    next_deadline,
)
from broker_engine.model.definitions import TimeoutPolicy
from broker_engine.model.limits import HAND_OUT_LIFETIME_MS, SCHEDULE_RETENTION_MS
from broker_engine.model.status import Phase, ReasonCode, TaskStatus, WaitingFor, WorkflowStatus
from tests.builders import START_MS, Story, a_step

RETRY, TIME_OUT_WF, ALERT_ONLY = TimeoutPolicy.RETRY, TimeoutPolicy.TIME_OUT_WF, TimeoutPolicy.ALERT_ONLY
FIELDS = {
    DeadlineKind.TOTAL: "total_timeout_seconds",
    DeadlineKind.TASK: "timeout_seconds",
    DeadlineKind.POLL: "poll_timeout_seconds",
    DeadlineKind.RESPONSE: "response_timeout_seconds",
}
POLICED = (DeadlineKind.TOTAL, DeadlineKind.TASK, DeadlineKind.POLL)


def a_running_or_queued(kind: DeadlineKind, **fields: object) -> Story:
    """A started story whose only clock of 10 s is the given one."""
    story = Story(a_step("a", **{FIELDS[kind]: 10, **fields})).start()
    return story if kind is DeadlineKind.POLL else story.taken()


# --- what each clock does -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TIMEOUT_CODES)
def test_a_clock_fires_at_its_moment_and_not_before(kind: DeadlineKind) -> None:
    story = a_running_or_queued(kind, timeout_policy=RETRY)
    assert (story.task.next_deadline, story.task.next_deadline_at_ms) == (kind, START_MS + 10_000)
    before = story.execution

    story.later(9_999).deadline()
    story.assert_untouched(before, says="no deadline has passed")

    story.later(1).deadline()
    assert story.attempts[0].status is TaskStatus.TIMED_OUT
    assert story.attempts[0].reason_code is TIMEOUT_CODES[kind]
    assert "(10 s)" in str(story.attempts[0].reason)


@pytest.mark.parametrize("kind", [DeadlineKind.TASK, DeadlineKind.POLL, DeadlineKind.RESPONSE])
def test_under_retry_a_timed_out_attempt_is_followed_by_another(kind: DeadlineKind) -> None:
    story = a_running_or_queued(kind, timeout_policy=RETRY).next_deadline()

    assert [task.status for task in story.attempts] == [TaskStatus.TIMED_OUT, TaskStatus.SCHEDULED]
    assert story.workflow.status is WorkflowStatus.RUNNING
    assert story.delays[-1].due_at_ms == story.now_ms + 1_000


@pytest.mark.parametrize("kind", POLICED)
def test_under_time_out_wf_the_workflow_times_out_at_once(kind: DeadlineKind) -> None:
    story = a_running_or_queued(kind, timeout_policy=TIME_OUT_WF).next_deadline()

    assert [task.status for task in story.attempts] == [TaskStatus.TIMED_OUT]
    assert story.workflow.status is WorkflowStatus.TIMED_OUT
    assert story.workflow.failed_reference == "a"
    assert earliest_deadline_ms(story.execution_now) is None


@pytest.mark.parametrize("kind", POLICED)
def test_under_alert_only_each_clock_alerts_once_and_the_task_goes_on(kind: DeadlineKind) -> None:
    story = a_running_or_queued(kind, timeout_policy=ALERT_ONLY)
    before = story.task

    story.next_deadline()

    assert story.codes() == [ReasonCode.TIMEOUT_ALERT]
    assert (story.task.phase, story.task.alerted) == (before.phase, kind)
    assert story.task.updated_at_ms == before.updated_at_ms, "an alert is no sign of life"
    alerted = story.execution
    story.later(1_000).deadline().assert_untouched(alerted, says="no deadline has passed")


def test_two_clocks_alert_once_each() -> None:
    story = Story(a_step("a", timeout_seconds=10, total_timeout_seconds=20, timeout_policy=ALERT_ONLY)).start().taken()

    story.later(60_000).deadline().deadline()

    assert [t.reason_code for t in story.transitions].count(ReasonCode.TIMEOUT_ALERT) == 2
    assert story.task.alerted == "total,task"


def test_the_response_time_out_ignores_the_policy() -> None:
    story = a_running_or_queued(DeadlineKind.RESPONSE, timeout_policy=ALERT_ONLY).next_deadline()

    assert [task.status for task in story.attempts] == [TaskStatus.TIMED_OUT, TaskStatus.SCHEDULED]


@pytest.mark.parametrize("kind", POLICED)
def test_a_task_that_alerted_can_still_complete(kind: DeadlineKind) -> None:
    story = a_running_or_queued(kind, timeout_policy=ALERT_ONLY).next_deadline()

    (story if story.task.lease else story.taken()).completed({"x": 1})

    assert story.workflow.status is WorkflowStatus.COMPLETED


# --- from when each clock runs (D3) ---------------------------------------------------------------


def test_the_poll_clock_runs_from_the_hand_out() -> None:
    """D3: a start delay or a retry delay is not part of it."""
    story = Story(a_step("a", poll_timeout_seconds=10, start_delay_seconds=30, retry_delay_seconds=40)).start()

    assert story.later(30_000).delay_due().task.next_deadline_at_ms == START_MS + 30_000 + 10_000
    story.taken().failed().later(40_000).delay_due()
    assert story.task.next_deadline_at_ms == START_MS + 70_000 + 10_000


def test_the_attempt_clock_runs_from_the_first_start_of_the_attempt() -> None:
    """D3: neither the wait for a worker nor a retry delay is part of it."""
    story = Story(a_step("a", timeout_seconds=10, response_timeout_seconds=10, retry_delay_seconds=40)).start()
    assert story.task.next_deadline == "hand-out"

    story.later(5_000).taken().failed().later(40_000).delay_due().later(5_000).taken()

    assert (story.task.next_deadline, story.task.next_deadline_at_ms) == ("task", START_MS + 50_000 + 10_000)


def test_a_second_start_of_the_hand_out_moves_the_response_clock_only() -> None:
    story = Story(a_step("a", timeout_seconds=60, response_timeout_seconds=30)).start().taken()
    assert (story.task.next_deadline, story.task.next_deadline_at_ms) == ("response", START_MS + 30_000)

    story.later(29_000).taken(worker="worker-2")
    assert (story.task.next_deadline, story.task.next_deadline_at_ms) == ("response", START_MS + 59_000)

    story.later(28_000).taken(worker="worker-3")
    assert (story.task.next_deadline, story.task.next_deadline_at_ms) == ("task", START_MS + 60_000)


def test_the_total_clock_runs_over_all_attempts() -> None:
    story = Story(a_step("a", total_timeout_seconds=100, retry_delay_seconds=20)).start()

    story.later(5_000).fail_once().later(5_000).fail_once()

    assert {task.first_scheduled_at_ms for task in story.attempts} == {START_MS}
    assert (story.task.next_deadline, story.task.next_deadline_at_ms) == ("total", START_MS + 100_000)


def test_a_retried_attempt_has_the_same_limits_as_the_first() -> None:
    """D3: Conductor adds the retry delay to the task clock, and twice to the poll clock."""
    step = a_step("a", timeout_seconds=10, response_timeout_seconds=10, poll_timeout_seconds=7, timeout_policy=RETRY)
    story = Story(step).start()
    for _ in range(2):
        queued_at_ms = story.now_ms
        assert story.task.next_deadline_at_ms == queued_at_ms + 7_000
        story.later(3_000).taken()
        assert story.task.next_deadline_at_ms == queued_at_ms + 3_000 + 10_000
        story.next_deadline()
        story.now_ms = story.task.due_at_ms or 0
        story.delay_due()


# --- order ----------------------------------------------------------------------------------------


def test_of_clocks_that_ran_out_together_the_first_in_the_table_decides() -> None:
    assert list(DEADLINES)[:4] == [DeadlineKind.TOTAL, DeadlineKind.TASK, DeadlineKind.POLL, DeadlineKind.RESPONSE]

    for fields, code in [
        ({"total_timeout_seconds": 30, "timeout_seconds": 20, "response_timeout_seconds": 10}, "TOTAL_TIMEOUT"),
        ({"timeout_seconds": 20, "response_timeout_seconds": 10}, "TASK_TIMEOUT"),
        ({"response_timeout_seconds": 10}, "RESPONSE_TIMEOUT"),
    ]:
        story = Story(a_step("a", timeout_policy=RETRY, **fields)).start().taken().later(60_000).deadline()
        assert story.attempts[0].reason_code == code


def test_the_next_deadline_is_the_earliest_whatever_its_kind() -> None:
    story = Story(a_step("a", total_timeout_seconds=30, timeout_seconds=20, response_timeout_seconds=10)).start()

    assert story.task.next_deadline_at_ms == START_MS + 30_000
    assert story.taken().task.next_deadline_at_ms == START_MS + 10_000


def test_an_ended_task_has_no_clock() -> None:
    story = Story(a_step("a", total_timeout_seconds=30)).start().taken().completed()

    assert next_deadline(story.task, story.definition.task("a").definition) is None
    assert (story.task.next_deadline, story.task.next_deadline_at_ms) == (None, None)
    before = story.execution
    story.later(60_000).deadline().assert_untouched(before, says="no deadline has passed")


# --- total time-out (D7) --------------------------------------------------------------------------


@pytest.mark.parametrize("policy", TimeoutPolicy)
def test_no_retry_is_scheduled_that_would_start_after_the_budget(policy: TimeoutPolicy) -> None:
    """D7: the workflow ends at once, with the task's own reason."""
    step = a_step("a", total_timeout_seconds=60, retry_delay_seconds=30, timeout_policy=policy)
    story = Story(step).start().later(30_000).taken().failed("disk full")

    assert [task.status for task in story.attempts] == [TaskStatus.FAILED]
    assert story.workflow.status is WorkflowStatus.FAILED
    assert (story.workflow.reason, story.workflow.reason_code) == ("disk full", ReasonCode.TOTAL_TIMEOUT)


def test_a_retry_that_starts_within_the_budget_is_scheduled() -> None:
    step = a_step("a", total_timeout_seconds=60, retry_delay_seconds=30)
    story = Story(step).start().later(29_999).taken().failed()

    assert story.task.attempt == 1
    assert story.task.due_at_ms == START_MS + 59_999


def test_a_clock_that_ends_a_task_after_the_budget_times_the_workflow_out() -> None:
    """D7: TIMED_OUT when the clock ended the task, also under ALERT_ONLY."""
    step = a_step("a", total_timeout_seconds=5, response_timeout_seconds=10, timeout_policy=ALERT_ONLY)
    story = Story(step).start().taken().later(10_000).deadline()

    assert story.codes()[:2] == [ReasonCode.TIMEOUT_ALERT, ReasonCode.TOTAL_TIMEOUT]
    assert story.workflow.status is WorkflowStatus.TIMED_OUT


@pytest.mark.parametrize(
    ("flag", "status", "workflow"),
    [
        ("optional", TaskStatus.COMPLETED_WITH_ERRORS, WorkflowStatus.COMPLETED),
        ("permissive", TaskStatus.TIMED_OUT, WorkflowStatus.FAILED),
    ],
)
def test_the_total_clock_respects_optional_and_permissive(
    flag: str, status: TaskStatus, workflow: WorkflowStatus
) -> None:
    """D7: the flow goes on."""
    story = Story(a_step("a", total_timeout_seconds=5, timeout_policy=RETRY, **{flag: True}), "b").start().taken()

    story.next_deadline()

    assert story["a"].status is status
    assert story["b"].status is TaskStatus.SCHEDULED
    assert story.taken().completed().workflow.status is workflow


# --- workflow time-out ----------------------------------------------------------------------------


def test_a_workflow_over_its_time_ends_and_cancels_its_tasks() -> None:
    story = Story("a", timeout_seconds=60, timeout_policy=TIME_OUT_WF).start().taken()
    assert earliest_deadline_ms(story.execution_now) == START_MS + 60_000

    story.next_deadline()

    assert (story.workflow.status, story.workflow.reason_code) == (
        WorkflowStatus.TIMED_OUT,
        ReasonCode.WORKFLOW_TIMEOUT,
    )
    assert story["a"].status is TaskStatus.CANCELED
    assert earliest_deadline_ms(story.execution_now) is None


def test_a_workflow_that_only_alerts_alerts_once_and_goes_on() -> None:
    story = Story("a", timeout_seconds=60, timeout_policy=ALERT_ONLY).start().taken().next_deadline()

    assert story.codes() == [ReasonCode.TIMEOUT_ALERT]
    assert story.decision.transitions[0].reference is None
    alerted = story.execution
    story.later(1_000).deadline().assert_untouched(alerted, says="no deadline has passed")
    assert story.completed().workflow.status is WorkflowStatus.COMPLETED


def test_the_workflow_clock_comes_before_those_of_its_tasks() -> None:
    step = a_step("a", timeout_seconds=30, response_timeout_seconds=30)
    story = Story(step, timeout_seconds=60, timeout_policy=TIME_OUT_WF).start().taken().later(60_000).deadline()

    assert story["a"].status is TaskStatus.CANCELED
    assert story.workflow.reason_code is ReasonCode.WORKFLOW_TIMEOUT


def test_a_new_run_has_its_own_workflow_clock() -> None:
    story = Story("a", timeout_seconds=60, timeout_policy=ALERT_ONLY).start().taken().next_deadline().completed()

    story.later(1_000).start(strategy="FAIL_ON_RUNNING")

    assert not story.workflow.timeout_alerted
    assert earliest_deadline_ms(story.execution_now) == story.now_ms + 60_000


# --- backstops ------------------------------------------------------------------------------------


def test_a_lost_delay_record_is_waited_for_a_minute_and_then_done_without() -> None:
    story = Story("a").start().taken().failed()
    due_at_ms = story.now_ms + 1_000
    assert (story.task.next_deadline, story.task.next_deadline_at_ms) == ("delay", due_at_ms + DELAY_GRACE_MS)

    story.next_deadline()

    assert story.codes() == [ReasonCode.DELAY_LOST]
    assert (story.task.phase, story.task.hand_out) == (Phase.QUEUED, 1)
    before = story.execution
    story.delay_due(due_at_ms=due_at_ms).assert_untouched(before, says="it waits for no delay")


def test_a_lost_hand_out_is_handed_out_again_at_half_the_retention() -> None:
    story = Story("a").start()
    first = story.task
    assert HAND_OUT_LIFETIME_MS * 2 == SCHEDULE_RETENTION_MS
    assert (first.next_deadline, first.next_deadline_at_ms) == ("hand-out", START_MS + HAND_OUT_LIFETIME_MS)

    story.next_deadline()

    assert story.codes() == [ReasonCode.HANDED_OUT_AGAIN]
    assert (story.task.task_id, story.task.hand_out) == (first.task_id, 2)
    assert [schedule.task.hand_out for schedule in story.schedules] == [1, 2]
    before = story.execution
    story.taken(of=first).assert_untouched(before, says="hand-out 1 is void")
    assert story.taken().task.phase is Phase.RUNNING


def test_a_task_that_waits_for_its_topic_looks_again_every_minute() -> None:
    story = Story("a")
    story.queues.missing.add("encode")
    story.start()
    assert story.task.next_deadline_at_ms == START_MS + TOPIC_GRACE_MS

    story.next_deadline()
    assert (story.task.waiting_for, story.task.hand_out, story.schedules) == (WaitingFor.TOPIC, 0, [])
    assert story.task.next_deadline_at_ms == START_MS + 2 * TOPIC_GRACE_MS

    story.queues.missing.clear()
    story.next_deadline()
    assert (story.task.waiting_for, story.task.hand_out) == (WaitingFor.WORKER, 1)
    assert len(story.schedules) == 1


def test_the_poll_clock_does_not_run_while_there_is_no_topic() -> None:
    story = Story(a_step("a", poll_timeout_seconds=10))
    story.queues.missing.add("encode")

    story.start().later(30_000).deadline()
    assert story.ignored == "no deadline has passed"

    story.queues.missing.clear()
    assert story.queue_ready().task.next_deadline_at_ms == story.now_ms + 10_000
