"""DYNAMIC and FORK_JOIN_DYNAMIC: what they run is told by their input. ``decider/dynamic.py`` makes steps of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker_engine.decider.task_types.base import Begun, ForkedTask, How, ListEnd, Seen, TaskType, hand_out, missing
from broker_engine.errors import Violation
from broker_engine.model.definitions import Json, WorkflowTask
from broker_engine.model.status import ReasonCode

#: The input parameters of the form that runs one task, or workflow, for each of a list of inputs.
ONE_FOR_EACH = ("forkTaskName", "forkTaskType", "forkTaskInputs", "forkTaskWorkflow", "forkTaskWorkflowVersion")


def _fork(step: WorkflowTask, seen: Seen) -> Begun:
    found = _listed(step, seen.input) if step.fork_tasks else _for_each(step, seen.input)
    if isinstance(found, str):
        return Begun(How.FAILED, reason=found, code=ReasonCode.TERMINAL_ERROR)
    references = [one.document.get("taskReferenceName") for one in found]
    field = step.fork_tasks or "forkTaskInputs"
    taken = (field, step.fork_inputs or "")
    return Begun(How.DONE, output={"forkedTasks": references}, forks=tuple(found), field=field, taken=taken)


def _listed(step: WorkflowTask, data: Mapping[str, Json]) -> list[ForkedTask] | str:
    """A list of tasks, and their inputs by reference."""
    name, inputs_name = step.fork_tasks or "", step.fork_inputs or ""
    tasks, inputs = data.get(name), data.get(inputs_name)
    if not isinstance(tasks, list):
        return f"{name} must be a list of tasks, not {_kind(tasks)}: see dynamicForkTasksParam"
    if inputs is None and not tasks:
        inputs = {}
    if not isinstance(inputs, Mapping):
        return f"{inputs_name} must be an object of inputs by reference, not {_kind(inputs)}"
    found = []
    for number, document in enumerate(tasks):
        if not isinstance(document, Mapping):
            return f"{name}[{number}] must be a task, not {_kind(document)}"
        given = inputs.get(str(document.get("taskReferenceName")), {})
        if given is not None and not isinstance(given, Mapping):
            return f"{inputs_name}.{document.get('taskReferenceName')} must be an object, not {_kind(given)}"
        found.append(ForkedTask(_named(document), given or {}))
    return found


def _named(document: Mapping[str, Json]) -> Mapping[str, Json]:
    """Without a name a task has that of its type, as Conductor's own operators may."""
    if document.get("name") is None and document.get("type") is not None:
        return {**document, "name": document["type"]}
    return document


def _for_each(step: WorkflowTask, data: Mapping[str, Json]) -> list[ForkedTask] | str:
    """One task, or one workflow, for each of a list of inputs."""
    inputs, workflow, version = data.get("forkTaskInputs"), data.get("forkTaskWorkflow"), None
    kind = data.get("forkTaskType") or "SIMPLE"
    name = data.get("forkTaskName") or (kind if kind != "SIMPLE" else step.reference)
    if not isinstance(inputs, list):
        return f"forkTaskInputs must be a list, an input for each task, not {_kind(inputs)}"
    for field, text in (("forkTaskName", name), ("forkTaskType", kind), ("forkTaskWorkflow", workflow or "w")):
        if not isinstance(text, str):
            return f"{field} must be a text, not {_kind(text)}"
    if (told := data.get("forkTaskWorkflowVersion")) is not None:
        if not str(told).isdigit():
            return f"forkTaskWorkflowVersion must be a whole number, not {told!r}"
        version = int(told)
    task: dict[str, Any] = {"name": name, "type": kind, "optional": step.optional}
    if workflow:
        task |= {"type": "SUB_WORKFLOW", "name": workflow, "subWorkflowParam": {"name": workflow, "version": version}}
    found = []
    for number, one in enumerate(inputs):
        given = {**(one if isinstance(one, Mapping) else {"input": one}), "__index": number}
        found.append(
            ForkedTask(
                {**task, "taskReferenceName": f"_{name}_{number}"}, {"workflowInput": given} if workflow else given
            )
        )
    return found


def _kind(value: Json) -> str:
    return "null" if value is None else f"{type(value).__name__} {str(value)[:50]!r}"


def _check_fork(document: Mapping[str, Json], path: str) -> list[Violation]:
    inputs = document.get("inputParameters")
    is_for_each = isinstance(inputs, Mapping) and "forkTaskInputs" in inputs
    if is_for_each and not document.get("dynamicForkTasksParam"):
        return []
    return missing(document, path, "dynamicForkTasksParam", "dynamicForkTasksInputParamName")


def _check_dynamic(document: Mapping[str, Json], path: str) -> list[Violation]:
    found = missing(document, path, "dynamicTaskNameParam")
    inputs, name = document.get("inputParameters"), document.get("dynamicTaskNameParam")
    if not found and not isinstance(inputs, str) and name not in (inputs or {}):
        message = "must name an input parameter of the task, whose value is the name of a task definition"
        found.append(Violation(path=f"{path}dynamicTaskNameParam", message=message, invalid_value=name))
    return found


DYNAMIC = TaskType(
    about="a task whose definition is named by its input (`dynamicTaskNameParam`)", begin=hand_out, check=_check_dynamic
)
FORK_JOIN_DYNAMIC = TaskType(
    about="begins the tasks of a list in its input side by side, or one task for each of `forkTaskInputs`",
    begin=_fork,
    goes_on=True,
    list_end=ListEnd.STOPS,
    check=_check_fork,
)
