"""Starting workflows: what a start meets, what it answers, and that it happens once (D10, D28)."""

import orjson
import pytest

from broker_engine.decider.context import MAX_REMEMBERED
from broker_engine.decider.decide import decide
from broker_engine.decider.definitions import parse_task_def
from broker_engine.decider.identity import workflow_id_for
from broker_engine.model.commands import IdempotencyStrategy
from broker_engine.model.decision import Answer, Decision, RememberStart, Schedule
from broker_engine.model.status import Phase, ReasonCode, TaskStatus, WorkflowStatus
from tests.builders import START_MS, Definitions, Story, a_context, a_start, a_step, a_task_def, a_workflow_def, asked

FAIL, RETURN_EXISTING, FAIL_ON_RUNNING = IdempotencyStrategy


def refusal(decision: Decision) -> tuple[int, str]:
    (answer,) = decision.outputs
    assert isinstance(answer, Answer)
    assert decision.ignored is not None
    assert not decision.transitions
    assert not decision.changed_tasks
    return answer.status, answer.message


def test_a_start_makes_a_running_workflow_and_hands_its_first_task_out() -> None:
    story = Story("a", "b").start(
        input=b'{"n": 1}', correlation_id="order", priority=7, created_by="ann", source="csv", **asked()
    )

    workflow, task = story.workflow, story.task
    assert workflow.status is WorkflowStatus.RUNNING
    assert (workflow.workflow_id, workflow.run, workflow.incarnation) == ("w", 0, "commands/0/1")
    assert (workflow.name, workflow.version, workflow.definition_hash) == ("film", 1, "hash")
    assert (workflow.input, workflow.correlation_id, workflow.priority) == (b'{"n": 1}', "order", 7)
    assert (workflow.created_by, workflow.source) == ("ann", "csv")
    assert workflow.created_at_ms == workflow.updated_at_ms == START_MS
    assert list(story.execution_now.tasks) == ["a"]
    assert (task.phase, task.status, task.attempt, task.hand_out, task.seq) == (Phase.QUEUED, "SCHEDULED", 0, 1, 1)
    assert (task.task_type, task.domain, task.priority) == ("encode", "default", 7)
    assert [schedule.task for schedule in story.now(Schedule)] == [task]
    assert story.codes() == [ReasonCode.WORKFLOW_STARTED, ReasonCode.WORKFLOW_STARTED]
    assert story.answer == Answer(reply_to="gateway", command_id="c", status=200, message="w")
    assert story.decision.workflow_changed


# --- what it asks for -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "status", "says"),
    [
        ({"priority": -1}, 400, "priority must be 0 to 99"),
        ({"priority": 100}, 400, "priority must be 0 to 99"),
        ({"input": b"[]"}, 400, "input must be a JSON object"),
        ({"input": b"null"}, 400, "input must be a JSON object"),
        ({"input": b"{"}, 400, "input must be a JSON object"),
        ({"input": b"\xff"}, 400, "input must be a JSON object"),
        ({"input": b'{"x": ' + b"[" * 130 + b"]" * 130 + b"}"}, 400, "input is nested more than 100 levels deep"),
        ({"input": b'{"x": "%s"}' % (b"x" * 400)}, 413, "store it elsewhere and pass a reference"),
        ({"name": "movie"}, 404, "there is no workflow definition movie: register it first"),
        ({"version": 3}, 404, "there is no workflow definition film version 3; there are versions 1, 2"),
        ({"idempotency_key": "k"}, 400, "a chosen workflowId and an idempotencyKey exclude each other"),
        ({"definition": b"{}"}, 400, "name: is required"),
        ({"definition": b"["}, 400, "not valid JSON"),
        ({"definition": b'{"name": "x", "tasks": [{"name": 5}]}'}, 400, "tasks[0].name: must be a text"),
    ],
)
def test_a_start_that_cannot_be_carried_out_is_refused(fields: dict[str, object], status: int, says: str) -> None:
    definitions = Definitions.of(a_workflow_def(), a_workflow_def(version=2))
    context = a_context(definitions=definitions, max_payload_bytes=300)

    decision = decide(None, a_start(**asked(), **fields), context)

    assert decision.execution is None
    assert refusal(decision)[0] == status
    assert says in refusal(decision)[1]


@pytest.mark.parametrize(("version", "started"), [(None, 2), (1, 1), (2, 2)])
def test_the_newest_version_is_started_unless_one_is_named(version: int | None, started: int) -> None:
    definitions = Definitions.of(a_workflow_def(version=2), a_workflow_def(version=1))

    decision = decide(None, a_start(version=version), a_context(definitions=definitions))

    assert decision.execution is not None
    assert decision.execution.workflow.version == started


def test_a_start_may_bring_its_own_definition() -> None:
    definition = {"name": "own", "tasks": [{"name": "encode", "taskReferenceName": "x"}]}
    registered = Definitions.of(parse_task_def({"name": "encode", "retryCount": 9}).unwrap())

    decision = decide(None, a_start(name="own", definition=orjson.dumps(definition)), a_context(definitions=registered))

    assert decision.execution is not None
    assert decision.execution.workflow.name == "own"
    assert decision.execution.definition.tasks[0].definition.retry_count == 9
    assert decision.execution.workflow.definition_hash == decision.execution.definition.content_hash != ""


def test_a_workflow_keeps_the_definition_it_started_with() -> None:
    story = Story("a").start()

    story.definitions.workflows["film", 1] = a_workflow_def("a", "b")
    story.definitions.tasks["encode"] = a_task_def(retry_count=0)
    story.taken().failed()

    assert story.task.attempt == 1
    assert story.execution_now.definition == story.definition


def test_an_input_template_may_make_the_input_too_large() -> None:
    story = Story("a", input_template={"x": "x" * 150}).given(max_payload_bytes=200)

    story.start(input=b'{"y": "%s"}' % (b"y" * 150), **asked())

    assert (story.answer.status, story.execution) == (413, None)


def test_a_wide_input_is_not_a_deep_one() -> None:
    step = a_step("a", input_parameters="${workflow.input}")
    story = Story(step).start(input=orjson.dumps({"x": [{"y": []}] * 500}))

    assert story.input == {"x": [{"y": []}] * 500}


def test_a_command_that_nobody_waits_for_is_remembered_and_not_answered() -> None:
    story = Story("a").start(command_id="c", expires_at_ms=START_MS + 1_000)

    assert [entry.command_id for entry in story.workflow.remembered] == ["c"]
    assert story.outputs(Answer) == []


def test_a_start_that_expired_before_it_was_on_the_log_is_refused() -> None:
    late = a_start(at_ms=START_MS, **asked(expires_at_ms=START_MS))
    decision = decide(None, late, a_context(definitions=Definitions.of()))

    assert refusal(decision) == (409, "the command expired before it reached the log; send it again")


def test_a_failing_first_decision_still_answers_with_the_id() -> None:
    """As Conductor: the workflow exists, and has failed."""
    step = a_step("a", input_parameters={"x": "${workflow.input.t}", "y": "${workflow.input.t}"})
    story = Story(step).given(max_payload_bytes=200).start(input=b'{"t": "%s"}' % (b"x" * 150), **asked())

    assert (story.answer.status, story.answer.message) == (200, "w")
    assert story.workflow.status is WorkflowStatus.FAILED
    assert story.task.status is TaskStatus.FAILED_WITH_TERMINAL_ERROR


# --- an id that is taken (D10, D28) ---------------------------------------------------------------


def test_fail_on_an_existing_id() -> None:
    story = Story("a").start()
    before = story.execution

    story.start(strategy=FAIL, **asked()).assert_untouched(before, says="workflow w exists already (RUNNING)")
    assert story.answer.status == 409

    before = story.taken().completed().execution
    story.start(strategy=FAIL, **asked()).assert_untouched(before, says="workflow w exists already (COMPLETED)")
    assert story.answer.status == 409


def test_return_existing_gives_the_id_and_starts_nothing() -> None:
    story = Story("a").start()
    before = story.execution

    story.start(strategy=RETURN_EXISTING, **asked()).assert_untouched(before, says="w")
    assert (story.answer.status, story.answer.message) == (200, "w")


def test_fail_on_running_starts_a_new_run_once_the_old_one_has_ended() -> None:
    story = Story("a").start()
    first = story.task
    before = story.execution
    story.start(strategy=FAIL_ON_RUNNING, **asked()).assert_untouched(before, says="wait until it ends")
    assert story.answer.status == 409

    story.taken().completed().start(strategy=FAIL_ON_RUNNING, input=b'{"second": 1}', **asked("c2"))

    assert (story.answer.status, story.workflow.run, story.workflow.status) == (200, 1, WorkflowStatus.RUNNING)
    assert story.workflow.incarnation == "commands/0/1"
    assert (story.workflow.output, story.workflow.ended_at_ms) == (None, None)
    assert story.task.task_id != first.task_id
    assert (story.task.seq, story.task.attempt, story.task.hand_out) == (1, 0, 1)
    before = story.execution
    story.completed(of=first).assert_untouched(before, says="is not the latest attempt")


@pytest.mark.parametrize(("strategy", "status"), [(FAIL, 409), (RETURN_EXISTING, 200), (FAIL_ON_RUNNING, 200)])
def test_an_id_stays_taken_after_its_workflow_was_retired(strategy: IdempotencyStrategy, status: int) -> None:
    story = Story("a").given(retired_run=4).start(strategy=strategy, **asked())

    assert story.answer.status == status
    if strategy is FAIL_ON_RUNNING:
        assert story.workflow.run == 5
    else:
        assert story.execution is None
        assert story.ignored is not None


def test_a_key_gives_the_id_and_is_remembered_longer_than_the_workflow() -> None:
    key = workflow_id_for("film", "order-1")
    story = Story("a").start(key=key, idempotency_key="order-1")

    assert story.outputs(RememberStart) == [
        RememberStart(workflow_id=key, name="film", idempotency_key="order-1", run=0)
    ]
    assert story.workflow.idempotency_key == "order-1"

    story.taken().completed().start(key=key, idempotency_key="order-1", strategy=FAIL_ON_RUNNING)
    assert [remembered.run for remembered in story.outputs(RememberStart)] == [0, 1]


def test_without_a_key_nothing_is_remembered_beyond_the_workflow() -> None:
    assert Story("a").start().outputs(RememberStart) == []


# --- the same command again -----------------------------------------------------------------------


def test_a_repeated_command_gets_the_stored_answer() -> None:
    story = Story("a").start(**asked())
    first, before = story.answer, story.execution

    story.later(1_000).start(**asked()).assert_untouched(before, says="repeated command")
    assert story.answer == first

    story.terminate(**asked("t"))
    answered, before = story.answer, story.execution
    story.terminate(**asked("t")).assert_untouched(before, says="repeated command")
    assert story.answer == answered


def test_a_repeated_start_gets_its_answer_whatever_its_strategy() -> None:
    story = Story("a").start(strategy=FAIL, **asked()).taken().completed()
    before = story.execution

    for strategy in IdempotencyStrategy:
        story.start(strategy=strategy, **asked()).assert_untouched(before, says="repeated command")
        assert (story.answer.status, story.answer.message) == (200, "w")


def test_a_command_is_forgotten_when_it_has_expired() -> None:
    story = Story("a").start(**asked("c1", START_MS + 10_000))
    assert [entry.command_id for entry in story.workflow.remembered] == ["c1"]

    story.later(10_000).terminate(**asked("c2"))

    assert [entry.command_id for entry in story.workflow.remembered] == ["c2"]


def test_a_command_without_expiry_is_answered_and_not_remembered() -> None:
    story = Story("a").start(**asked(expires_at_ms=0))

    assert story.answer.status == 200
    assert story.workflow.remembered == ()


def test_beyond_the_bound_new_commands_are_refused_and_none_is_forgotten() -> None:
    story = Story("a").start(**asked("c0"))
    for i in range(1, MAX_REMEMBERED):
        story.release(**asked(f"c{i}"))
    before = story.execution
    assert len(story.workflow.remembered) == MAX_REMEMBERED

    story.terminate(**asked("one-more")).assert_untouched(before, says="are remembered already")
    assert story.answer.status == 429
    story.start(**asked("one-more-start")).assert_untouched(before, says="are remembered already")
    assert story.answer.status == 429
    story.start(**asked("c0")).assert_untouched(before, says="repeated command")
    assert story.answer.status == 200

    assert story.terminate().workflow.status is WorkflowStatus.TERMINATED, "without an id nothing is to be remembered"


def test_when_remembered_commands_expire_there_is_room_again() -> None:
    story = Story("a").start(**asked("c0"))
    for i in range(1, MAX_REMEMBERED):
        story.release(**asked(f"c{i}"))

    story.later(60_000).terminate(**asked("late", START_MS + 120_000))

    assert story.answer.status == 200
    assert [entry.command_id for entry in story.workflow.remembered] == ["late"]


def test_a_new_run_still_remembers_the_commands_of_the_old_one() -> None:
    story = Story("a").start(**asked("c1")).terminate(**asked("c2")).start(strategy=FAIL_ON_RUNNING, **asked("c3"))
    before = story.execution

    for command_id in ("c1", "c2", "c3"):
        story.start(**asked(command_id)).assert_untouched(before, says="repeated command")


@pytest.mark.parametrize("field", ["correlation_id", "created_by", "source"])
def test_labels_are_bounded(field: str) -> None:
    """They stand in every record of the workflow; one of 125 kB made a state outgrow its record."""
    decision = Story().start(**{field: "x" * 1_001})

    assert decision.execution is None
    assert "the 1000 characters that are allowed" in (decision.ignored or "")
