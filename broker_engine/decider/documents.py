"""What ``${…}`` sees of an execution, and the two things made with it: task inputs and workflow outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import orjson

from broker_engine.decider.expressions import resolve
from broker_engine.model.definitions import Json, WorkflowDef, WorkflowTask
from broker_engine.model.state import Execution, TaskState


class ExecutionDocument:
    """The document of one execution (expressions.Document). Payloads are parsed when first asked for."""

    def __init__(self, execution: Execution, task_id: str | None, environment: Mapping[str, str]) -> None:
        self._execution = execution
        self._names = {**environment, "CPEWF_TASK_ID": task_id} if task_id else dict(environment)
        self._environment = environment
        self._made: dict[str | tuple[str, str], Json] = {}

    def named(self, name: str) -> str | None:
        return self._names.get(name)

    def root(self, name: str) -> Json:
        if name not in self._made:
            members = self._members(name)
            self._made[name] = None if members is None else {key: make() for key, make in members.items()}
        return self._made[name]

    def member(self, name: str, member: str) -> Json:
        key = (name, member)
        if key not in self._made:
            make = (self._members(name) or {}).get(member)
            self._made[key] = None if make is None else make()
        return self._made[key]

    def roots(self) -> Mapping[str, Json]:
        return {name: self.root(name) for name in ("workflow", *self._execution.tasks)}

    def _members(self, name: str) -> Mapping[str, Callable[[], Json]] | None:
        if name == "workflow":
            return self._workflow()
        task = self._execution.tasks.get(name)
        return None if task is None else _task_members(task)

    def _workflow(self) -> Mapping[str, Callable[[], Json]]:
        workflow = self._execution.workflow
        return {
            "input": lambda: orjson.loads(workflow.input),
            "output": lambda: orjson.loads(workflow.output) if workflow.output else {},
            "status": lambda: workflow.status.value,
            "workflowId": lambda: workflow.workflow_id,
            "parentWorkflowId": lambda: None,
            "parentWorkflowTaskId": lambda: None,
            "workflowType": lambda: workflow.name,
            "version": lambda: workflow.version,
            "correlationId": lambda: workflow.correlation_id,
            "reasonForIncompletion": lambda: workflow.reason,
            "schemaVersion": lambda: 2,
            "variables": lambda: orjson.loads(workflow.variables),
            "env": lambda: dict(self._environment),
        }


def _task_members(task: TaskState) -> Mapping[str, Callable[[], Json]]:
    return {
        "input": lambda: orjson.loads(task.input),
        "output": lambda: orjson.loads(task.output) if task.output else {},
        "taskType": lambda: task.task_type,
        "status": lambda: task.status.value,
        "referenceTaskName": lambda: task.reference,
        "retryCount": lambda: task.attempt,
        "correlationId": lambda: None,
        "pollCount": lambda: task.poll_count,
        "taskDefName": lambda: task.task_type,
        "scheduledTime": lambda: task.scheduled_at_ms,
        "startTime": lambda: task.started_at_ms or 0,
        "endTime": lambda: task.ended_at_ms or 0,
        "workflowInstanceId": lambda: task.workflow_id,
        "taskId": lambda: task.task_id,
        "reasonForIncompletion": lambda: task.reason,
        "callbackAfterSeconds": lambda: 0,
        "workerId": lambda: task.worker_id,
        "iteration": lambda: task.iteration,
    }


def task_input(
    execution: Execution,
    step: WorkflowTask,
    task_id: str,
    environment: Mapping[str, str],
    *,
    earlier: bytes | None = None,
) -> bytes:
    """The input of a new attempt as JSON.

    A template value fills in where the key is absent (resolved) or resolves to null (as written). On a retry the new
    values are laid over the ``earlier`` input, whose other keys survive.
    """
    template = step.definition.input_template
    if not step.input_parameters and not template and earlier is None:
        return b"{}"
    document = ExecutionDocument(execution, task_id, environment)
    resolved = resolve(step.input_parameters, document)
    values = dict(resolved) if isinstance(resolved, dict) else {}
    for key, value in template.items():
        if key not in values:
            values[key] = resolve(value, document)
        elif values[key] is None:
            values[key] = value
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
