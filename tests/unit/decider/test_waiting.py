"""Waiting for a delay or a topic: never too early, never twice, and not for ever."""

from collections.abc import Callable

import pytest

from broker_engine.decider.deadlines import DELAY_GRACE_MS
from broker_engine.decider.decide import EARLY_DELAY_MS
from broker_engine.model.decision import Delay, Schedule
from broker_engine.model.definitions import TimeoutPolicy
from broker_engine.model.status import Phase, ReasonCode, WaitingFor, WorkflowStatus
from tests.builders import START_MS, Story, a_step

# --- start delay ----------------------------------------------------------------------------------


def test_a_task_with_a_start_delay_is_handed_out_after_it() -> None:
    story = Story(a_step("a", start_delay_seconds=5)).start()
    assert (story.task.phase, story.task.waiting_for) == (Phase.CREATED, WaitingFor.DELAY)
    assert (story.task.due_at_ms, story.task.hand_out, story.schedules) == (START_MS + 5_000, 0, [])
    assert story.delays == [Delay(reference="a", task_id=story.task.task_id, hand_out=0, due_at_ms=START_MS + 5_000)]

    story.later(5_000).delay_due()

    assert story.codes() == [ReasonCode.DELAY_OVER]
    assert (story.task.phase, story.task.waiting_for) == (Phase.QUEUED, WaitingFor.WORKER)
    assert (story.task.due_at_ms, story.task.hand_out, story.task.handed_out_at_ms) == (None, 1, story.now_ms)
    assert [schedule.task for schedule in story.schedules] == [story.task]


def test_a_start_delay_is_waited_out_before_the_first_attempt_only() -> None:
    story = Story(a_step("a", start_delay_seconds=5, retry_delay_seconds=1)).start().later(5_000).delay_due()

    story.taken().failed()

    assert story.task.due_at_ms == story.now_ms + 1_000


def test_the_total_budget_may_end_a_start_delay() -> None:
    story = Story(a_step("a", start_delay_seconds=60, total_timeout_seconds=10)).start().next_deadline()

    assert (story.task.phase, story.task.reason_code) == (Phase.TIMED_OUT, ReasonCode.TOTAL_TIMEOUT)
    assert story.now_ms == START_MS + 10_000


# --- delays ---------------------------------------------------------------------------------------


def a_waiting(reach: str) -> Story:
    """A task that waits out a delay of 10 s."""
    if reach == "start delay":
        return Story(a_step("a", start_delay_seconds=10)).start()
    return Story(a_step("a", retry_delay_seconds=10)).start().taken().failed()


both = pytest.mark.parametrize("reach", ["start delay", "back-off"])


@both
def test_a_delay_is_honoured_at_its_moment_and_later(reach: str) -> None:
    for late in (0, 1, 50_000):
        story = a_waiting(reach).later(10_000 + late).delay_due()
        assert (story.task.phase, story.task.hand_out) == (Phase.QUEUED, 1)


@both
def test_a_delay_that_is_far_too_early_is_sent_again(reach: str) -> None:
    story = a_waiting(reach)
    before = story.execution

    story.later(10_000 - EARLY_DELAY_MS - 1).delay_due()

    story.assert_untouched(before, says="is not over for another 1001 ms and was sent again")
    assert story.now(Delay) == [
        Delay(reference="a", task_id=story.task.task_id, hand_out=0, due_at_ms=story.task.due_at_ms or 0)
    ]


@both
def test_a_delay_that_is_a_moment_early_leaves_the_rest_to_the_clock(reach: str) -> None:
    """Clocks differ by that much; another record would come no sooner."""
    story = a_waiting(reach)
    due_at_ms = story.task.due_at_ms

    story.later(10_000 - EARLY_DELAY_MS).delay_due()

    assert story.ignored is None
    assert (story.now(Schedule), story.now(Delay), story.decision.transitions) == ([], [], ())
    assert story.task.phase in (Phase.CREATED, Phase.RETRY_WAIT)
    assert story.task.delay_returned
    assert (story.task.next_deadline, story.task.next_deadline_at_ms) == ("delay", due_at_ms)
    before = story.execution
    story.delay_due().assert_untouched(before, says="is not over for another 1000 ms")
    assert story.now(Delay) == []

    story.next_deadline()

    assert story.now_ms == due_at_ms
    assert story.codes() == [ReasonCode.DELAY_OVER]
    assert (story.task.phase, story.task.hand_out, story.task.delay_returned) == (Phase.QUEUED, 1, False)


def test_an_early_delay_names_the_clock_that_is_next() -> None:
    step = a_step("a", start_delay_seconds=10, total_timeout_seconds=20, timeout_policy=TimeoutPolicy.ALERT_ONLY)
    story = Story(step).start()
    assert (story.task.next_deadline, story.task.next_deadline_at_ms) == ("total", START_MS + 20_000)

    story.later(9_500).delay_due()

    assert (story.task.next_deadline, story.task.next_deadline_at_ms) == ("delay", START_MS + 10_000)


@both
def test_a_delay_for_a_moment_that_is_no_longer_true_is_sent_again(reach: str) -> None:
    story = a_waiting(reach)
    before = story.execution

    story.later(9_500).delay_due(due_at_ms=START_MS + 9_000)

    story.assert_untouched(before, says="was sent again")
    assert [delay.due_at_ms for delay in story.now(Delay)] == [START_MS + 10_000]


@both
def test_a_repeated_delay_hands_out_once(reach: str) -> None:
    story = a_waiting(reach)
    waiting = story.task
    before = story.later(10_000).delay_due().execution

    story.delay_due(of=waiting).assert_untouched(before, says="it waits for no delay")
    story.taken()
    before = story.execution
    story.delay_due(of=waiting).assert_untouched(before, says="the task is RUNNING, it waits for no delay")


@both
def test_a_delay_that_never_comes_is_done_without(reach: str) -> None:
    story = a_waiting(reach)
    due_at_ms = story.task.due_at_ms or 0

    story.next_deadline()

    assert story.now_ms == due_at_ms + DELAY_GRACE_MS
    assert story.codes() == [ReasonCode.DELAY_LOST]
    assert story.task.hand_out == 1


def test_a_delay_of_an_ended_workflow_is_the_past() -> None:
    story = a_waiting("back-off").terminate()
    before = story.execution

    story.later(10_000).delay_due().assert_untouched(before, says="the task is CANCELED already")


# --- topics ---------------------------------------------------------------------------------------


def without_topic(*steps: str) -> Story:
    story = Story(*steps)
    story.queues.missing.add("encode")
    return story


REACH: dict[str, Callable[[], Story]] = {
    "first attempt": lambda: without_topic("a").start(),
    "next task": lambda: _loses_its_topic(Story("a", "b").start().taken()).completed(),
    "after a delay": lambda: _loses_its_topic(a_waiting("start delay")).later(10_000).delay_due(),
    "retry at once": lambda: _loses_its_topic(Story(a_step("a", retry_delay_seconds=0)).start().taken()).failed(),
}


def _loses_its_topic(story: Story) -> Story:
    story.queues.missing.add("encode")
    return story


@pytest.mark.parametrize("reach", REACH)
def test_a_task_without_topic_waits_for_it_and_is_handed_out_once_it_exists(reach: str) -> None:
    """Producing to a missing topic would stall the transaction."""
    story = REACH[reach]()
    assert (story.task.phase, story.task.waiting_for, story.task.hand_out) == (Phase.QUEUED, WaitingFor.TOPIC, 0)
    assert story.task.handed_out_at_ms is None
    assert story.now(Schedule) == []

    story.queues.missing.clear()
    story.later(500).queue_ready()

    assert story.codes() == [ReasonCode.TOPIC_READY]
    assert (story.task.waiting_for, story.task.hand_out) == (WaitingFor.WORKER, 1)
    assert story.task.handed_out_at_ms == story.now_ms
    assert [schedule.task for schedule in story.now(Schedule)] == [story.task]
    before = story.execution
    story.queue_ready().assert_untouched(before, says="does not wait for its topic")


def test_a_topic_that_is_still_missing_is_waited_for_again() -> None:
    story = without_topic("a").start().later(500).queue_ready()

    assert (story.task.waiting_for, story.task.hand_out, story.schedules) == (WaitingFor.TOPIC, 0, [])
    assert story.task.next_deadline == "hand-out"


def test_a_task_that_waits_for_its_topic_ends_with_its_workflow() -> None:
    story = without_topic("a").start().terminate()

    assert (story.task.phase, story.task.waiting_for) == (Phase.CANCELED, None)
    assert story.workflow.status is WorkflowStatus.TERMINATED
