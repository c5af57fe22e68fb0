"""STARTING: a worker has the task and prepares; what fails there is told apart from what fails while it runs (B5)."""

from __future__ import annotations

import pytest

from broker_engine.decider.losses import lost_tasks
from broker_engine.model.status import Phase, ReasonCode, TaskStatus
from tests.builders import START_MS, Story, a_step


def starting(**fields: object) -> Story:
    return Story(a_step("a", **fields)).start().taken(prepares=True)


def test_a_task_with_a_set_up_is_starting_until_that_is_over() -> None:
    story = starting()
    assert (story.task.phase, story.task.status) == (Phase.STARTING, TaskStatus.IN_PROGRESS)

    story.later(500).prepared()
    assert (story.task.phase, story.codes()) == (Phase.RUNNING, [ReasonCode.PREPARED])
    assert (story.task.started_at_ms, story.task.heartbeat_at_ms) == (START_MS, START_MS + 500)
    assert story.task.steps == (), "the set-up runs again with every attempt: it is no step that is done"


def test_a_task_without_one_runs_at_once() -> None:
    assert Story("a").start().taken().task.phase is Phase.RUNNING


def test_told_twice_the_end_of_the_set_up_changes_nothing() -> None:
    story = starting().prepared()
    before = story.execution
    story.prepared()

    story.assert_untouched(before, says="prepared already")


@pytest.mark.parametrize(
    ("told", "code", "reason_code"),
    [
        (Story.failed, "INIT_SETUP", ReasonCode.INIT_SETUP),
        (Story.failed, "DB_DOWN", ReasonCode.INIT_SETUP),
        (Story.failed, "INIT_SECRET", ReasonCode.INIT_SECRET),
        (Story.failed_terminally, "INIT_INPUT", ReasonCode.INIT_INPUT),
    ],
)
def test_a_failure_before_the_function_has_its_own_reason_code(
    told: object, code: str, reason_code: ReasonCode
) -> None:
    story = starting(retry_count=0)
    told(story, "no", error_code=code)  # type: ignore[operator]  # a method of Story

    assert (story.task.reason_code, story.task.error_code) == (reason_code, code)


def test_the_same_failure_of_the_function_is_an_ordinary_one() -> None:
    story = starting(retry_count=0).prepared().failed("no", error_code="DB_DOWN")

    assert story.task.reason_code is ReasonCode.RETRYABLE_ERROR


def test_a_task_without_a_set_up_tells_of_its_input_and_secrets_in_the_same_way() -> None:
    story = Story(a_step("a", retry_count=0)).start().taken().failed_terminally("no", error_code="INIT_INPUT")

    assert (story.task.reason_code, story.task.status) == (
        ReasonCode.INIT_INPUT,
        TaskStatus.FAILED_WITH_TERMINAL_ERROR,
    )


def test_a_failed_set_up_is_retried_and_a_bad_input_is_not() -> None:
    assert starting().failed("no", error_code="INIT_SETUP").task.attempt == 1
    assert starting().failed_terminally("no", error_code="INIT_INPUT").task.attempt == 0


def test_the_response_clock_runs_while_it_prepares() -> None:
    story = starting(response_timeout_seconds=5).next_deadline()

    assert story.now_ms == START_MS + 5_000
    assert ReasonCode.RESPONSE_TIMEOUT in story.codes()


def test_a_lost_worker_loses_what_it_prepared() -> None:
    story = starting().later(20_000)

    assert lost_tasks(story.execution_now, "worker-1", story.now_ms) == [story.task]
