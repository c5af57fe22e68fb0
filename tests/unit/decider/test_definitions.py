"""What a definition may say: every rule, every violation at once, and what it becomes."""

from typing import Any

import orjson
import pytest

from broker_engine.decider.definition_tree import from_snapshot, parse_workflow_def, single_task_workflow, snapshot
from broker_engine.decider.definitions import (
    MAX_DEPTH,
    MAX_RETRIES,
    MAX_SECONDS,
    MAX_TASKS,
    TASK_DEF_FIELDS,
    WORKFLOW_DEF_FIELDS,
    WORKFLOW_TASK_FIELDS,
    Rule,
    parse_json,
    parse_task_def,
)
from broker_engine.errors import BadRequest
from broker_engine.model.definitions import RetryLogic, TaskDef, TimeoutPolicy
from tests.builders import Definitions

TASK = {"name": "encode", "ownerEmail": "team@example.com"}
STEP = {"name": "encode", "taskReferenceName": "a"}
FILM = {"name": "film", "tasks": [STEP]}

#: A value of the wrong type for each kind of field, and one of the right type.
WRONG: dict[str, Any] = {
    "text": 5,
    "integer": "5",
    "boolean": "true",
    "object": [],
    "list": {},
    "template": "plain",
    "texts": ["x", 5],
    "choice": 5,
}


def task_violations(**fields: Any) -> dict[str, str]:
    """Path and message of each violation of a task definition."""
    return {violation.path: violation.message for violation in parse_task_def({**TASK, **fields}).violations}


def workflow_violations(**fields: Any) -> dict[str, str]:
    return {violation.path: violation.message for violation in parse_workflow_def({**FILM, **fields}).violations}


def step_violations(**fields: Any) -> dict[str, str]:
    return workflow_violations(tasks=[{**STEP, **fields}])


def bounds(fields: dict[str, Rule]) -> list[tuple[str, int, bool]]:
    """(field, value, is allowed) on both sides of each bound."""
    found = []
    for name, rule in fields.items():
        if rule.kind == "integer":
            found += [(name, rule.maximum, True), (name, rule.maximum + 1, False)]
            if rule.minimum is not None:
                found += [(name, rule.minimum, True), (name, rule.minimum - 1, False)]
    return found


# --- fields ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TASK_DEF_FIELDS)
def test_each_field_of_a_task_definition_has_its_type(name: str) -> None:
    assert name in task_violations(**{name: WRONG[TASK_DEF_FIELDS[name].kind]})
    if TASK_DEF_FIELDS[name].kind == "integer":
        assert task_violations(**{name: True})[name] == task_violations(**{name: 1.5})[name] == "must be a whole number"


@pytest.mark.parametrize("name", WORKFLOW_DEF_FIELDS)
def test_each_field_of_a_workflow_definition_has_its_type(name: str) -> None:
    assert name in workflow_violations(**{name: WRONG[WORKFLOW_DEF_FIELDS[name].kind]})


@pytest.mark.parametrize("name", [name for name, rule in WORKFLOW_TASK_FIELDS.items() if rule.kind != "any"])
def test_each_field_of_a_step_has_its_type(name: str) -> None:
    assert f"tasks[0].{name}" in step_violations(**{name: WRONG[WORKFLOW_TASK_FIELDS[name].kind]})


@pytest.mark.parametrize(("name", "value", "allowed"), bounds(dict(TASK_DEF_FIELDS)))
def test_each_number_of_a_task_definition_has_its_bounds(name: str, value: int, allowed: bool) -> None:
    # Long enough limits on the other side, so that only the field itself is judged.
    others = {"responseTimeoutSeconds": 1} if name != "responseTimeoutSeconds" else {}

    message = task_violations(**{**others, name: value}).get(name, "")

    assert message.startswith("must be at ") != allowed, message


@pytest.mark.parametrize(("name", "value", "allowed"), bounds(dict(WORKFLOW_DEF_FIELDS)))
def test_each_number_of_a_workflow_definition_has_its_bounds(name: str, value: int, allowed: bool) -> None:
    assert (name not in workflow_violations(**{name: value})) == allowed


@pytest.mark.parametrize(("name", "value", "allowed"), bounds(dict(WORKFLOW_TASK_FIELDS)))
def test_each_number_of_a_step_has_its_bounds(name: str, value: int, allowed: bool) -> None:
    assert (f"tasks[0].{name}" not in step_violations(**{name: value})) == allowed


@pytest.mark.parametrize("name", ["retryLogic", "timeoutPolicy"])
def test_a_choice_names_what_is_allowed(name: str) -> None:
    choices = TASK_DEF_FIELDS[name].choices
    assert choices is not None

    assert task_violations(**{name: "SOMETIMES"})[name] == f"must be one of {', '.join(choices)}"
    assert [choice for choice in choices if task_violations(**{name: choice})] == []


@pytest.mark.parametrize("policy", TimeoutPolicy)
def test_a_workflow_times_out_or_alerts_but_is_not_retried(policy: TimeoutPolicy) -> None:
    message = workflow_violations(timeoutPolicy=policy.value).get("timeoutPolicy", "")

    assert bool(message) == (policy is TimeoutPolicy.RETRY)
    assert not message or "TIME_OUT_WF, ALERT_ONLY" in message


@pytest.mark.parametrize("name", [None, "", "  "])
def test_names_are_required(name: str | None) -> None:
    assert task_violations(name=name)["name"] in ("is required", "must not be empty")
    assert "name" in workflow_violations(name=name)
    assert set(step_violations(name=name, taskReferenceName=name)) == {"tasks[0].name", "tasks[0].taskReferenceName"}


@pytest.mark.parametrize("name", ["a:b", "a@b-c", "ümlaut", "a.b_c", "with space", "日本"])
def test_any_printable_name_is_a_name(name: str) -> None:
    """D23."""
    assert task_violations(name=name) == {}


def test_null_is_absent() -> None:
    parsed = parse_task_def({**TASK, "retryCount": None, "pollTimeoutSeconds": None, "timeoutPolicy": None})

    assert parsed.value == TaskDef(name="encode", owner_email="team@example.com")


def test_the_defaults_are_conductors() -> None:
    definition = parse_task_def({"name": "encode"}).unwrap()

    assert (definition.retry_count, definition.retry_logic, definition.retry_delay_seconds) == (3, RetryLogic.FIXED, 60)
    assert (definition.backoff_scale_factor, definition.max_retry_delay_seconds, definition.backoff_jitter_ms) == (
        1,
        0,
        0,
    )
    assert (definition.timeout_seconds, definition.response_timeout_seconds) == (0, 3600), "D22"
    assert (definition.poll_timeout_seconds, definition.total_timeout_seconds) == (0, 0)
    assert definition.timeout_policy is TimeoutPolicy.TIME_OUT_WF
    assert parse_workflow_def(FILM).unwrap().timeout_policy is TimeoutPolicy.ALERT_ONLY
    assert parse_workflow_def(FILM).unwrap().version == 1


def test_every_field_arrives_in_the_model() -> None:
    document = {
        "name": "encode",
        "description": "encodes",
        "retryCount": 5,
        "retryLogic": "EXPONENTIAL_BACKOFF",
        "retryDelaySeconds": 7,
        "backoffScaleFactor": 2,
        "maxRetryDelaySeconds": 90,
        "backoffJitterMs": 100,
        "timeoutSeconds": 500,
        "responseTimeoutSeconds": 400,
        "pollTimeoutSeconds": 60,
        "totalTimeoutSeconds": 900,
        "timeoutPolicy": "RETRY",
        "concurrentExecLimit": 3,
        "rateLimitPerFrequency": 12,
        "rateLimitFrequencyInSeconds": 5,
        "inputKeys": ["i"],
        "outputKeys": ["o"],
        "inputTemplate": {"i": 1},
        "ownerEmail": "team@example.com",
        "isolationGroupId": "g",
        "executionNameSpace": "n",
        "runtimeMetadata": ["TOKEN"],
        "inputSchema": {"type": "object"},
        "outputSchema": {"type": "object"},
        "enforceSchema": True,
        "retryableErrors": ["HTTP_503"],
        "fatalErrors": ["HTTP_400"],
        "limitScope": "TYPE_AND_DOMAIN",
        "resourceLock": "${workflow.input.file}",
        "onWorkerLost": "WAIT",
        "queuePartitions": 4,
        "sharedQueue": True,
    }
    definition = parse_task_def(document).unwrap()

    assert definition.document == document
    for name, rule in TASK_DEF_FIELDS.items():
        if rule.attribute is not None:
            value = getattr(definition, rule.attribute)
            assert (list(value) if isinstance(value, tuple) else value) == document[name]


# --- rules across fields --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "paths"),
    [
        ({"responseTimeoutSeconds": 61, "timeoutSeconds": 60}, {"responseTimeoutSeconds"}),
        ({"responseTimeoutSeconds": 60, "timeoutSeconds": 60}, set()),
        ({"timeoutSeconds": 60}, {"responseTimeoutSeconds"}),  # 3600 by default
        ({"responseTimeoutSeconds": 10, "timeoutSeconds": 61, "totalTimeoutSeconds": 60}, {"timeoutSeconds"}),
        ({"responseTimeoutSeconds": 10, "timeoutSeconds": 60, "totalTimeoutSeconds": 60}, set()),
        (
            {"responseTimeoutSeconds": 3600, "timeoutSeconds": 1200, "totalTimeoutSeconds": 600},
            {"responseTimeoutSeconds", "timeoutSeconds"},
        ),
        ({"responseTimeoutSeconds": 3600, "totalTimeoutSeconds": 60}, set()),
        ({"pollTimeoutSeconds": 3600, "totalTimeoutSeconds": 60}, set()),
        ({"retryDelaySeconds": 3600, "totalTimeoutSeconds": 60}, set()),
    ],
)
def test_timeouts_fit_into_each_other(fields: dict[str, int], paths: set[str]) -> None:
    assert set(task_violations(**fields)) == paths


def test_a_cross_check_is_not_made_with_a_value_that_is_wrong_already() -> None:
    violations = parse_task_def({**TASK, "timeoutSeconds": 60, "responseTimeoutSeconds": 0}).violations

    assert [(violation.path, violation.invalid_value) for violation in violations] == [("responseTimeoutSeconds", 0)]


def test_all_violations_are_listed_with_path_message_and_value() -> None:
    parsed = parse_task_def({"name": "", "retryCount": -1, "retryLogic": "X", "ownerEmail": "nobody", "inputKeys": "k"})

    assert parsed.value is None
    assert [(v.path, v.invalid_value) for v in parsed.violations] == [
        ("name", ""),
        ("retryCount", -1),
        ("retryLogic", "X"),
        ("inputKeys", "k"),
        ("ownerEmail", "nobody"),
    ]
    with pytest.raises(BadRequest) as refused:
        parsed.unwrap()
    assert refused.value.violations == parsed.violations
    assert "retryCount: must be at least 0 (got -1)" in str(refused.value)


@pytest.mark.parametrize("email", ["nobody", "a@b", "a b@c.de", "@c.de", ""])
def test_an_owner_is_an_email_address_when_there_is_one(email: str) -> None:
    """D31."""
    assert "ownerEmail" in task_violations(ownerEmail=email)


# --- warnings -------------------------------------------------------------------------------------


def test_unknown_fields_are_kept_and_warned_about() -> None:
    """D18."""
    parsed = parse_task_def({**TASK, "retires": 3})
    assert parsed.unwrap().document["retires"] == 3
    assert parsed.warnings == ("retires: unknown field, kept but without effect",)

    workflow = parse_workflow_def({**FILM, "nmae": "x", "tasks": [{**STEP, "optinal": True}]})
    assert set(workflow.warnings) == {
        "nmae: unknown field, kept but without effect",
        "tasks[0].optinal: unknown field, kept but without effect",
    }


def test_a_definition_without_owner_is_warned_about() -> None:
    """D31."""
    assert [w.split(":")[0] for w in parse_task_def({"name": "encode"}).warnings] == ["ownerEmail"]
    assert parse_task_def(TASK).warnings == ()


@pytest.mark.parametrize(
    ("retries", "warned", "refused"),
    [(10, False, False), (11, True, False), (MAX_RETRIES, True, False), (MAX_RETRIES + 1, False, True)],
)
def test_many_retries_are_unusual_and_very_many_are_a_mistake(retries: int, warned: bool, refused: bool) -> None:
    """D21."""
    parsed = parse_task_def({**TASK, "retryCount": retries})

    assert any(warning.startswith("retryCount") for warning in parsed.warnings) == warned
    assert bool(parsed.violations) == refused


# --- workflow definitions -------------------------------------------------------------------------


@pytest.mark.parametrize("tasks", [[], [STEP] * (MAX_TASKS + 1)], ids=["none", "too many"])
def test_a_workflow_has_at_least_one_task_and_not_too_many(tasks: list[Any]) -> None:
    assert workflow_violations(tasks=tasks)["tasks"].startswith(f"must hold 1 to {MAX_TASKS} tasks")


def test_paths_lead_to_the_step() -> None:
    tasks = [STEP, 5, {"name": "x"}, {**STEP, "type": "SIMPEL"}, {**STEP, "taskReferenceName": "workflow"}]

    found = workflow_violations(tasks=tasks)

    assert found["tasks[1]"] == "must be an object"
    assert found["tasks[2].taskReferenceName"] == "is required"
    assert found["tasks[3].type"].startswith("is not a task type of this release; supported: SIMPLE, SWITCH, ")
    assert found["tasks[3].taskReferenceName"] == "is used twice"
    assert found["tasks[4].taskReferenceName"] == "is a reserved name"


def test_an_embedded_definition_is_checked_in_its_place() -> None:
    found = step_violations(taskDefinition={"retryCount": -1, "timeoutSeconds": 60})

    assert set(found) == {"tasks[0].taskDefinition.retryCount", "tasks[0].taskDefinition.responseTimeoutSeconds"}


def test_expressions_name_tasks_of_the_workflow() -> None:
    parameters = {"x": ["${b.output.x}"], "y": "${a.output}", "z": "${workflow.input.z}", "n": 5}
    step = {**STEP, "inputParameters": parameters}

    found = parse_workflow_def({**FILM, "tasks": [step], "outputParameters": {"o": "${c.output}"}}).violations

    assert [(v.path, v.invalid_value) for v in found] == [
        ("tasks[0].inputParameters.x[0]", "b"),
        ("outputParameters.o", "c"),
    ]
    assert "known: workflow, a" in found[0].message


def test_expressions_are_json_paths() -> None:
    found = step_violations(inputParameters={"x": "${workflow.input.}"})

    assert found["tasks[0].inputParameters.x"].startswith("is not a JSONPath")


def test_a_step_overrides_the_retries_of_its_definition() -> None:
    step = {**STEP, "retryCount": 0, "taskDefinition": {"retryCount": 5}, "optional": True, "startDelay": 3}

    (task,) = parse_workflow_def({**FILM, "tasks": [step]}).unwrap().tasks

    assert (task.retry_limit, task.definition.retry_count, task.optional, task.start_delay_seconds) == (0, 5, True, 3)
    assert task.definition.name == "encode"


def test_a_step_without_definition_gets_all_defaults() -> None:
    """Conductor's ad-hoc definition: a name that nobody registered does not fail a start."""
    (task,) = parse_workflow_def(FILM).unwrap().tasks

    assert task.definition == TaskDef(name="encode")
    assert (task.type, task.retry_limit) == ("SIMPLE", 3)


# --- snapshots ------------------------------------------------------------------------------------


def test_a_snapshot_embeds_the_registered_definitions() -> None:
    registered = Definitions.of(parse_task_def({**TASK, "retryCount": 1}).unwrap())

    taken = snapshot(FILM, registered.task_def)

    assert taken.tasks[0].definition.retry_count == 1
    assert taken == from_snapshot(taken.document)
    assert taken.content_hash == from_snapshot(taken.document).content_hash


def test_an_inline_definition_wins_over_a_registered_one() -> None:
    registered = Definitions.of(parse_task_def({**TASK, "retryCount": 1}).unwrap())
    step = {**STEP, "taskDefinition": {"retryCount": 2}}

    assert snapshot({**FILM, "tasks": [step]}, registered.task_def).tasks[0].definition.retry_count == 2


def test_the_content_hash_names_the_content() -> None:
    def taken(retries: int) -> str:
        registered = Definitions.of(parse_task_def({**TASK, "retryCount": retries}).unwrap())
        return snapshot(FILM, registered.task_def).content_hash

    assert taken(1) == taken(1)
    assert taken(1) != taken(2)
    assert from_snapshot({"tasks": [STEP], "name": "film"}).content_hash == from_snapshot(FILM).content_hash


@pytest.mark.parametrize("document", [{}, {"name": "film"}, {"tasks": 5}, {"tasks": [5, {}, {"name": []}]}])
def test_a_malformed_document_gives_violations_not_a_crash(document: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        snapshot(document, Definitions().task_def)


def test_a_task_submitted_alone_takes_the_whole_input() -> None:
    (task,) = from_snapshot(single_task_workflow("encode")).tasks

    assert (task.name, task.reference, task.input_parameters) == ("encode", "encode", "${workflow.input}")


# --- JSON -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"{", "it is not valid JSON"),
        (b"\xff", "it is not valid JSON"),
        (b"", "it is not valid JSON"),
        (b"[]", "it must be a JSON object, not list"),
        (b"null", "it must be a JSON object, not NoneType"),
        (b'{"x": ' + b"[" * 500 + b"]" * 500 + b"}", f"it is nested more than {MAX_DEPTH} levels deep"),
    ],
)
def test_only_a_json_object_is_a_document(data: bytes, says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        parse_json(data, what="it")


def test_a_document_may_be_nested_to_the_limit() -> None:
    depth = MAX_DEPTH - 1
    data = b'{"x": ' + b"[" * depth + b"]" * depth + b"}"

    assert orjson.dumps(parse_json(data, what="it")) == data.replace(b" ", b"")
    with pytest.raises(BadRequest, match="nested"):
        parse_json(b'{"x": ' + data + b"}", what="it")


def test_numbers_are_bounded_where_java_saturates() -> None:
    assert MAX_SECONDS == 2**31 - 1


@pytest.mark.parametrize(
    ("name", "fits"), [("x" * 118, True), ("x" * 119, False), ("日" * 13, True), ("日" * 14, False)]
)
def test_a_task_name_fits_into_a_topic_name(name: str, fits: bool) -> None:
    """Three bytes of UTF-8 take nine characters."""
    assert (task_violations(name=name) == {}) == fits
    assert (step_violations(name=name) == {}) == fits
    assert fits or set(step_violations(name=name)) == {"tasks[0].name"}
