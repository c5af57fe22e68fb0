"""Conformance rows that need no I/O, told as values through the decider. The number of a row is in its test's name.

Where this engine decides otherwise on purpose, the docstring names the decision (D…).
"""

from typing import Any

import orjson
import pytest

from broker_engine.decider.definitions import parse_task_def
from broker_engine.decider.identity import jitter_ms
from broker_engine.decider.registry import decide_definition
from broker_engine.decider.retries import retry_delay_ms, retry_delay_seconds
from broker_engine.model.commands import PutTaskDef
from broker_engine.model.decision import Answer
from broker_engine.model.definitions import RetryLogic, TimeoutPolicy, WorkflowTask
from broker_engine.model.status import Phase, ReasonCode, TaskStatus, WorkflowStatus
from tests.builders import START_MS, Story, a_context, a_step, a_task_def, asked

FIXED, LINEAR, EXPONENTIAL = RetryLogic.FIXED, RetryLogic.LINEAR_BACKOFF, RetryLogic.EXPONENTIAL_BACKOFF
RETRY, TIME_OUT_WF, ALERT_ONLY = TimeoutPolicy.RETRY, TimeoutPolicy.TIME_OUT_WF, TimeoutPolicy.ALERT_ONLY


def statuses(story: Story) -> list[TaskStatus]:
    return [task.status for task in story.attempts]


def delays(logic: RetryLogic, count: int, **fields: int) -> list[int]:
    definition = a_task_def(retry_logic=logic, **fields)
    return [retry_delay_seconds(definition, n) for n in range(count)]


def alerts(story: Story) -> int:
    return [transition.reason_code for transition in story.transitions].count(ReasonCode.TIMEOUT_ALERT)


# --- rows 1-3: success and failure ----------------------------------------------------------------


def test_row_01_two_tasks_complete_in_order_and_the_last_gives_the_output() -> None:
    story = Story("a", "b").start().taken().completed({"x": 1}).taken().completed({"y": 2})

    assert [(task.reference, task.seq, task.status) for task in story.attempts] == [
        ("a", 1, "COMPLETED"),
        ("b", 2, "COMPLETED"),
    ]
    assert story.workflow.status is WorkflowStatus.COMPLETED
    assert story.output == {"y": 2}


def test_row_02_four_failures_use_three_retries_and_fail_the_workflow() -> None:
    story = Story(a_step("a", retry_count=3, retry_delay_seconds=0)).start()
    for number in range(4):
        story.taken().failed(f"failure {number}")

    first, *others = story.attempts
    assert [task.attempt for task in story.attempts] == [0, 1, 2, 3]
    assert statuses(story) == [TaskStatus.FAILED] * 4
    assert [task.is_retried for task in story.attempts] == [True, True, True, False]
    assert first.retried_task_id is None
    assert [task.retried_task_id for task in others] == [task.task_id for task in story.attempts[:-1]]
    assert len({task.task_id for task in story.attempts}) == 4
    assert story.workflow.status is WorkflowStatus.FAILED


def test_row_03_a_terminal_error_is_not_retried() -> None:
    story = Story("a").start().taken().failed_terminally("no such film")

    assert statuses(story) == [TaskStatus.FAILED_WITH_TERMINAL_ERROR]
    assert (story.workflow.status, story.workflow.reason) == (WorkflowStatus.FAILED, "no such film")
    assert (story.workflow.failed_task_id, story.workflow.failed_reference) == (story.task.task_id, "a")


# --- rows 4-9: retries ----------------------------------------------------------------------------


@pytest.mark.parametrize(("logic", "first"), [(FIXED, [2, 2, 2]), (LINEAR, [4, 8, 12]), (EXPONENTIAL, [2, 4, 8])])
def test_row_04_the_first_three_delays_of_each_logic(logic: RetryLogic, first: list[int]) -> None:
    step = a_step("a", retry_logic=logic, retry_delay_seconds=2, backoff_scale_factor=2, retry_count=3)
    story = Story(step).start()
    waited = []
    for _ in range(3):
        story.taken().failed()
        waited.append(((story.task.due_at_ms or 0) - story.now_ms) // 1_000)
        story.now_ms = story.task.due_at_ms or 0
        story.delay_due()

    assert waited == first == delays(logic, 3, retry_delay_seconds=2, backoff_scale_factor=2)


def test_row_05_the_cap_holds_for_every_logic() -> None:
    assert delays(EXPONENTIAL, 2, retry_delay_seconds=2, max_retry_delay_seconds=3) == [2, 3]
    assert delays(LINEAR, 2, retry_delay_seconds=2, backoff_scale_factor=2, max_retry_delay_seconds=5) == [4, 5]
    assert [
        delays(logic, 2, retry_delay_seconds=10, max_retry_delay_seconds=3) for logic in (FIXED, LINEAR, EXPONENTIAL)
    ] == [[3, 3]] * 3


def test_row_06_jitter_is_added_in_milliseconds() -> None:
    definition = a_task_def(retry_delay_seconds=60, backoff_jitter_ms=5_000)
    drawn = [retry_delay_ms(definition, 0, f"task-{i}") for i in range(10)]

    assert retry_delay_seconds(definition, 0) == 60
    assert all(60_000 <= delay <= 65_000 for delay in drawn)
    assert len(set(drawn)) > 1
    assert {jitter_ms(f"task-{i}", 1) for i in range(20)} == {0, 1}
    assert {retry_delay_ms(a_task_def(retry_delay_seconds=60), 0, f"task-{i}") for i in range(10)} == {60_000}


def test_row_07_the_cap_comes_before_the_jitter() -> None:
    definition = a_task_def(
        retry_logic=EXPONENTIAL, retry_delay_seconds=2, max_retry_delay_seconds=3, backoff_jitter_ms=2_000
    )
    drawn = [retry_delay_ms(definition, 1, f"task-{i}") for i in range(50)]

    assert all(3_000 <= delay <= 5_000 for delay in drawn)
    assert max(drawn) > 3_000


@pytest.mark.parametrize("n", [30, 31, 50])
def test_row_08_a_long_back_off_saturates(n: int) -> None:
    """D1: at n=30 Conductor's product wraps to 0 s."""
    definition = a_task_def(retry_logic=EXPONENTIAL, retry_delay_seconds=60)

    assert retry_delay_seconds(definition, n) == 2**31 - 1


def test_row_09_the_steps_own_retry_count_wins() -> None:
    step = WorkflowTask(name="encode", reference="a", retry_count=0, definition=a_task_def(retry_count=3))
    story = Story(step).start().taken().failed()

    assert statuses(story) == [TaskStatus.FAILED]
    assert story.workflow.status is WorkflowStatus.FAILED


# --- rows 10-14: time-outs ------------------------------------------------------------------------


def test_row_10_the_response_time_out_retries_whatever_the_policy() -> None:
    story = Story(a_step("a", response_timeout_seconds=10, timeout_policy=TIME_OUT_WF)).start().taken()

    story.later(10_000).deadline()

    assert statuses(story) == [TaskStatus.TIMED_OUT, TaskStatus.SCHEDULED]
    assert story.attempts[0].reason_code is ReasonCode.RESPONSE_TIMEOUT
    assert story.workflow.status is WorkflowStatus.RUNNING


def test_row_11_when_attempts_are_used_up_by_time_outs_the_workflow_times_out() -> None:
    step = a_step("a", timeout_seconds=1, timeout_policy=RETRY, retry_count=1, retry_delay_seconds=0)
    story = Story(step).start().taken().later(1_000).deadline()
    assert statuses(story) == [TaskStatus.TIMED_OUT, TaskStatus.SCHEDULED]

    story.taken().later(1_000).deadline()

    assert statuses(story) == [TaskStatus.TIMED_OUT, TaskStatus.TIMED_OUT]
    assert story.workflow.status is WorkflowStatus.TIMED_OUT


def test_row_12_time_out_wf_ends_the_workflow_at_once() -> None:
    step = a_step("a", timeout_seconds=1, timeout_policy=TIME_OUT_WF, retry_count=5)
    story = Story(step).start().taken().later(1_000).deadline()

    assert statuses(story) == [TaskStatus.TIMED_OUT]
    assert story.workflow.status is WorkflowStatus.TIMED_OUT


def test_row_13_alert_only_alerts_once_and_a_later_result_counts() -> None:
    """D2: once per deadline, not once per look at it."""
    story = Story(a_step("a", timeout_seconds=1, timeout_policy=ALERT_ONLY)).start().taken()
    for _ in range(3):
        story.later(1_000).deadline()

    assert alerts(story) == 1
    assert story.task.status is TaskStatus.IN_PROGRESS
    assert story.completed().workflow.status is WorkflowStatus.COMPLETED


def test_row_14_a_task_that_nobody_takes_times_out_and_its_hand_out_is_void() -> None:
    story = Story(a_step("a", poll_timeout_seconds=1, timeout_policy=RETRY, retry_delay_seconds=0)).start()
    old = story.task

    story.later(1_000).deadline()

    assert statuses(story) == [TaskStatus.TIMED_OUT, TaskStatus.SCHEDULED]
    before = story.execution
    story.taken(of=old, wants_confirmation=True).assert_untouched(before, says="is not the latest attempt of a")
    assert not story.confirm.accepted, "a worker that finds it in the backlog does not run it"
    assert story.taken().task.status is TaskStatus.IN_PROGRESS


# --- rows 15, 16: late and repeated results -------------------------------------------------------


def test_row_15_a_late_result_is_ignored_and_recorded() -> None:
    """D15: with its size and the reason."""
    story = Story(a_step("a", response_timeout_seconds=10, retry_delay_seconds=0)).start().taken()
    late = story.task
    story.later(10_000).deadline()
    before = story.execution

    story.completed({"late": True}, of=late, **asked()).assert_untouched(before, says="13 bytes of output")
    assert (story.answer.status, story.answer.message) == (200, late.task_id)

    before = story.taken().completed().execution
    story.completed({"late": True}, of=late).assert_untouched(before, says="is not the latest attempt of a")
    story.failed(of=story.task).assert_untouched(before, says="the task is COMPLETED already")


def test_row_16_a_result_sent_twice_counts_once() -> None:
    story = Story("a", "b").start().taken()
    running = story.task
    before = story.completed({"x": 1}).execution

    story.completed({"x": 2}, of=running).assert_untouched(before, says="the task is COMPLETED already")

    assert [schedule.task.reference for schedule in story.schedules] == ["a", "b"]
    assert story["a"].output == b'{"x":1}'


# --- rows 17-19: the total budget -----------------------------------------------------------------


@pytest.mark.parametrize("policy", TimeoutPolicy)
def test_row_17_a_failure_after_the_budget_fails_the_workflow(policy: TimeoutPolicy) -> None:
    """D7: under every policy; reason code TOTAL_TIMEOUT, the task's own reason."""
    story = Story(a_step("a", total_timeout_seconds=60, timeout_policy=policy)).start().taken()

    story.later(200_000).failed("disk full")

    assert statuses(story) == [TaskStatus.FAILED]
    assert story.workflow.status is WorkflowStatus.FAILED
    assert (story.workflow.reason, story.workflow.reason_code) == ("disk full", ReasonCode.TOTAL_TIMEOUT)


@pytest.mark.parametrize("policy", [RETRY, TIME_OUT_WF])
def test_row_18_a_live_task_over_the_budget_times_out_and_so_does_the_workflow(policy: TimeoutPolicy) -> None:
    """D7."""
    story = Story(a_step("a", total_timeout_seconds=60, timeout_policy=policy)).start().taken()

    story.later(60_000).deadline()

    assert statuses(story) == [TaskStatus.TIMED_OUT]
    assert story.workflow.status is WorkflowStatus.TIMED_OUT


def test_row_18_under_alert_only_a_live_task_over_the_budget_goes_on() -> None:
    """D7."""
    story = Story(a_step("a", total_timeout_seconds=60, timeout_policy=ALERT_ONLY)).start().taken()

    story.later(60_000).deadline()

    assert alerts(story) == 1
    assert statuses(story) == [TaskStatus.IN_PROGRESS]
    assert story.workflow.status is WorkflowStatus.RUNNING


def test_row_19_the_budget_counts_from_the_first_attempt_and_0_is_off() -> None:
    story = Story(a_step("a", total_timeout_seconds=100, retry_count=3)).start()
    for _ in range(3):
        story.later(1_000).fail_once()
    assert [task.first_scheduled_at_ms for task in story.attempts] == [START_MS] * 4

    off = Story(a_step("a", total_timeout_seconds=0)).start().taken().later(10**9).failed()
    assert off.task.attempt == 1


# --- row 20-22: optional and permissive -----------------------------------------------------------


def test_row_20_an_optional_task_is_retried_and_then_counts_as_done() -> None:
    """D25: straight to COMPLETED_WITH_ERRORS."""
    story = Story(a_step("a", optional=True, retry_count=3), "b").start()
    for _ in range(4):
        story.fail_once()

    attempts = [task.status for task in story.attempts if task.reference == "a"]
    assert attempts == [TaskStatus.FAILED] * 3 + [TaskStatus.COMPLETED_WITH_ERRORS]
    assert story["b"].status is TaskStatus.SCHEDULED
    assert story.taken().completed().workflow.status is WorkflowStatus.COMPLETED


def test_row_21_a_permissive_task_lets_the_flow_go_on_and_fails_the_workflow_at_the_end() -> None:
    story = Story(a_step("a", permissive=True, retry_count=1), "b").start().fail_once().taken().failed("bad disk")

    assert (story["a"].status, story["b"].status) == (TaskStatus.FAILED, TaskStatus.SCHEDULED)
    story.taken().completed()
    assert (story.workflow.status, story.workflow.reason) == (WorkflowStatus.FAILED, "a FAILED: bad disk")


def test_row_21_permissive_and_optional_completes() -> None:
    story = Story(a_step("a", permissive=True, optional=True, retry_count=0), "b").start().taken().failed()

    assert story.taken().completed().workflow.status is WorkflowStatus.COMPLETED


def test_row_22_optional_wins_over_time_out_wf() -> None:
    """D6, D25: no retry, COMPLETED_WITH_ERRORS at once, and the flow goes on."""
    step = a_step("a", optional=True, timeout_seconds=1, timeout_policy=TIME_OUT_WF, retry_count=3)
    story = Story(step, "b").start().taken().later(1_000).deadline()

    assert [task.reference for task in story.attempts] == ["a", "b"]
    assert story["a"].status is TaskStatus.COMPLETED_WITH_ERRORS
    assert "timeoutSeconds" in str(story["a"].reason)
    assert (story["b"].phase, story.workflow.status) == (Phase.QUEUED, WorkflowStatus.RUNNING)


# --- rows 41, 42: definitions and expressions -----------------------------------------------------


def test_row_41_both_rules_across_time_outs_are_reported() -> None:
    document = {
        "name": "encode",
        "responseTimeoutSeconds": 3600,
        "timeoutSeconds": 1200,
        "totalTimeoutSeconds": 600,
    }
    command = PutTaskDef(key="encode", document=orjson.dumps(document), **asked())

    (answer,) = decide_definition(command, a_context()).outputs

    assert isinstance(answer, Answer)
    assert answer.status == 400
    violations = orjson.loads(answer.message)["validationErrors"]
    assert [violation["path"] for violation in violations] == ["responseTimeoutSeconds", "timeoutSeconds"]
    assert parse_task_def({"name": "encode", "responseTimeoutSeconds": 60, "timeoutSeconds": 60}).violations == ()


@pytest.mark.parametrize(
    ("parameters", "template", "result"),
    [
        ({"k": "${a.output.x}"}, {}, {"k": None}),
        ({"k": "got ${a.output.x}"}, {}, {"k": "got null"}),
        ({"k": "$${y}"}, {}, {"k": "${y}"}),
        ({}, {"k": 5}, {"k": 5}),
        ({"k": "${a.output.x}"}, {"k": 5}, {"k": 5}),
    ],
    ids=["missing", "missing in text", "escape", "template for an absent key", "template for null"],
)
def test_row_42_how_inputs_resolve(parameters: dict[str, Any], template: dict[str, Any], result: Any) -> None:
    story = Story("a", a_step("b", input_parameters=parameters, input_template=template))

    assert story.start().taken().completed().input == result


def test_row_42_a_retry_sees_its_own_task_id() -> None:
    story = Story(a_step("a", input_parameters={"me": "${CPEWF_TASK_ID}"})).start().taken().failed()

    assert [orjson.loads(task.input)["me"] for task in story.attempts] == [task.task_id for task in story.attempts]
