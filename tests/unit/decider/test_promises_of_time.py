"""``deadlineAt`` (B10): a moment promised to outsiders, which no retry moves."""

import pytest

from broker_engine.decider.deadlines import earliest_deadline_ms
from broker_engine.model.decision import Delay
from broker_engine.model.status import ReasonCode, TaskStatus, WorkflowStatus
from tests.builders import START_MS, Story, a_step, asked


def test_it_ends_the_workflow_and_its_running_task() -> None:
    story = Story("a", "b").start(deadline_at_ms=START_MS + 10_000).taken()
    assert earliest_deadline_ms(story.execution_now) == START_MS + 10_000

    story.next_deadline()

    assert (story.workflow.status, story.workflow.reason_code) == (
        WorkflowStatus.TIMED_OUT,
        ReasonCode.DEADLINE_EXCEEDED,
    )
    assert story["a"].status is TaskStatus.CANCELED
    assert "deadlineAt" in (story.workflow.reason or "")


def test_nothing_happens_before_it() -> None:
    story = Story("a").start(deadline_at_ms=START_MS + 10_000).taken().later(9_999).deadline()

    assert story.ignored == "no deadline has passed"
    assert story.workflow.status is WorkflowStatus.RUNNING


def test_it_comes_before_a_later_workflow_timeout_and_after_an_earlier_one() -> None:
    later = Story("a", timeout_seconds=20).start(deadline_at_ms=START_MS + 10_000)
    assert earliest_deadline_ms(later.execution_now) == START_MS + 10_000

    earlier = Story("a", timeout_seconds=5).start(deadline_at_ms=START_MS + 10_000).next_deadline()
    assert earlier.codes() == [ReasonCode.TIMEOUT_ALERT]
    assert earliest_deadline_ms(earlier.execution_now) == START_MS + 10_000


@pytest.mark.parametrize(("rest_ms", "is_retried"), [(1_000, False), (1_001, True)])
def test_a_retry_that_would_start_after_it_is_not_scheduled(rest_ms: int, is_retried: bool) -> None:
    """One second after the failure: at the moment itself is too late."""
    story = Story("a").start(deadline_at_ms=START_MS + rest_ms).taken().failed("no luck")

    assert bool(story.now(Delay)) is is_retried
    if not is_retried:
        assert (story.workflow.status, story.workflow.reason_code) == (
            WorkflowStatus.FAILED,
            ReasonCode.DEADLINE_EXCEEDED,
        )
        assert story.workflow.reason == "no luck"


def test_an_optional_task_gives_way_and_the_flow_goes_on() -> None:
    story = Story(a_step("a", optional=True), "b").start(deadline_at_ms=START_MS + 1_000).taken().failed()

    assert story["a"].status is TaskStatus.COMPLETED_WITH_ERRORS
    assert story.task.reference == "b"


def test_a_start_after_it_is_refused() -> None:
    story = Story("a").start(deadline_at_ms=START_MS, **asked())

    assert story.answer.status == 400
    assert "deadlineAt" in story.answer.message
    assert story.execution is None
