"""SUB_WORKFLOW and START_WORKFLOW: tasks that start other workflows, by commands in the same transaction.

The id of what an attempt starts follows from the attempt's own, so a decision that is made again starts nothing twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from broker_engine.decider.domains import domains_problem
from broker_engine.decider.task_types.base import Begun, How, Seen, StartedWorkflow, TaskType, missing
from broker_engine.errors import Violation
from broker_engine.model.definitions import Json, WorkflowTask
from broker_engine.model.status import ReasonCode, WaitingFor

#: What a definition's ``subWorkflowParam`` becomes in the input of its task (Conductor's names).
PARAMETERS: Mapping[str, str] = {
    "name": "subWorkflowName",
    "version": "subWorkflowVersion",
    "taskToDomain": "subWorkflowTaskToDomain",
    "workflowDefinition": "subWorkflowDefinition",
    "priority": "subWorkflowPriority",
}


def _sub_workflow(_step: WorkflowTask, seen: Seen) -> Begun:
    data = seen.input
    definition = data.get("subWorkflowDefinition")
    name = data.get("subWorkflowName") or (definition.get("name") if isinstance(definition, Mapping) else None)
    given = data.get("workflowInput")
    own = {key: value for key, value in data.items() if key not in PARAMETERS.values()}
    started = _started(
        seen,
        {
            "name": name,
            "version": data.get("subWorkflowVersion"),
            "workflowDef": definition,
            "input": given if isinstance(given, Mapping) and given else own,
            "taskToDomain": data.get("subWorkflowTaskToDomain"),
            "priority": data.get("subWorkflowPriority"),
        },
        is_child=True,
    )
    if isinstance(started, str):
        return Begun(How.FAILED, reason=f"subWorkflowParam: {started}", code=ReasonCode.TERMINAL_ERROR)
    return Begun(
        How.RUNNING, code=ReasonCode.PREVIOUS_TASK_DONE, waiting_for=WaitingFor.WORKFLOW, output={}, starts=started
    )


def _start_workflow(_step: WorkflowTask, seen: Seen) -> Begun:
    request = seen.input.get("startWorkflow")
    started = _started(seen, request, is_child=False) if isinstance(request, Mapping) else "must be an object"
    if isinstance(started, str):
        return Begun(How.FAILED, reason=f"startWorkflow: {started}", code=ReasonCode.TERMINAL_ERROR)
    return Begun(How.DONE, output={}, starts=started)


def _started(seen: Seen, request: Mapping[str, Any], *, is_child: bool) -> StartedWorkflow | str:
    """What a request asks for; a text that says what is wrong with it."""
    workflow = seen.execution.workflow
    definition, domains = request.get("workflowDef"), request.get("taskToDomain")
    name, version, priority = request.get("name"), request.get("version"), request.get("priority")
    if not isinstance(name, str) or not name.strip():
        return f"name must name a workflow, not {name!r}"
    if version is not None and not _is_number(version, 1, 2**31 - 1):
        return f"version must be a whole number from 1 on, not {version!r}"
    if priority is not None and (
        isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority <= 99
    ):
        return f"priority must be 0 to 99, not {priority!r}"
    if definition is not None and not isinstance(definition, Mapping):
        return "workflowDefinition must be an object"
    if domains:
        wrong = domains_problem(orjson.dumps(domains))
        if wrong is not None:
            return wrong
    data = request.get("input") or {}
    if not isinstance(data, Mapping):
        return "input must be an object"
    return StartedWorkflow(
        name=name,
        version=version,
        definition=orjson.dumps(definition) if definition else None,
        input=orjson.dumps(data),
        correlation_id=request.get("correlationId") or workflow.correlation_id,
        priority=workflow.priority if priority is None else priority,
        task_to_domain=orjson.dumps(domains) if domains else workflow.task_to_domain,
        is_child=is_child,
    )


def _is_number(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _check_sub(document: Mapping[str, Json], path: str) -> list[Violation]:
    parameters = document.get("subWorkflowParam")
    if not isinstance(parameters, Mapping) or not parameters:
        return missing({**document, "subWorkflowParam": None}, path, "subWorkflowParam")
    if parameters.get("workflowDefinition"):
        return []
    return missing({"type": "SUB_WORKFLOW", **parameters}, f"{path}subWorkflowParam.", "name")


def _check_start(document: Mapping[str, Json], path: str) -> list[Violation]:
    inputs = document.get("inputParameters")
    if isinstance(inputs, str):
        return []
    given = {"type": "START_WORKFLOW", **(inputs if isinstance(inputs, Mapping) else {})}
    return missing(given, f"{path}inputParameters.", "startWorkflow")


SUB_WORKFLOW = TaskType(about="runs another workflow and takes its output", begin=_sub_workflow, check=_check_sub)
START_WORKFLOW = TaskType(
    about="starts another workflow and does not wait for it", begin=_start_workflow, check=_check_start
)
