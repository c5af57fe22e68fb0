"""What ``${…}`` sees of an execution, and the two things made with it: task inputs and workflow outputs."""

from __future__ import annotations

from collections.abc import Mapping

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
        self._made: dict[str, Json] = {}

    def named(self, name: str) -> str | None:
        return self._names.get(name)

    def root(self, name: str) -> Json:
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def roots(self) -> Mapping[str, Json]:
        return {name: self.root(name) for name in ("workflow", *self._execution.tasks)}

    def _make(self, name: str) -> Json:
        if name == "workflow":
            return self._workflow()
        task = self._execution.tasks.get(name)
        return None if task is None else _task_document(task)

    def _workflow(self) -> Json:
        workflow = self._execution.workflow
        return {
            "input": orjson.loads(workflow.input),
            "output": orjson.loads(workflow.output) if workflow.output else {},
            "status": workflow.status.value,
            "workflowId": workflow.workflow_id,
            "parentWorkflowId": None,
            "parentWorkflowTaskId": None,
            "workflowType": workflow.name,
            "version": workflow.version,
            "correlationId": workflow.correlation_id,
            "reasonForIncompletion": workflow.reason,
            "schemaVersion": 2,
            "variables": orjson.loads(workflow.variables),
            "env": dict(self._environment),
        }


def _task_document(task: TaskState) -> Json:
    return {
        "input": orjson.loads(task.input),
        "output": orjson.loads(task.output) if task.output else {},
        "taskType": task.task_type,
        "status": task.status.value,
        "referenceTaskName": task.reference,
        "retryCount": task.attempt,
        "pollCount": task.poll_count,
        "taskDefName": task.task_type,
        "scheduledTime": task.scheduled_at_ms,
        "startTime": task.started_at_ms or 0,
        "endTime": task.ended_at_ms or 0,
        "workflowInstanceId": task.workflow_id,
        "taskId": task.task_id,
        "reasonForIncompletion": task.reason,
        "workerId": task.worker_id,
        "iteration": task.iteration,
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
