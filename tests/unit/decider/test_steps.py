"""Steps of an attempt (B6, B14): what is completed is kept, measured and carried on; nothing is unbounded."""

import pytest

from broker_engine.decider.steps import MAX_STEP_NAME, MAX_STEPS
from broker_engine.model.status import ReasonCode, StepStatus, TaskStatus
from tests.builders import SMALL_PAYLOAD, START_MS, Story, a_step

STARTED, COMPLETED, FAILED = StepStatus.STARTED, StepStatus.COMPLETED, StepStatus.FAILED


def running(**fields: object) -> Story:
    return Story(a_step("a", **fields), "b").start().taken()


def names(story: Story) -> list[tuple[str, StepStatus]]:
    return [(step.name, step.status) for step in story.task.steps]


def test_a_step_is_told_with_its_times_and_sizes() -> None:
    story = running().later(10).step("PARSE", STARTED, input_size=7)
    assert story.task.current_step == "PARSE"

    story.later(500).step("PARSE", COMPLETED, result=b'{"rows": 3}')

    (step,) = story.task.steps
    assert (step.name, step.status, step.started_at_ms, step.ended_at_ms) == (
        "PARSE",
        COMPLETED,
        START_MS + 10,
        START_MS + 510,
    )
    assert (step.input_size, step.output_size, step.tries, step.result) == (7, 11, 1, b'{"rows": 3}')
    assert story.task.current_step is None


def test_a_failed_step_keeps_its_code_and_no_result() -> None:
    story = running().step("REPORT", STARTED).step("REPORT", FAILED, error_code="HTTP_503", reason="busy")

    (step,) = story.task.steps
    assert (step.status, step.error_code, step.reason, step.result) == (FAILED, "HTTP_503", "busy", None)


def test_a_retry_knows_what_is_completed_and_what_was_begun() -> None:
    story = running().step("PARSE", STARTED).step("PARSE", COMPLETED, result=b"1").step("UPSERT", STARTED)
    story.failed()

    assert story.task.attempt == 1
    assert names(story) == [("PARSE", COMPLETED), ("UPSERT", STARTED)]
    story.later(1_000).delay_due().taken().step("UPSERT", STARTED)
    assert [step.tries for step in story.task.steps] == [1, 2]


def test_a_time_out_carries_them_on_too() -> None:
    story = running(response_timeout_seconds=5).step("PARSE", STARTED).step("PARSE", COMPLETED, result=b"1")
    story.next_deadline()

    assert (story.task.attempt, names(story)) == (1, [("PARSE", COMPLETED)])


def test_a_checkpoint_is_carried_on_and_ends_with_its_step() -> None:
    story = running().step("UPSERT", STARTED).progressed(checkpoint=b"40", progress_done=40, progress_total=100)
    assert (story.task.checkpoint, story.task.progress_done, story.task.progress_total) == (b"40", 40, 100)

    story.failed().later(1_000).delay_due()
    assert story.task.checkpoint == b"40"

    story.taken().step("UPSERT", STARTED).step("UPSERT", COMPLETED, result=b"null")
    assert story.task.checkpoint is None


def test_a_completed_step_stays_completed() -> None:
    story = running().step("PARSE", STARTED).step("PARSE", COMPLETED, result=b"1").step("PARSE", STARTED)

    assert story.ignored == "step PARSE is completed already"
    assert names(story) == [("PARSE", COMPLETED)]


def test_a_step_is_a_sign_of_life() -> None:
    story = running(response_timeout_seconds=5).later(4_000).step("PARSE", STARTED).later(4_000).deadline()

    assert story.task.status is TaskStatus.IN_PROGRESS


@pytest.mark.parametrize("fields", [{"lease": 99}, {"sequence": 0}], ids=["another lease", "a repeated number"])
def test_what_is_not_its_workers_is_ignored(fields: dict[str, int]) -> None:
    story = running().step("PARSE", STARTED, **fields)

    assert story.ignored is not None
    assert story.task.steps == ()


def test_the_other_task_has_none_of_them() -> None:
    story = running().step("PARSE", STARTED).step("PARSE", COMPLETED, result=b"1").completed()

    assert story.task.reference == "b"
    assert story.task.steps == ()


def test_a_task_has_no_endless_list_of_steps() -> None:
    story = running()
    for number in range(MAX_STEPS):
        story.step(f"s{number}", STARTED).step(f"s{number}", COMPLETED, result=b"1")
    story.step("one more", STARTED)

    assert (story["a"].status, story["a"].reason_code) == (
        TaskStatus.FAILED_WITH_TERMINAL_ERROR,
        ReasonCode.TERMINAL_ERROR,
    )


def test_results_are_bounded_together() -> None:
    story = running().given(max_payload_bytes=SMALL_PAYLOAD)
    half = b'"' + b"x" * (SMALL_PAYLOAD // 2) + b'"'
    story.step("a", STARTED).step("a", COMPLETED, result=half).step("b", STARTED).step("b", COMPLETED, result=half)

    assert story["a"].reason_code is ReasonCode.PAYLOAD_TOO_LARGE
    assert "results of its steps" in (story["a"].reason or "")


def test_an_endless_name_is_refused() -> None:
    story = running().step("x" * (MAX_STEP_NAME + 1), STARTED)

    assert story["a"].status is TaskStatus.FAILED_WITH_TERMINAL_ERROR
