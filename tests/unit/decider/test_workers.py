"""Starts and reports of workers: leases, hand-out numbers, confirmations, and everything that comes too late."""

from collections.abc import Callable

import pytest

from broker_engine.decider.decide import decide
from broker_engine.decider.flow import ENDINGS
from broker_engine.model.commands import TaskStarted
from broker_engine.model.decision import Confirm, Schedule
from broker_engine.model.status import Phase, ReasonCode, ReportStatus, StepStatus, TaskStatus, WorkflowStatus
from tests.builders import SMALL_PAYLOAD, START_MS, Story, a_context, a_step, asked

# --- starting -------------------------------------------------------------------------------------


def test_an_accepted_start_is_the_lease() -> None:
    story = Story("a").start().later(500).taken(worker="worker-7")

    task = story.task
    assert (task.phase, task.status) == (Phase.RUNNING, TaskStatus.IN_PROGRESS)
    assert (task.lease, task.sequence, task.worker_id, task.poll_count) == (story.offset, 0, "worker-7", 1)
    assert (task.started_at_ms, task.updated_at_ms) == (START_MS + 500, START_MS + 500)
    assert task.waiting_for is None
    assert story.codes() == [ReasonCode.WORKER_STARTED]
    assert story.now(Confirm) == []


def test_a_worker_that_asks_is_told_that_its_start_counts() -> None:
    story = Story("a").start().taken(wants_confirmation=True)

    assert story.confirm == Confirm(
        worker_id="worker-1", task_id=story.task.task_id, hand_out=1, lease=story.offset, accepted=True
    )


def test_a_second_start_of_a_hand_out_takes_over_and_the_first_hears_so() -> None:
    story = Story("a").start().taken()
    first = story.task

    story.later(100).taken(worker="worker-2", wants_confirmation=True)

    assert story.codes() == [ReasonCode.LEASE_TAKEN_OVER]
    assert (story.task.worker_id, story.task.lease, story.task.poll_count) == ("worker-2", story.offset, 2)
    assert story.task.started_at_ms == first.started_at_ms
    superseded, accepted = story.now(Confirm)
    assert (superseded.worker_id, superseded.lease, superseded.accepted, superseded.reason) == (
        "worker-1",
        first.lease,
        False,
        "superseded",
    )
    assert (accepted.worker_id, accepted.accepted) == ("worker-2", True)


def test_only_the_holder_of_the_lease_can_report() -> None:
    story = Story("a").start().taken()
    first = story.task
    before = story.taken(worker="worker-2").execution

    story.completed(of=first).assert_untouched(before, says="lease 2 is not the current one (3)")
    assert story.completed().workflow.status is WorkflowStatus.COMPLETED


def test_a_sequence_starts_anew_with_each_lease() -> None:
    story = Story("a").start().taken()
    story.execution = story.execution_now.with_task(story.task._replace(sequence=5))
    before = story.execution

    for repeated in (4, 5):
        story.completed(sequence=repeated).assert_untouched(before, says=f"report {repeated} was applied already")
    assert story.taken(worker="worker-2").task.sequence == 0
    assert story.completed(sequence=1).task.sequence == 1


@pytest.mark.parametrize("hand_out", [0, 2, 3])
def test_a_start_of_another_hand_out_is_void(hand_out: int) -> None:
    story = Story("a").start()
    before = story.execution

    story.taken(hand_out=hand_out, wants_confirmation=True).assert_untouched(before, says="is void")
    assert (story.confirm.accepted, story.confirm.hand_out) == (False, hand_out)
    assert "is void" in story.confirm.reason


def test_a_task_that_was_never_handed_out_cannot_be_started() -> None:
    story = Story("a")
    story.queues.missing.add("encode")
    before = story.start().execution

    story.taken().assert_untouched(before, says="hand-out 0 is void")


@pytest.mark.parametrize("phase", [Phase.CREATED, Phase.RETRY_WAIT])
def test_a_task_that_waits_for_its_delay_cannot_be_started(phase: Phase) -> None:
    delayed = 5 if phase is Phase.CREATED else 0
    story = Story(a_step("a", start_delay_seconds=delayed)).start()
    if phase is Phase.RETRY_WAIT:
        story.taken().failed()
    before = story.execution

    story.taken(hand_out=story.task.hand_out).assert_untouched(before, says="is void")
    story.execution = story.execution_now.with_task(story.task._replace(hand_out=1))
    before = story.execution
    story.taken(wants_confirmation=True).assert_untouched(before, says=f"the task is {phase}, not on its queue")
    assert not story.confirm.accepted


def test_a_worker_that_asks_about_an_unknown_workflow_is_told_not_to_run() -> None:
    command = TaskStarted(key="gone", reference="a", task_id="t", hand_out=1, worker_id="w1", wants_confirmation=True)

    decision = decide(None, command, a_context())

    assert decision.execution is None
    (confirm,) = decision.outputs
    assert isinstance(confirm, Confirm)
    assert (confirm.accepted, confirm.reason) == (False, "there is no workflow gone")


# --- reporting ------------------------------------------------------------------------------------


def test_every_report_has_its_ending() -> None:
    assert set(ENDINGS) == set(ReportStatus)


@pytest.mark.parametrize(
    ("status", "phase", "task", "workflow"),
    [
        (ReportStatus.COMPLETED, Phase.SUCCEEDED, TaskStatus.COMPLETED, WorkflowStatus.COMPLETED),
        (ReportStatus.FAILED, Phase.FAILED, TaskStatus.FAILED, WorkflowStatus.FAILED),
        (
            ReportStatus.FAILED_WITH_TERMINAL_ERROR,
            Phase.FAILED,
            TaskStatus.FAILED_WITH_TERMINAL_ERROR,
            WorkflowStatus.FAILED,
        ),
        (ReportStatus.CANCELED, Phase.CANCELED, TaskStatus.CANCELED, WorkflowStatus.TERMINATED),
    ],
)
def test_a_report_ends_the_last_attempt(
    status: ReportStatus, phase: Phase, task: TaskStatus, workflow: WorkflowStatus
) -> None:
    story = Story(a_step("a", retry_count=0)).start().taken().later(100)

    story.reported(status, output=b'{"x": 1}', reason="because", error_code="E1")

    assert (story.task.phase, story.task.status) == (phase, task)
    assert (story.task.output, story.task.reason, story.task.error_code) == (b'{"x": 1}', "because", "E1")
    assert (story.task.ended_at_ms, story.task.sequence) == (story.now_ms, 1)
    assert (story.task.waiting_for, story.task.next_deadline_at_ms) == (None, None)
    assert (story.workflow.status, story.workflow.ended_at_ms) == (workflow, story.now_ms)


@pytest.mark.parametrize("status", [ReportStatus.FAILED_WITH_TERMINAL_ERROR, ReportStatus.CANCELED])
def test_a_terminal_error_and_a_cancel_are_never_retried(status: ReportStatus) -> None:
    story = Story("a").start().taken().reported(status)

    assert len(story.attempts) == 1
    assert story.workflow.status.is_terminal


def test_a_failed_task_waits_for_its_delay_before_it_runs_again() -> None:
    story = Story("a").start().taken().later(100).failed("disk full")

    failed, again = story.attempts
    assert (failed.status, failed.is_retried, failed.reason) == (TaskStatus.FAILED, True, "disk full")
    assert (again.phase, again.status) == (Phase.RETRY_WAIT, TaskStatus.SCHEDULED)
    assert (again.attempt, again.retried_task_id, again.is_retried) == (1, failed.task_id, False)
    assert (again.due_at_ms, again.retry_delay_ms) == (story.now_ms + 1_000, 1_000)
    assert (again.hand_out, again.poll_count, again.lease, again.worker_id, again.output) == (0, 0, None, None, None)
    assert (again.started_at_ms, again.ended_at_ms) == (None, None)
    assert (again.reason, again.reason_code) == ("disk full", ReasonCode.RETRYABLE_ERROR)
    assert story.now(Schedule) == []
    assert [delay.due_at_ms for delay in story.delays] == [story.now_ms + 1_000]


def test_a_retry_carries_the_reason_of_the_attempt_it_repeats() -> None:
    story = Story("a").start().fail_once().taken().failed("second")

    assert [task.reason for task in story.attempts] == [None, "second", "second"]


def test_a_task_without_retry_delay_is_handed_out_again_at_once() -> None:
    story = Story(a_step("a", retry_delay_seconds=0)).start().taken().failed()

    assert (story.task.phase, story.task.attempt, story.task.hand_out) == (Phase.QUEUED, 1, 1)
    assert len(story.schedules) == 2
    assert story.delays == []


def test_reasons_are_cut_as_conductor_cuts_them() -> None:
    story = Story(a_step("a", retry_count=0)).start().taken().failed("x" * 600)

    assert story.task.reason == story.workflow.reason == "x" * 500


@pytest.mark.parametrize("reach", ["created", "queued", "retrying", "running"])
def test_an_operator_finishes_a_task_by_hand_wherever_it_waits(reach: str) -> None:
    """D5: finishing a never-polled task stays allowed; no lease is needed."""
    story = Story(a_step("a", start_delay_seconds=5 if reach == "created" else 0)).start()
    if reach in ("retrying", "running"):
        story.taken()
    if reach == "retrying":
        story.failed()

    story.completed({"by": "hand"}, lease=None, worker_id=None, **asked())

    assert story.workflow.status is WorkflowStatus.COMPLETED
    assert (story.answer.status, story.answer.message) == (200, story.task.task_id)


# --- too late, twice, or about something else ------------------------------------------------------

LATE: list[tuple[str, Callable[[Story], Story], str]] = [
    ("the same report again", lambda s: s.taken().completed().completed(of=s["a"]), "the task is COMPLETED already"),
    (
        "another report after the end",
        lambda s: s.taken().completed().failed(of=s["a"]),
        "the task is COMPLETED already",
    ),
    ("a start after the end", lambda s: s.taken().completed().taken(of=s["a"]), "the task is COMPLETED already"),
    ("a delay after the end", lambda s: s.taken().completed().delay_due(of=s["a"]), "the task is COMPLETED already"),
    ("a queue after the end", lambda s: s.taken().completed().queue_ready(of=s["a"]), "the task is COMPLETED already"),
    ("a report on a cancelled task", lambda s: s.taken().terminate().completed(), "the task is CANCELED already"),
    ("a report without a lease taken", lambda s: s.completed(lease=1), "lease 1 is not the current one (None)"),
    ("an unknown reference", lambda s: s.taken(reference="z"), "no task z in this run"),
    ("an unknown task id", lambda s: s.taken(task_id="z"), "task z is not the latest attempt of a"),
    ("a delay nobody waits for", lambda s: s.delay_due(), "the task is QUEUED, it waits for no delay"),
    ("a queue nobody waits for", lambda s: s.queue_ready(), "the task does not wait for its topic"),
    ("a deadline before its time", lambda s: s.deadline(), "no deadline has passed"),
]


@pytest.mark.parametrize(("tell", "says"), [late[1:] for late in LATE], ids=[late[0] for late in LATE])
def test_what_comes_too_late_changes_nothing_and_says_why(tell: Callable[[Story], Story], says: str) -> None:
    story = tell(Story("a", "b").start())

    _, before = story.told[-2]
    assert story.ignored is not None
    story.assert_untouched(before.execution, says=says)


@pytest.mark.parametrize("phase", ["waiting", "queued", "running"])
def test_the_past_of_a_retried_task_is_over(phase: str) -> None:
    """D5, D15: an old attempt's result is ignored and recorded; the newer attempt is unaffected."""
    story = Story("a").start().taken()
    old = story.task
    story.failed()
    if phase != "waiting":
        story.later(1_000).delay_due()
    if phase == "running":
        story.taken()
    before = story.execution

    story.completed({"late": True}, of=old).assert_untouched(before, says="is not the latest attempt of a")
    assert str(story.ignored).startswith("COMPLETED with 13 bytes of output: task "), story.ignored
    story.taken(of=old).assert_untouched(before, says="is not the latest attempt of a")
    story.delay_due(of=old).assert_untouched(before, says="is not the latest attempt of a")
    story.queue_ready(of=old).assert_untouched(before, says="is not the latest attempt of a")


def test_a_late_report_is_answered_all_the_same() -> None:
    """As Conductor: 200 with the id, and no change."""
    story = Story("a", "b").start().taken().completed()
    before = story.execution

    story.completed(of=story["a"], **asked()).assert_untouched(before, says="the task is COMPLETED already")

    assert (story.answer.status, story.answer.message) == (200, story["a"].task_id)


def test_a_task_of_an_earlier_run_is_the_past() -> None:
    story = Story("a").start().taken()
    old = story.task
    before = story.terminate().start(strategy="FAIL_ON_RUNNING").execution

    story.completed(of=old).assert_untouched(before, says="is not the latest attempt of a")


def test_a_command_about_an_unknown_workflow_is_answered_and_makes_none() -> None:
    story = Story("a").start()
    task = story.task
    story.execution = None

    story.completed(of=task, **asked())

    assert story.execution is None
    assert story.ignored == "there is no workflow w"
    assert story.answer.status == 404


def test_successors_are_scheduled_once_however_often_a_result_comes() -> None:
    story = Story("a", "b").start().taken()
    done = story.completed()["a"]

    for _ in range(3):
        story.completed(of=done)

    assert [schedule.task.reference for schedule in story.schedules] == ["a", "b"]


# --- hand-outs ------------------------------------------------------------------------------------


def test_a_schedule_tells_the_worker_what_it_must_know() -> None:
    step = a_step("a", timeout_seconds=60, response_timeout_seconds=30)
    (schedule,) = Story(step).start(priority=5).schedules

    assert (schedule.timeout_ms, schedule.response_timeout_ms) == (60_000, 30_000)
    assert (schedule.task.hand_out, schedule.task.priority) == (1, 5)


def test_each_attempt_counts_its_own_hand_outs() -> None:
    story = Story("a").start().next_deadline().fail_once()

    assert [(s.task.attempt, s.task.hand_out) for s in story.schedules] == [(0, 1), (0, 2), (1, 1)]


# --- sizes ----------------------------------------------------------------------------------------


def test_an_output_over_the_limit_ends_the_task_for_good() -> None:
    story = Story("a").given(max_payload_bytes=SMALL_PAYLOAD).start().taken()

    story.completed({"x": "y" * SMALL_PAYLOAD})

    assert (story.task.phase, story.task.status) == (Phase.FAILED, TaskStatus.FAILED_WITH_TERMINAL_ERROR)
    assert (story.task.output, story.task.reason_code) == (None, ReasonCode.PAYLOAD_TOO_LARGE)
    assert f"the output has {SMALL_PAYLOAD + 8} bytes, the limit is {SMALL_PAYLOAD}" == story.task.reason
    assert story.workflow.status is WorkflowStatus.FAILED


def test_an_output_at_the_limit_is_accepted() -> None:
    story = Story("a").given(max_payload_bytes=SMALL_PAYLOAD).start().taken()

    assert story.completed({"x": "y" * (SMALL_PAYLOAD - 8)}).workflow.status is WorkflowStatus.COMPLETED


def test_a_failure_with_too_much_output_is_not_retried() -> None:
    story = Story("a").given(max_payload_bytes=SMALL_PAYLOAD).start().taken()

    story.failed(output=b" " * (SMALL_PAYLOAD + 1))

    assert story.task.status is TaskStatus.FAILED_WITH_TERMINAL_ERROR
    assert len(story.attempts) == 1


@pytest.mark.parametrize(
    ("output", "says"),
    [
        (b"{", "the output is not valid JSON"),
        (b"", "the output is not valid JSON"),
        (b"\xff", "the output is not valid JSON"),
        (b"[1]", "the output must be a JSON object, not list"),
        (b"null", "the output must be a JSON object, not NoneType"),
        (b'{"x": ' + b"[" * 300 + b"]" * 300 + b"}", "the output is nested more than 100 levels deep"),
    ],
)
@pytest.mark.parametrize("status", ReportStatus)
def test_an_output_that_later_steps_would_break_on_ends_the_task_for_good(
    output: bytes, says: str, status: ReportStatus
) -> None:
    story = Story("a", a_step("b", input_parameters={"x": "${a.output.x}"})).start().taken()

    story.reported(status, output=output)

    assert (story.task.status, story.task.output) == (TaskStatus.FAILED_WITH_TERMINAL_ERROR, None)
    assert story.task.reason_code is ReasonCode.TERMINAL_ERROR
    assert str(story.task.reason).startswith(says)
    assert story.workflow.status is WorkflowStatus.FAILED


TWICE = {"x": "${workflow.input.t}", "y": "${workflow.input.t}"}


@pytest.mark.parametrize(
    ("flag", "phase", "status", "workflow"),
    [
        (None, Phase.FAILED, TaskStatus.FAILED_WITH_TERMINAL_ERROR, WorkflowStatus.FAILED),
        ("optional", Phase.SUCCEEDED, TaskStatus.COMPLETED_WITH_ERRORS, WorkflowStatus.RUNNING),
        ("permissive", Phase.FAILED, TaskStatus.FAILED_WITH_TERMINAL_ERROR, WorkflowStatus.RUNNING),
    ],
)
def test_an_input_over_the_limit_ends_the_task_as_it_appears(
    flag: str | None, phase: Phase, status: TaskStatus, workflow: WorkflowStatus
) -> None:
    step = a_step("b", input_parameters=TWICE, **({flag: True} if flag else {}))
    story = Story("a", step, "c").given(max_payload_bytes=SMALL_PAYLOAD).start(input=b'{"t": "%s"}' % (b"x" * 150))

    story.taken().completed()

    assert (story["b"].phase, story["b"].status, story["b"].input) == (phase, status, b"{}")
    assert (story["b"].hand_out, story["b"].reason_code) == (0, ReasonCode.PAYLOAD_TOO_LARGE)
    assert story.workflow.status is workflow
    assert (story.task.reference == "c") == (workflow is WorkflowStatus.RUNNING)


@pytest.mark.parametrize(("optional", "reference"), [(True, "b"), (False, "a")])
def test_a_retry_whose_input_grew_over_the_limit_ends_as_it_appears(optional: bool, reference: str) -> None:
    story = Story(a_step("a", optional=optional), "b").given(max_payload_bytes=SMALL_PAYLOAD).start().taken()
    grown = b'{"t": "%s"}' % (b"x" * SMALL_PAYLOAD)
    story.execution = story.execution_now.with_task(story.task._replace(input=grown))

    story.failed()

    assert (story["a"].attempt, story["a"].reason_code) == (1, ReasonCode.PAYLOAD_TOO_LARGE)
    assert story.task.reference == reference
    assert story.workflow.status is (WorkflowStatus.RUNNING if optional else WorkflowStatus.FAILED)


def test_any_number_of_refused_steps_is_walked_in_one_decision() -> None:
    steps = [a_step(f"s{i}", input_parameters=TWICE, optional=True) for i in range(1_000)]

    story = Story(*steps).given(max_payload_bytes=SMALL_PAYLOAD).start(input=b'{"t": "%s"}' % (b"x" * 150))

    assert story.workflow.status is WorkflowStatus.COMPLETED
    assert len(story.attempts) == 1_000


def test_a_workflow_output_over_the_limit_fails_the_workflow() -> None:
    story = Story("a", output_parameters={"x": "${a.output.t}", "y": "${a.output.t}"})

    story.given(max_payload_bytes=SMALL_PAYLOAD).start().taken().completed({"t": "x" * 150})

    assert (story.workflow.status, story.workflow.reason_code) == (WorkflowStatus.FAILED, ReasonCode.PAYLOAD_TOO_LARGE)
    assert story.workflow.output == b"{}"
    assert "the workflow output has" in str(story.workflow.reason)


def test_a_failed_workflow_keeps_its_own_reason_when_its_output_is_too_large() -> None:
    step = a_step("b", retry_count=0)
    story = Story("a", step, output_parameters={"x": "${a.output.t}", "y": "${a.output.t}"})

    story.given(max_payload_bytes=SMALL_PAYLOAD).start().taken().completed({"t": "x" * 150}).taken().failed("disk full")

    assert (story.workflow.status, story.workflow.reason) == (WorkflowStatus.FAILED, "disk full")
    assert story.workflow.output == b"{}"


def test_a_start_that_takes_over_hears_what_the_one_before_has_done() -> None:
    """Its schedule record was written before; without being told it would run completed steps again."""
    story = Story("a").start().started()
    story.step("PARSE", StepStatus.COMPLETED, result=b"1").progressed(checkpoint=b"7").started(worker="other")

    _superseded, accepted = story.now(Confirm)
    assert (accepted.worker_id, accepted.accepted, accepted.steps, accepted.checkpoint) == (
        "other",
        True,
        story.task.steps,
        b"7",
    )


def test_a_first_start_is_told_nothing_that_its_record_knows() -> None:
    story = Story("a").start().started().step("PARSE", StepStatus.COMPLETED, result=b"1").failed()
    story.later(1_000).delay_due().started(wants_confirmation=True)

    assert (story.task.attempt, story.confirm.steps) == (1, ())
