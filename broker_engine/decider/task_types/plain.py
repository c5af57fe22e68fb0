"""SET_VARIABLE, TERMINATE and NOOP: done as they appear."""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from broker_engine.decider.task_types.base import Begun, How, Seen, TaskType, WorkflowEnd, missing
from broker_engine.errors import Violation
from broker_engine.model.definitions import Json, WorkflowTask
from broker_engine.model.status import ReasonCode, WorkflowStatus

#: Conductor's maxWorkflowVariablesPayloadSizeThreshold.
MAX_VARIABLES_BYTES = 256 * 1024
#: What a TERMINATE may say.
ENDS = (WorkflowStatus.COMPLETED, WorkflowStatus.FAILED, WorkflowStatus.TERMINATED)


def _set_variable(_step: WorkflowTask, seen: Seen) -> Begun:
    variables = {**orjson.loads(seen.execution.workflow.variables), **seen.input}
    size = len(orjson.dumps(variables))
    if size > MAX_VARIABLES_BYTES:
        reason = f"the variables would have {size} bytes, the limit is {MAX_VARIABLES_BYTES}: store references instead"
        return Begun(How.FAILED, reason=reason, code=ReasonCode.PAYLOAD_TOO_LARGE)
    return Begun(How.DONE, output={}, variables=variables)


def _terminate(_step: WorkflowTask, seen: Seen) -> Begun:
    status = seen.input.get("terminationStatus")
    if status not in ENDS:
        reason = f"terminationStatus must be one of {', '.join(ENDS)}, not {status!r}"
        return Begun(How.FAILED, reason=reason, code=ReasonCode.TERMINAL_ERROR)
    given = seen.input.get("workflowOutput")
    output = given if isinstance(given, Mapping) else {}
    why = seen.input.get("terminationReason")
    end = WorkflowEnd(WorkflowStatus(status), None if why is None else str(why), output)
    return Begun(How.DONE, output=output, ends=end)


def _check_terminate(document: Mapping[str, Json], path: str) -> list[Violation]:
    inputs = document.get("inputParameters")
    if inputs is not None and not isinstance(inputs, Mapping):
        return []
    status = (inputs or {}).get("terminationStatus")
    if status is None:
        return missing({"type": "TERMINATE"}, f"{path}inputParameters.", "terminationStatus")
    if status in ENDS:
        return []
    message = f"must be one of {', '.join(ENDS)}"
    return [Violation(path=f"{path}inputParameters.terminationStatus", message=message, invalid_value=status)]


SET_VARIABLE = TaskType(about="puts its input into the workflow's variables", begin=_set_variable)
TERMINATE = TaskType(about="ends the workflow", begin=_terminate, check=_check_terminate)
NOOP = TaskType(about="does nothing", begin=lambda _step, _seen: Begun(How.DONE, output={}))
