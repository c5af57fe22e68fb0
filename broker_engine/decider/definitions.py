"""Reading and checking definitions: every violation at once, each with its path, message and value.

``TASK_DEF_FIELDS``, ``WORKFLOW_TASK_FIELDS`` and ``WORKFLOW_DEF_FIELDS`` are the whole contract: one entry per JSON
field with its type, bounds and place in the model. Rules are Conductor's (constraints/TaskTimeoutConstraint and
the bean validations) with the decisions D18, D21 and D31.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

import orjson

from broker_engine.decider.payload_schemas import schema_violations
from broker_engine.errors import BadRequest, Violation
from broker_engine.model.definitions import (
    DEFAULT_RESPONSE_TIMEOUT_SECONDS,
    Json,
    LimitScope,
    OnWorkerLost,
    RetryLogic,
    TaskDef,
    TimeoutPolicy,
)
from broker_engine.model.names import MAX_ENCODED_NAME, encode_name

T = TypeVar("T")

#: D21: one guide says at most 10 retries; more is allowed with a warning, up to where it can only be a mistake.
USUAL_RETRIES = 10
MAX_RETRIES = 10_000
MAX_SECONDS = 2**31 - 1
#: A fork of a thousand branches is usual, with an operator or two in each. What bounds a definition is its snapshot: it
#: must fit into one record (some 100 bytes a task at least). This bounds the time to read it (0.1 s).
MAX_TASKS = 5_000
#: Operators inside operators.
MAX_TREE_DEPTH = 20
#: A worker of the engine's own that is silent this long has lost its task.
SYSTEM_RESPONSE_SECONDS = 60
#: orjson writes 254 levels; a snapshot wraps a definition into a few more, and inputs put values below its own.
MAX_DEPTH = 100
MAX_SECRET_NAME = 200
#: So many workers of one queue can work side by side; each partition costs the brokers.
MAX_QUEUE_PARTITIONS = 1_000
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed(Generic[T]):
    """A checked definition, or the reasons why there is none; warnings either way."""

    value: T | None
    violations: tuple[Violation, ...] = ()
    warnings: tuple[str, ...] = ()

    def unwrap(self) -> T:
        """The definition.

        Raises:
            BadRequest: with every violation.
        """
        if self.value is None:
            raise BadRequest(violations=self.violations)
        return self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The contract of one JSON field. ``attribute`` None: kept in the document, no meaning here (yet)."""

    kind: str
    attribute: str | None = None
    minimum: int | None = None
    maximum: int = MAX_SECONDS
    choices: type[StrEnum] | None = None
    is_required: bool = False


def _number(attribute: str | None = None, minimum: int | None = 0, maximum: int = MAX_SECONDS) -> Rule:
    return Rule(kind="integer", attribute=attribute, minimum=minimum, maximum=maximum)


_TEXT = Rule(kind="text")
_TEXTS = Rule(kind="texts")
_OBJECT = Rule(kind="object")
_FLAG = Rule(kind="boolean")
_LIST = Rule(kind="list")
#: Audit fields that servers set; accepted and overwritten.
AUDIT_FIELDS = {
    "createTime": _number(maximum=2**63),
    "updateTime": _number(maximum=2**63),
    "createdBy": _TEXT,
    "updatedBy": _TEXT,
    "ownerApp": _TEXT,
    "accessPolicy": _OBJECT,
}

TASK_DEF_FIELDS: Mapping[str, Rule] = {
    "name": Rule(kind="text", attribute="name", is_required=True),
    "description": Rule(kind="text", attribute="description"),
    "retryCount": _number("retry_count", maximum=MAX_RETRIES),
    "retryLogic": Rule(kind="choice", attribute="retry_logic", choices=RetryLogic),
    "retryDelaySeconds": _number("retry_delay_seconds"),
    "backoffScaleFactor": _number("backoff_scale_factor", minimum=1),
    "maxRetryDelaySeconds": _number("max_retry_delay_seconds"),
    "backoffJitterMs": _number("backoff_jitter_ms"),
    "timeoutSeconds": _number("timeout_seconds"),
    "responseTimeoutSeconds": _number("response_timeout_seconds", minimum=1),
    "pollTimeoutSeconds": _number("poll_timeout_seconds"),
    "totalTimeoutSeconds": _number("total_timeout_seconds"),
    "timeoutPolicy": Rule(kind="choice", attribute="timeout_policy", choices=TimeoutPolicy),
    "concurrentExecLimit": _number("concurrent_exec_limit", minimum=None),
    "rateLimitPerFrequency": _number("rate_limit_per_frequency", minimum=None),
    "rateLimitFrequencyInSeconds": _number("rate_limit_frequency_in_seconds", minimum=None),
    "inputKeys": Rule(kind="texts", attribute="input_keys"),
    "outputKeys": Rule(kind="texts", attribute="output_keys"),
    "inputTemplate": Rule(kind="object", attribute="input_template"),
    "ownerEmail": Rule(kind="text", attribute="owner_email"),
    "isolationGroupId": Rule(kind="text", attribute="isolation_group_id"),
    "executionNameSpace": Rule(kind="text", attribute="execution_name_space"),
    "runtimeMetadata": Rule(kind="texts", attribute="runtime_metadata"),
    "inputSchema": Rule(kind="object", attribute="input_schema"),
    "outputSchema": Rule(kind="object", attribute="output_schema"),
    "enforceSchema": Rule(kind="boolean", attribute="enforce_schema"),
    "retryableErrors": Rule(kind="texts", attribute="retryable_errors"),
    "fatalErrors": Rule(kind="texts", attribute="fatal_errors"),
    "limitScope": Rule(kind="choice", attribute="limit_scope", choices=LimitScope),
    "resourceLock": Rule(kind="text", attribute="resource_lock"),
    "onWorkerLost": Rule(kind="choice", attribute="on_worker_lost", choices=OnWorkerLost),
    "queuePartitions": _number("queue_partitions", minimum=1, maximum=MAX_QUEUE_PARTITIONS),
    "sharedQueue": Rule(kind="boolean", attribute="shared_queue"),
    "baseType": _TEXT,
    "taskStatusListenerEnabled": _FLAG,
    **AUDIT_FIELDS,
}

#: What undoes a step.
COMPENSATION_FIELDS: Mapping[str, Rule] = {"task": Rule(kind="text", attribute="name", is_required=True)}

WORKFLOW_TASK_FIELDS: Mapping[str, Rule] = {
    "name": Rule(kind="text", attribute="name", is_required=True),
    "taskReferenceName": Rule(kind="text", attribute="reference", is_required=True),
    "type": Rule(kind="text", attribute="type"),
    "description": _TEXT,
    "inputParameters": Rule(kind="template", attribute="input_parameters"),
    "optional": Rule(kind="boolean", attribute="optional"),
    "permissive": Rule(kind="boolean", attribute="permissive"),
    "startDelay": _number("start_delay_seconds"),
    "retryCount": _number("retry_count", maximum=MAX_RETRIES),
    "taskDefinition": _OBJECT,
    "metadata": _OBJECT,
    "evaluatorType": Rule(kind="text", attribute="evaluator"),
    "expression": Rule(kind="text", attribute="expression"),
    "decisionCases": _OBJECT,
    "defaultCase": _LIST,
    "caseValueParam": _TEXT,
    "caseExpression": _TEXT,
    "forkTasks": _LIST,
    "dependsOn": Rule(kind="texts", attribute="depends_on"),
    "compensation": _OBJECT,
    "joinOn": Rule(kind="texts", attribute="join_on"),
    "joinMode": _TEXT,
    "joinStatus": _TEXT,
    "loopOver": _LIST,
    "loopCondition": Rule(kind="text", attribute="loop_condition"),
    "items": Rule(kind="any"),
    "sink": Rule(kind="text", attribute="sink"),
    "scriptExpression": Rule(kind="text", attribute="script"),
    "asyncComplete": _FLAG,
    "rateLimited": _FLAG,
    "cacheConfig": _OBJECT,
    "onStateChange": _OBJECT,
    "dynamicTaskNameParam": Rule(kind="text", attribute="dynamic_name"),
    "dynamicForkJoinTasksParam": _TEXT,
    "dynamicForkTasksParam": Rule(kind="text", attribute="fork_tasks"),
    "dynamicForkTasksInputParamName": Rule(kind="text", attribute="fork_inputs"),
    "subWorkflowParam": _OBJECT,
    "defaultExclusiveJoinTask": Rule(kind="texts", attribute="join_default"),
    "workflowTaskType": _TEXT,
}

WORKFLOW_DEF_FIELDS: Mapping[str, Rule] = {
    "name": Rule(kind="text", attribute="name", is_required=True),
    "version": _number("version", minimum=1),
    "description": _TEXT,
    "tasks": Rule(kind="list", is_required=True),
    "inputParameters": _TEXTS,
    "outputParameters": Rule(kind="object", attribute="output_parameters"),
    "inputTemplate": Rule(kind="object", attribute="input_template"),
    "variables": Rule(kind="object", attribute="variables"),
    "schemaVersion": _number(minimum=2, maximum=2),
    "restartable": _FLAG,
    "ownerEmail": _TEXT,
    "timeoutPolicy": Rule(kind="choice", attribute="timeout_policy", choices=TimeoutPolicy),
    "timeoutSeconds": _number("timeout_seconds"),
    "workflowStatusListenerEnabled": _FLAG,
    "metadata": _OBJECT,
    "inputSchema": Rule(kind="object", attribute="input_schema"),
    "outputSchema": _OBJECT,
    "failureWorkflow": Rule(kind="text", attribute="failure_workflow"),
    "failureWorkflowVersion": _number("failure_workflow_version", minimum=1),
    "enforceSchema": Rule(kind="boolean", attribute="enforce_schema"),
    **AUDIT_FIELDS,
}

_KINDS: Mapping[str, tuple[Callable[[Json], bool], str]] = {
    "text": (lambda v: isinstance(v, str), "must be a text"),
    "integer": (lambda v: isinstance(v, int) and not isinstance(v, bool), "must be a whole number"),
    "boolean": (lambda v: isinstance(v, bool), "must be true or false"),
    "object": (lambda v: isinstance(v, Mapping), "must be an object"),
    "list": (lambda v: isinstance(v, list), "must be a list"),
    "template": (
        lambda v: isinstance(v, Mapping) or (isinstance(v, str) and v.startswith("${")),
        "must be an object, or one ${...} that gives one",
    ),
    "texts": (
        lambda v: isinstance(v, list) and all(isinstance(t, str) for t in v),
        "must be a list of texts",
    ),
    "choice": (lambda v: isinstance(v, str), "must be a text"),
    "any": (lambda _: True, ""),
}


def read_fields(
    document: Mapping[str, Json],
    rules: Mapping[str, Rule],
    path: str,
    violations: list[Violation],
    warnings: list[str],
) -> dict[str, Json]:
    """Check a JSON object against its rules; returns the attributes that may be passed to the model. null = absent."""
    attributes: dict[str, Json] = {}
    warnings.extend(f"{path}{name}: unknown field, kept but without effect" for name in document if name not in rules)
    for name, rule in rules.items():
        value = document.get(name)
        if value is None:
            if rule.is_required:
                violations.append(Violation(path=path + name, message="is required", invalid_value=value))
            continue
        problem = _problem(value, rule)
        if problem is not None:
            violations.append(Violation(path=path + name, message=problem, invalid_value=value))
        elif rule.attribute is not None:
            attributes[rule.attribute] = _coerce(value, rule)
    return attributes


def _problem(value: Json, rule: Rule) -> str | None:
    is_kind, message = _KINDS[rule.kind]
    if not is_kind(value):
        return message
    if rule.kind == "integer":
        if rule.minimum is not None and value < rule.minimum:
            return f"must be at least {rule.minimum}"
        if value > rule.maximum:
            return f"must be at most {rule.maximum}"
    if rule.choices is not None and value not in tuple(rule.choices):
        return f"must be one of {', '.join(rule.choices)}"
    if rule.is_required and rule.kind == "text" and not value.strip():
        return "must not be empty"
    return None


def _coerce(value: Json, rule: Rule) -> Json:
    if rule.choices is not None:
        return rule.choices(value)
    return tuple(value) if rule.kind == "texts" else value


def parse_json(data: bytes, *, what: str) -> Mapping[str, Json]:
    """A JSON object from bytes.

    Raises:
        BadRequest: not JSON, not an object, or nested too deeply.
    """
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"{what} is not valid JSON: {error}") from error
    if not isinstance(document, Mapping):
        raise BadRequest(f"{what} must be a JSON object, not {type(document).__name__}")
    if is_too_deep(document, data):
        raise BadRequest(f"{what} is nested more than {MAX_DEPTH} levels deep")
    return document


def is_too_deep(document: Json, data: bytes) -> bool:
    """Whether JSON is nested deeper than may be put together with more of it and written again."""
    if data.count(b"{") + data.count(b"[") <= MAX_DEPTH:
        return False
    level = [document]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for parent in level
            if isinstance(parent, Mapping | list)
            for child in (parent.values() if isinstance(parent, Mapping) else parent)
        ]
    return any(isinstance(value, Mapping | list) for value in level)


def parse_task_def(document: Mapping[str, Json], *, path: str = "") -> Parsed[TaskDef]:
    """Check a task definition and read it."""
    violations: list[Violation] = []
    warnings: list[str] = []
    attributes = read_fields(document, TASK_DEF_FIELDS, path, violations, warnings)
    name = attributes.get("name", "?")
    timeout = attributes.get("timeout_seconds", 0)
    response = attributes.get("response_timeout_seconds", DEFAULT_RESPONSE_TIMEOUT_SECONDS)
    total = attributes.get("total_timeout_seconds", 0)
    is_response_bad = any(violation.path == f"{path}responseTimeoutSeconds" for violation in violations)
    if timeout > 0 and response > timeout and not is_response_bad:
        violations.append(
            Violation(
                path=f"{path}responseTimeoutSeconds",
                message=f"of task {name} must be at most timeoutSeconds ({timeout}): lower it or raise timeoutSeconds",
                invalid_value=response,
            )
        )
    if timeout > 0 and total > 0 and timeout > total:
        violations.append(
            Violation(
                path=f"{path}timeoutSeconds",
                message=f"of task {name} must be at most totalTimeoutSeconds ({total})",
                invalid_value=timeout,
            )
        )
    if not path:  # an embedded definition has the name of its step
        violations += name_violations(name, "name")
    violations += schema_violations(attributes, path)
    for code in sorted({*attributes.get("retryable_errors", ())} & {*attributes.get("fatal_errors", ())}):
        message = "is also one of retryableErrors: an error code is one or the other"
        violations.append(Violation(path=f"{path}fatalErrors", message=message, invalid_value=code))
    for secret in attributes.get("runtime_metadata", ()):
        if not 1 <= len(secret) <= MAX_SECRET_NAME or "," in secret:
            message = f"must hold names of 1 to {MAX_SECRET_NAME} characters without commas"
            violations.append(Violation(path=f"{path}runtimeMetadata", message=message, invalid_value=secret))
    if attributes.get("shared_queue") and attributes.get("queue_partitions"):
        warnings.append(f"{path}queuePartitions: has no effect on a shared queue")
    email = attributes.get("owner_email")
    if email is not None and not _EMAIL.fullmatch(email):
        violations.append(Violation(path=f"{path}ownerEmail", message="must be an e-mail address", invalid_value=email))
    if email is None:
        warnings.append(f"{path}ownerEmail: not set; nobody can be asked about {name}")
    if attributes.get("retry_count", 0) > USUAL_RETRIES:
        warnings.append(f"{path}retryCount: more than {USUAL_RETRIES} retries is unusual")
    if violations:
        return Parsed(value=None, violations=tuple(violations), warnings=tuple(warnings))
    return Parsed(value=TaskDef(**attributes, document=document), warnings=tuple(warnings))


def name_violations(name: str, path: str) -> list[Violation]:
    """A task's name becomes a part of its queue's topic name, which Kafka limits."""
    encoded = encode_name(name)
    if len(encoded) <= MAX_ENCODED_NAME:
        return []
    message = f"is too long for a topic name (spelled {encoded}); {MAX_ENCODED_NAME} characters fit"
    return [Violation(path=path, message=message, invalid_value=name)]
