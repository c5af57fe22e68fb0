"""Reading workflow definitions: the tree of their tasks, checked as a whole.

``definitions.py`` says what a field may be; here is what the parts of a tree must be to each other. Every violation is
found at once, each with its path (``tasks[2].decisionCases.a[0].inputParameters``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from hashlib import blake2b
from itertools import pairwise
from typing import NamedTuple

import orjson

from broker_engine.decider import dependency_rules as dependencies
from broker_engine.decider.definitions import (
    COMPENSATION_FIELDS,
    MAX_TASKS,
    MAX_TREE_DEPTH,
    SYSTEM_RESPONSE_SECONDS,
    WORKFLOW_DEF_FIELDS,
    WORKFLOW_TASK_FIELDS,
    Parsed,
    name_violations,
    parse_json,
    parse_task_def,
    read_fields,
)
from broker_engine.decider.expressions import compile_path, parse, references
from broker_engine.decider.payload_schemas import schema_violations
from broker_engine.decider.task_types import SIMPLE, TASK_TYPES
from broker_engine.decider.task_types.scripts import EVALUATORS, VALUE_PARAM
from broker_engine.decider.task_types.workflows import PARAMETERS
from broker_engine.errors import BadRequest, Violation
from broker_engine.model.definitions import Json, Node, Steps, TaskDef, TimeoutPolicy, WorkflowDef, WorkflowTask, index

#: How a task in a loop is called: a reference of this form could be taken for one.
_ITERATION = re.compile(r"(.+?)(__\d+)+")


#: How many of the references that there are a violation lists.
KNOWN_SHOWN = 50


class _Found(NamedTuple):
    """A step of the document, wherever it stands."""

    path: str
    document: Mapping[str, Json]
    #: References of the loops around it.
    loops: tuple[Json, ...]
    #: What follows it in its list.
    following: Json


class _Reading:
    """One definition while it is read."""

    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self.warnings: list[str] = []
        self.found: list[_Found] = []

    def refuse(self, path: str, message: str, value: Json) -> None:
        self.violations.append(Violation(path=path, message=message, invalid_value=value))

    def steps(self, listed: Json, path: str, loops: tuple[Json, ...], depth: int) -> Steps:
        """A list of steps; those that are wrong are left out."""
        if not isinstance(listed, list):
            if listed is not None:
                self.refuse(path, "must be a list of tasks", listed)
            return ()
        if depth > MAX_TREE_DEPTH:
            self.refuse(path, f"stands in more than {MAX_TREE_DEPTH} operators: use a sub-workflow", None)
            return ()
        self.violations += dependencies.violations(listed, path)
        read = []
        for number, document in enumerate(listed):
            following = listed[number + 1] if number + 1 < len(listed) else None
            step = self.step(document, f"{path}[{number}]", loops, following, depth)
            if step is not None:
                read.append(step)
        return _with_joins_behind(read)

    def step(
        self, document: Json, path: str, loops: tuple[Json, ...], following: Json, depth: int
    ) -> WorkflowTask | None:
        if not isinstance(document, Mapping):
            self.refuse(path, "must be an object", document)
            return None
        self.found.append(_Found(path, document, loops, following))
        if len(self.found) > MAX_TASKS:
            if len(self.found) == MAX_TASKS + 1:
                self.refuse("tasks", f"must hold 1 to {MAX_TASKS} tasks, those inside operators included", None)
            return None
        before, dotted = len(self.violations), f"{path}."
        attributes = read_fields(document, WORKFLOW_TASK_FIELDS, dotted, self.violations, self.warnings)
        kind = self._check_type(document, attributes, dotted)
        self.violations += name_violations(attributes.get("name", ""), f"{dotted}name")
        attributes["definition"] = self._task_def(document, attributes, dotted)
        if document.get("asyncComplete"):
            self.refuse(f"{dotted}asyncComplete", "is not supported by this release: use a HUMAN task after it", True)
        attributes["compensation"] = self._compensation(document.get("compensation"), f"{dotted}compensation.")
        inside = (*loops, document.get("taskReferenceName")) if kind == "DO_WHILE" else loops
        attributes |= self._lists(document, dotted, inside, depth + 1)
        if len(self.violations) > before:
            return None
        return WorkflowTask(**{**attributes, **_translated(kind, document, attributes)})

    def _check_type(self, document: Mapping[str, Json], attributes: Mapping[str, Json], path: str) -> str:
        kind = str(attributes.get("type", SIMPLE))
        known = TASK_TYPES.get(kind)
        if known is not None:
            self.violations += known.check(document, path)
        elif kind != SIMPLE:
            supported = ", ".join([SIMPLE, *TASK_TYPES])
            self.refuse(f"{path}type", f"is not a task type of this release; supported: {supported}", kind)
        return kind

    def _task_def(self, document: Mapping[str, Json], attributes: Mapping[str, Json], path: str) -> TaskDef:
        """The embedded definition, or the one with all defaults (Conductor's ad-hoc definition)."""
        name = str(attributes.get("name", ""))
        embedded = document.get("taskDefinition")
        if isinstance(embedded, Mapping):
            parsed = parse_task_def({"name": attributes.get("name"), **embedded}, path=f"{path}taskDefinition.")
            self.violations.extend(parsed.violations)
            if parsed.value is not None:
                return parsed.value
        known = TASK_TYPES.get(attributes.get("type", SIMPLE))
        if known is None:
            return TaskDef(name=name)
        return TaskDef(
            name=name,
            retry_count=known.retries,
            retry_delay_seconds=1,
            response_timeout_seconds=SYSTEM_RESPONSE_SECONDS,
        )

    def _compensation(self, document: Json, path: str) -> str | None:
        """The task that undoes a step."""
        if not isinstance(document, Mapping):
            return None  # absent, or told about already
        found = read_fields(document, COMPENSATION_FIELDS, path, self.violations, self.warnings)
        self.violations += name_violations(found.get("name", ""), f"{path}task")
        return found.get("name")

    def _lists(self, document: Mapping[str, Json], path: str, loops: tuple[Json, ...], depth: int) -> dict[str, Json]:
        cases, branches = document.get("decisionCases"), document.get("forkTasks")
        return {
            "cases": {
                case: self.steps(listed, f"{path}decisionCases.{case}", loops, depth)
                for case, listed in (cases.items() if isinstance(cases, Mapping) else ())
            },
            "default_case": self.steps(document.get("defaultCase"), f"{path}defaultCase", loops, depth),
            "branches": tuple(
                self.steps(listed, f"{path}forkTasks[{number}]", loops, depth)
                for number, listed in enumerate(branches if isinstance(branches, list) else ())
            ),
            "body": self.steps(document.get("loopOver"), f"{path}loopOver", loops, depth),
        }

    # --- the tree as a whole

    def check_tree(self) -> list[str]:
        """References, what names them, and JOINs. Returns the references."""
        loops = self.check_names()
        for found in self.found:
            inputs = found.document.get("inputParameters") or {}
            self.violations += expression_violations(inputs, f"{found.path}.inputParameters", loops)
            self._check_join(found, loops)
        return list(loops)

    def check_names(self) -> dict[str, tuple[Json, ...]]:
        """References: each once, and none that could be taken for another. Returns the loops around each."""
        names = [found.document.get("taskReferenceName") for found in self.found]
        loops = {name: found.loops for name, found in zip(names, self.found, strict=True) if isinstance(name, str)}
        looped = {name for name, around in loops.items() if around}
        seen: set[str] = set()
        for found, name in zip(self.found, names, strict=True):
            path = f"{found.path}.taskReferenceName"
            if isinstance(name, str):
                if name in seen:
                    self.refuse(path, "is used twice", name)
                seen.add(name)
                match = _ITERATION.fullmatch(name)
                if match is not None and match.group(1) in looped:
                    self.refuse(path, f"could be taken for an iteration of {match.group(1)}: choose another", name)
            if name == "workflow":
                self.refuse(path, "is a reserved name", name)
        return loops

    def _check_join(self, found: _Found, loops: Mapping[str, tuple[Json, ...]]) -> None:
        kind = found.document.get("type")
        if kind in ("FORK_JOIN", "FORK_JOIN_DYNAMIC") and not (
            isinstance(found.following, Mapping) and found.following.get("type") == "JOIN"
        ):
            self.refuse(found.path, f"a {kind} must be followed by a JOIN", None)
        if kind not in ("JOIN", "EXCLUSIVE_JOIN"):
            return
        for field in ("joinOn", "defaultExclusiveJoinTask"):
            self._check_joined(found, field, found.document.get(field), loops)

    def _check_joined(self, found: _Found, field: str, join_on: Json, loops: Mapping[str, tuple[Json, ...]]) -> None:
        if not isinstance(join_on, list):
            return
        named: set[Json] = set()
        for number, reference in enumerate(join_on):
            path = f"{found.path}.{field}[{number}]"
            if reference not in loops:
                self.refuse(path, "names a task that this workflow does not have", reference)
            elif loops[reference] != found.loops:
                self.refuse(path, "names a task of another loop: a JOIN waits for tasks of its own", reference)
            elif reference in named:
                self.refuse(path, "is named twice", reference)
            named.add(reference if isinstance(reference, str) else None)


def _with_joins_behind(steps: list[WorkflowTask]) -> Steps:
    """In a list with dependencies, a fork's JOIN depends on its fork: it does not begin before that."""
    if any(step.depends_on for step in steps):
        for number, (fork, join) in enumerate(pairwise(steps), 1):
            if join.type == "JOIN" and not join.depends_on and fork.type in ("FORK_JOIN", "FORK_JOIN_DYNAMIC"):
                steps[number] = replace(join, depends_on=(fork.reference,))
    return tuple(steps)


def _translated(kind: str, document: Mapping[str, Json], attributes: Mapping[str, Json]) -> dict[str, Json]:
    """Older forms, as the newer ones have it."""
    if kind == "DECISION":
        if document.get("caseValueParam"):
            return {"evaluator": VALUE_PARAM, "expression": document["caseValueParam"]}
        return {"evaluator": EVALUATORS[0], "expression": document["caseExpression"]}
    if kind == "DO_WHILE" and document.get("items") is not None:
        inputs = attributes.get("input_parameters", {})
        return {"input_parameters": {**(inputs if isinstance(inputs, Mapping) else {}), "items": document["items"]}}
    if kind == "SUB_WORKFLOW":
        inputs, given = attributes.get("input_parameters", {}), document["subWorkflowParam"]
        names = {name: given[key] for key, name in PARAMETERS.items() if given.get(key) is not None}
        return {"input_parameters": {**(inputs if isinstance(inputs, Mapping) else {"workflowInput": inputs}), **names}}
    return {}


def parse_workflow_def(document: Mapping[str, Json]) -> Parsed[WorkflowDef]:
    """Check a workflow definition and read it.

    A task without ``taskDefinition`` gets one with all defaults (Conductor's ad-hoc definition); ``snapshot`` embeds
    the registered ones first.
    """
    reading = _Reading()
    attributes = read_fields(document, WORKFLOW_DEF_FIELDS, "", reading.violations, reading.warnings)
    if attributes.get("timeout_policy") is TimeoutPolicy.RETRY:
        message = f"must be one of {TimeoutPolicy.TIME_OUT_WF}, {TimeoutPolicy.ALERT_ONLY}: a workflow is not retried"
        reading.refuse("timeoutPolicy", message, "RETRY")
    reading.violations += schema_violations(attributes, "")
    listed = document.get("tasks")
    if isinstance(listed, list) and not listed:
        reading.refuse("tasks", f"must hold 1 to {MAX_TASKS} tasks", 0)
    tasks = reading.steps(listed if isinstance(listed, list) else None, "tasks", (), 0)
    names = reading.check_tree()
    reading.violations += expression_violations(document.get("outputParameters") or {}, "outputParameters", names)
    warnings = tuple(reading.warnings)
    if reading.violations:
        return Parsed(value=None, violations=tuple(reading.violations), warnings=warnings)
    nodes = dict(index(tasks))
    definition = WorkflowDef(
        **attributes,
        tasks=tasks,
        index=nodes,
        joins=joins_in(nodes),
        has_compensation=any(node.step.compensation is not None for node in nodes.values()),
        document=document,
    )
    return Parsed(value=definition, warnings=warnings)


def joins_in(nodes: Mapping[str, Node]) -> dict[str, tuple[str, ...]]:
    """What waits for the end of a step, by its reference: JOINs, and steps that depend on it."""
    joins: dict[str, list[str]] = {}
    for reference, node in nodes.items():
        step = node.step
        for joined in dict.fromkeys((*step.join_on, *step.join_default, *step.depends_on)):
            joins.setdefault(joined, []).append(reference)
    return {joined: tuple(waiting) for joined, waiting in joins.items()}


def parse_steps(documents: list[Json], path: str) -> Steps:
    """Read steps that stand in no definition: each for itself, one list each.

    Raises:
        BadRequest: with every violation.
    """
    reading = _Reading()
    steps = reading.steps(documents, path, (), 0)
    reading.check_names()
    if reading.violations:
        raise BadRequest(violations=tuple(reading.violations))
    return steps


def expression_violations(template: Json, path: str, names: Collection[Json]) -> list[Violation]:
    """What is wrong with the expressions of a template, each by the path of the text that it stands in."""
    found = []
    for at, text in _texts(template, path):
        for name in sorted(references(text)):
            if name not in names and name != "workflow":
                known = ", ".join(["workflow", *map(str, names)][:KNOWN_SHOWN])
                message = f"names a task that this workflow does not have; known: {known}"
                found.append(Violation(path=at, message=message, invalid_value=name))
        if (error := _bad_path(text)) is not None:
            found.append(Violation(path=at, message=f"is not a JSONPath: {error}", invalid_value=text))
    return found


def _texts(template: Json, path: str) -> Iterator[tuple[str, str]]:
    """Every text with an expression, with its place."""
    if isinstance(template, str):
        if "${" in template:
            yield path, template
    elif isinstance(template, Mapping):
        for key, value in template.items():
            yield from _texts(value, f"{path}.{key}")
    elif isinstance(template, list):
        for number, value in enumerate(template):
            yield from _texts(value, f"{path}[{number}]")


def _bad_path(text: str) -> str | None:
    for part in parse(text):
        if isinstance(part, str) or len(part.parts) != 1 or not isinstance(part.parts[0], str):
            continue
        try:
            compile_path(part.parts[0].strip() or "workflow")
        except ValueError as error:
            return str(error)
    return None


# --- snapshots


def snapshot(document: Mapping[str, Json], registered: Callable[[str], TaskDef | None]) -> WorkflowDef:
    """The definition as a workflow keeps it: task definitions embedded, named by content hash.

    An inline ``taskDefinition`` wins over the registered one.
    """
    return from_snapshot({**document, "tasks": with_definitions(document.get("tasks"), registered, 0)})


def with_definitions(listed: Json, registered: Callable[[str], TaskDef | None], depth: int = 0) -> Json:
    """Steps with their task definitions. What is malformed stays as it is: the check that follows names it."""
    if not isinstance(listed, list) or depth > MAX_TREE_DEPTH:
        return listed
    return [_with_definition(task, registered, depth) for task in listed]


def _with_definition(task: Json, registered: Callable[[str], TaskDef | None], depth: int) -> Json:
    if not isinstance(task, Mapping):
        return task
    changed = dict(task)
    for name in ("defaultCase", "loopOver"):
        if name in task:
            changed[name] = with_definitions(task[name], registered, depth + 1)
    if isinstance(cases := task.get("decisionCases"), Mapping):
        changed["decisionCases"] = {
            case: with_definitions(steps, registered, depth + 1) for case, steps in cases.items()
        }
    if isinstance(branches := task.get("forkTasks"), list):
        changed["forkTasks"] = [with_definitions(steps, registered, depth + 1) for steps in branches]
    task_type = task.get("name")
    has_own = task.get("taskDefinition") is not None or not isinstance(task_type, str)
    known = None if has_own else registered(str(task_type))
    if known is not None:
        changed["taskDefinition"] = dict(known.document)
    return changed


def inline_definition(document: bytes, registered: Callable[[str], TaskDef | None]) -> WorkflowDef:
    """The snapshot of a definition that a start brings with it.

    Raises:
        BadRequest: it is not valid; every violation is listed.
    """
    return snapshot(parse_json(document, what="the workflow definition"), registered)


def from_snapshot(document: Mapping[str, Json]) -> WorkflowDef:
    """Read a stored snapshot back."""
    data = orjson.dumps(document, option=orjson.OPT_SORT_KEYS)
    definition = parse_workflow_def(document).unwrap()
    return replace(definition, content_hash=blake2b(data, digest_size=16).hexdigest())


def single_task_workflow(task_type: str) -> Mapping[str, Json]:
    """The definition of a task that is submitted alone: one step that takes the whole input."""
    return {
        "name": task_type,
        "tasks": [
            {
                "name": task_type,
                "taskReferenceName": task_type,
                "inputParameters": "${workflow.input}",
            }
        ],
    }
