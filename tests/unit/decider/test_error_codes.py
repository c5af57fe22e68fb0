"""Which failures are retried, by error code (B11)."""

import pytest

from broker_engine.decider.definitions import parse_task_def
from broker_engine.model.status import TaskStatus, WorkflowStatus
from tests.builders import Story, a_step


@pytest.mark.parametrize(
    ("rules", "code", "is_retried"),
    [
        ({}, "HTTP_503", True),
        ({}, None, True),
        ({"fatal_errors": ("HTTP_400",)}, "HTTP_400", False),
        ({"fatal_errors": ("HTTP_400",)}, "HTTP_503", True),
        ({"retryable_errors": ("HTTP_503",)}, "HTTP_503", True),
        ({"retryable_errors": ("HTTP_503",)}, "HTTP_400", False),
        ({"retryable_errors": ("HTTP_503",)}, None, False),
    ],
)
def test_the_code_decides(rules: dict[str, tuple[str, ...]], code: str | None, is_retried: bool) -> None:
    story = Story(a_step("a", **rules)).start().taken().failed("no", error_code=code)

    if is_retried:
        assert story.task.attempt == 1
    else:
        assert story.task.status is TaskStatus.FAILED_WITH_TERMINAL_ERROR
        assert story.task.error_code == code
        assert story.workflow.status is WorkflowStatus.FAILED


def test_time_outs_have_no_code_and_are_retried() -> None:
    story = Story(a_step("a", retryable_errors=("HTTP_503",), response_timeout_seconds=5)).start().taken()

    story.next_deadline()

    assert story.task.attempt == 1


def test_a_code_is_one_or_the_other() -> None:
    parsed = parse_task_def({"name": "pay", "retryableErrors": ["A", "B"], "fatalErrors": ["B"]})

    (violation,) = parsed.violations
    assert (violation.path, violation.invalid_value) == ("fatalErrors", "B")
