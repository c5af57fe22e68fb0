"""Steps that a workflow gets while it runs: those of a FORK_JOIN_DYNAMIC, and what a DYNAMIC step turns out to be.

They are no part of the definition. They are stored once, in the row of the task that brings them
(``TaskState.definition``), with their task definitions as registered then; ``extended`` makes the definition that an
execution runs by out of its own and those rows, and so it does when the execution is rebuilt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import orjson

from broker_engine.decider.definition_tree import joins_in, parse_steps, with_definitions
from broker_engine.decider.definitions import parse_task_def
from broker_engine.decider.draft import Draft
from broker_engine.decider.task_types.base import Begun, How
from broker_engine.errors import BadRequest
from broker_engine.model.definitions import Dynamic, Node, Steps, TaskDef, WorkflowDef, WorkflowTask, index
from broker_engine.model.state import Execution, TaskState, evolve
from broker_engine.model.status import ReasonCode

#: What has to be followed by another step, which a task of a dynamic fork never is.
NEEDS_A_JOIN = ("FORK_JOIN", "FORK_JOIN_DYNAMIC", "JOIN", "EXCLUSIVE_JOIN")


#: What stored tasks are called where something is wrong with them.
_STORED = "forkedTasks"


# --- FORK_JOIN_DYNAMIC


def forked(draft: Draft, task: TaskState, step: WorkflowTask, begun: Begun) -> tuple[TaskState, Begun]:
    """The task of a fork with what it forks, checked; failed with the field and what to do, when that cannot run."""
    assert begun.forks is not None
    documents = [one.document for one in begun.forks]
    defined = with_definitions(documents, draft.context.definitions.task_def)
    stored = orjson.dumps([{"task": d, "input": one.given} for d, one in zip(defined, begun.forks, strict=True)])
    problem = _size_problem(stored, draft.context.max_payload_bytes)
    problem = problem or _problem(draft.execution, task, step, stored, begun.field)
    if problem is not None:
        return task, Begun(How.FAILED, reason=problem, code=ReasonCode.TERMINAL_ERROR)
    data = orjson.loads(task.input)
    kept = {name: value for name, value in data.items() if name not in begun.taken}
    return evolve(task, definition=stored, input=orjson.dumps(kept)), begun


def _size_problem(stored: bytes, limit: int) -> str | None:
    if len(stored) <= limit:
        return None
    return f"the forked tasks have {len(stored)} bytes, the limit is {limit}: give them references instead of data"


def _problem(execution: Execution, task: TaskState, step: WorkflowTask, stored: bytes, field: str) -> str | None:
    try:
        steps = compiled(stored)
    except BadRequest as error:
        return str(error).replace(f"{_STORED}[", f"{field}[")
    suffix = task.reference.removeprefix(step.reference)
    for number, forked_step in enumerate(steps):
        for name, _ in index((forked_step,)):
            if name in execution.definition.index or name + suffix in execution.tasks:
                return f"{field}[{number}].taskReferenceName {name!r} is used already in this workflow: choose another"
        if forked_step.depends_on:
            return f"{field}[{number}].dependsOn: forked tasks begin together: fork a SUB_WORKFLOW whose tasks depend"
        if forked_step.type in NEEDS_A_JOIN:
            return f"{field}[{number}].type {forked_step.type} cannot be forked by itself: use a SUB_WORKFLOW"
    return None


@lru_cache(maxsize=256)
def compiled(stored: bytes) -> Steps:
    """The steps in a fork's row.

    Raises:
        BadRequest: they are no steps.
    """
    found = orjson.loads(stored)
    steps = parse_steps([_whole(one["task"], one["input"]) for one in found], _STORED)
    return tuple(_given(step, one["input"]) for step, one in zip(steps, found, strict=True))


def _whole(document: Mapping[str, Any], given: Mapping[str, Any]) -> Mapping[str, Any]:
    """A task with all of its input, as it is checked."""
    own = document.get("inputParameters")
    return {**document, "inputParameters": {**own, **given} if isinstance(own, Mapping) else dict(given)}


def _given(step: WorkflowTask, given: Mapping[str, Any]) -> WorkflowTask:
    """A step whose given input is taken as it is: what is resolved already is not resolved again."""
    own = step.input_parameters
    if isinstance(own, Mapping):
        own = {name: value for name, value in own.items() if name not in given}
    return replace(step, input_parameters=own, given=given)


# --- DYNAMIC


def resolved(draft: Draft, step: WorkflowTask, data: Mapping[str, Any]) -> tuple[WorkflowTask, bytes] | str:
    """What a DYNAMIC step is, with its definition as stored; a text that says why that cannot be told."""
    parameter = step.dynamic_name or ""
    name = data.get(parameter)
    if not isinstance(name, str) or not name.strip():
        return f"{parameter} must name a task definition, not {name!r}: give it by the input parameter {parameter}"
    known = draft.context.definitions.task_def(name)
    if known is None:
        return f"{parameter} names {name!r}, which is no registered task definition: register it first"
    document = {"name": name, **known.document}
    return _as_simple(step, known), orjson.dumps(document)


def _as_simple(step: WorkflowTask, definition: TaskDef) -> WorkflowTask:
    return replace(step, type="SIMPLE", name=definition.name, definition=definition)


# --- the definition that an execution runs by


def extended(execution: Execution, row: TaskState) -> Execution:
    """An execution that knows the steps in one of its rows."""
    if row.definition is None:
        return execution
    definition = execution.definition
    node, suffix = definition.locate(row.reference)
    static = definition.index.get(node.step.reference, node)
    if static.step.type == "DYNAMIC":
        known = _task_def(row.definition)
        return _with(execution, _turned_out(definition, static._replace(step=_as_simple(static.step, known)), suffix))
    forked = _with(execution, _forked(definition, node, row, suffix))
    if not definition.has_compensation and b'"compensation"' in row.definition:
        return forked._replace(definition=replace(forked.definition, has_compensation=True))
    return forked


def of_rows(execution: Execution) -> Execution:
    """An execution that knows the steps in all of its rows."""
    for row in sorted(execution.tasks.values(), key=lambda row: row.seq):
        execution = extended(execution, row)
    return execution


@lru_cache(maxsize=1024)
def _task_def(stored: bytes) -> TaskDef:
    return parse_task_def(orjson.loads(stored)).unwrap()


def _with(execution: Execution, dynamic: Dynamic) -> Execution:
    return execution._replace(definition=replace(execution.definition, dynamic=dynamic))


def _turned_out(definition: WorkflowDef, node: Node, suffix: str) -> Dynamic:
    before = definition.dynamic
    return before._replace(nodes=before.nodes.set((node.step.reference, suffix), node))


def _forked(definition: WorkflowDef, node: Node, row: TaskState, suffix: str) -> Dynamic:
    before, steps = definition.dynamic, compiled(row.definition or b"[]")
    nodes, joins = before.nodes.mutate(), before.joins.mutate()
    join = node.siblings[node.position + 1].reference
    for step in steps:
        inside = dict(index((step,), node.step.reference, node.loops))
        waiting = joins_in(inside)
        waiting[step.reference] = (*waiting.get(step.reference, ()), join)
        for name, found in inside.items():
            nodes[name, suffix] = found
            if name in waiting:
                joins[name, suffix] = waiting[name]
    return Dynamic(
        nodes.finish(),
        joins.finish(),
        before.lists.set(row.reference, tuple((step,) for step in steps)),
        before.waits.set(join + suffix, tuple(step.reference for step in steps)),
    )


def without(execution: Execution, rows: Sequence[TaskState]) -> Execution:
    """An execution that has forgotten the steps of rows that are not kept any more."""
    for row in rows:
        if row.definition is None:
            continue
        before = execution.definition.dynamic
        node, suffix = execution.definition.locate(row.reference)
        nodes, joins = before.nodes.mutate(), before.joins.mutate()
        for name in (node.step.reference, *_names(before, row)):
            nodes.pop((name, suffix), None)
            joins.pop((name, suffix), None)
        waits = before.waits
        if row.reference in before.lists:
            waits = waits.delete(node.siblings[node.position + 1].reference + suffix)
        lists = before.lists.delete(row.reference) if row.reference in before.lists else before.lists
        execution = _with(execution, Dynamic(nodes.finish(), joins.finish(), lists, waits))
    return execution


def _names(dynamic: Dynamic, row: TaskState) -> list[str]:
    return [name for steps in dynamic.lists.get(row.reference, ()) for name, _ in index(steps)]
