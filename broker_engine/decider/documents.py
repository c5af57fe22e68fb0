"""What ``${…}`` sees of an execution, and the two things made with it: task inputs and workflow outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import orjson

from broker_engine.decider.expressions import resolve
from broker_engine.model.definitions import Json, WorkflowDef, WorkflowTask, iterations
from broker_engine.model.state import Execution, TaskState


class Scope(NamedTuple):
    """Where a task stands whose expressions are resolved: the loops around it and the iterations it belongs to."""

    loops: tuple[str, ...] = ()
    iterations: tuple[str, ...] = ()


TOP = Scope()


class ExecutionDocument:
    """The document of one execution (expressions.Document). Payloads are parsed when first asked for."""

    def __init__(
        self, execution: Execution, task_id: str | None, environment: Mapping[str, str], scope: Scope = TOP
    ) -> None:
        self._execution = execution
        self._scope = scope
        self._names = {**environment, "CPEWF_TASK_ID": task_id} if task_id else dict(environment)
        self._environment = environment
        self._made: dict[str | tuple[str, str], Json] = {}

    def named(self, name: str) -> str | None:
        return self._names.get(name)

    def root(self, name: str) -> Json:
        if name not in self._made:
            found = self._members(name)
            self._made[name] = None if found is None else {key: make(found[0]) for key, make in found[1].items()}
        return self._made[name]

    def member(self, name: str, member: str) -> Json:
        key = (name, member)
        if key not in self._made:
            found = self._members(name)
            make = found[1].get(member) if found is not None else None
            self._made[key] = make(found[0]) if found is not None and make is not None else None
        return self._made[key]

    def roots(self) -> Mapping[str, Json]:
        return {name: self.root(name) for name in ("workflow", *self._execution.tasks)}

    def _members(self, name: str) -> tuple[Any, Mapping[str, Callable[[Any], Json]]] | None:
        """What a root is made from, and how each of its members is."""
        if name == "workflow":
            return self, _WORKFLOW_MEMBERS
        task = find_task(self._execution, name, self._scope)
        return None if task is None else (task, _TASK_MEMBERS)


_WORKFLOW_MEMBERS: Mapping[str, Callable[[ExecutionDocument], Json]] = {
    "input": lambda d: orjson.loads(d._execution.workflow.input),
    "output": lambda d: _json(d._execution.workflow.output),
    "status": lambda d: d._execution.workflow.status.value,
    "workflowId": lambda d: d._execution.workflow.workflow_id,
    "parentWorkflowId": lambda d: d._execution.workflow.parent_workflow_id,
    "parentWorkflowTaskId": lambda d: d._execution.workflow.parent_task_id,
    "workflowType": lambda d: d._execution.workflow.name,
    "version": lambda d: d._execution.workflow.version,
    "correlationId": lambda d: d._execution.workflow.correlation_id,
    "reasonForIncompletion": lambda d: d._execution.workflow.reason,
    "schemaVersion": lambda _: 2,
    "variables": lambda d: orjson.loads(d._execution.workflow.variables),
    "env": lambda d: dict(d._environment),
}
_TASK_MEMBERS: Mapping[str, Callable[[TaskState], Json]] = {
    "input": lambda task: orjson.loads(task.input),
    "output": lambda task: _json(task.output),
    "taskType": lambda task: task.task_type,
    "status": lambda task: task.status.value,
    "referenceTaskName": lambda task: task.reference,
    "retryCount": lambda task: task.attempt,
    "correlationId": lambda _: None,
    "pollCount": lambda task: task.poll_count,
    "taskDefName": lambda task: task.task_type,
    "scheduledTime": lambda task: task.scheduled_at_ms,
    "startTime": lambda task: task.started_at_ms or 0,
    "endTime": lambda task: task.ended_at_ms or 0,
    "workflowInstanceId": lambda task: task.workflow_id,
    "taskId": lambda task: task.task_id,
    "reasonForIncompletion": lambda task: task.reason,
    "callbackAfterSeconds": lambda _: 0,
    "workerId": lambda task: task.worker_id,
    "iteration": lambda task: task.iteration,
}


def scope_of(execution: Execution, reference: str) -> Scope:
    """The scope of a task."""
    node, suffix = execution.definition.locate(reference)
    return Scope(node.loops, iterations(suffix)) if suffix else TOP


def find_task(execution: Execution, reference: str, scope: Scope = TOP) -> TaskState | None:
    """The task that a reference of the definition means: inside its loop that of the current iteration (D30), seen
    from outside that of the latest."""
    definition = execution.definition
    node = definition.index.get(reference)
    if node is None and definition.dynamic.nodes:
        node = definition.node(reference, "".join(f"__{number}" for number in scope.iterations))
    if node is None or not node.loops:
        return execution.tasks.get(reference)
    suffix = ""
    for depth, loop in enumerate(node.loops):
        if scope.loops[depth : depth + 1] == (loop,):
            suffix += f"__{scope.iterations[depth]}"
        elif (row := execution.tasks.get(loop + suffix)) is not None:
            suffix += f"__{row.iteration}"
        else:
            return None
    return execution.tasks.get(reference + suffix)


def _json(payload: bytes | None) -> Json:
    return orjson.loads(payload) if payload else {}


def task_input(
    execution: Execution,
    step: WorkflowTask,
    task_id: str,
    environment: Mapping[str, str],
    *,
    earlier: bytes | None = None,
    scope: Scope = TOP,
) -> bytes:
    """The input of a new attempt as JSON.

    A template value fills in where the key is absent (resolved) or resolves to null (as written). On a retry the new
    values are laid over the ``earlier`` input, whose other keys survive.
    """
    template = step.definition.input_template
    if not step.input_parameters and not template and earlier is None and not step.given:
        return b"{}"
    document = ExecutionDocument(execution, task_id, environment, scope)
    resolved = resolve(step.input_parameters, document)
    values = dict(resolved) if isinstance(resolved, dict) else {}
    for key, value in template.items():
        if key not in values:
            values[key] = resolve(value, document)
        elif values[key] is None:
            values[key] = value
    if step.given:
        values.update(step.given)
    if earlier is not None:
        values = {**orjson.loads(earlier), **values}
    return orjson.dumps(values)


def workflow_output(execution: Execution, last: TaskState | None, environment: Mapping[str, str]) -> bytes:
    """``outputParameters`` resolved, or the output of the last (or failing) task when there are none."""
    parameters = execution.definition.output_parameters
    if not parameters:
        return (last.output if last else None) or b"{}"
    return orjson.dumps(resolve(parameters, ExecutionDocument(execution, None, environment)))


def workflow_input(definition: WorkflowDef, given: bytes) -> bytes:
    """The start input with the definition's ``inputTemplate`` under it (absent keys only)."""
    if not definition.input_template:
        return given
    return orjson.dumps({**definition.input_template, **orjson.loads(given)})
