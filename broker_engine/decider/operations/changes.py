"""Operations on workflows that run: skip a task, change variables."""

from __future__ import annotations

import orjson

from broker_engine.decider.definitions import parse_json
from broker_engine.decider.draft import Draft
from broker_engine.decider.operations.refusals import refuse
from broker_engine.decider.task_types import TASK_TYPES
from broker_engine.decider.task_types.plain import MAX_VARIABLES_BYTES
from broker_engine.errors import BadRequest
from broker_engine.model.commands import SkipTask, UpdateVariables
from broker_engine.model.state import Skip
from broker_engine.model.status import ReasonCode, WaitingFor

#: Bounds the workflow's record.
MAX_SKIPS = 100


def skip_task(draft: Draft, command: SkipTask) -> str | None:
    """Jump over a task when it is reached, with what is given as its output."""
    status, reference = draft.workflow.status, command.reference
    if status.is_terminal:
        return refuse(draft, f"the workflow is {status}: only a task of a running workflow can be skipped")
    try:
        node, _ = draft.execution.definition.locate(reference)
    except KeyError:
        return refuse(draft, f"the definition has no task {reference}: name its taskReferenceName", 400)
    row = draft.execution.tasks.get(reference)
    if row is not None and row.waiting_for is not WaitingFor.DEPENDENCIES:
        return refuse(draft, f"task {reference} is {row.status}: only one that has not begun can be skipped")
    kind = TASK_TYPES.get(node.step.type)
    if kind is not None and kind.goes_on:
        return refuse(draft, f"{reference} is a {node.step.type}, for which a JOIN waits: skip the tasks in it", 400)
    skips = tuple(skip for skip in draft.workflow.skips if skip.reference != reference)
    if len(skips) >= MAX_SKIPS:
        return refuse(draft, f"{MAX_SKIPS} tasks are to be skipped already: wait until some are reached")
    try:
        size = sum(_checked(given, name) for name, given in (("input", command.input), ("output", command.output)))
    except BadRequest as error:
        return refuse(draft, str(error), error.status)
    if size > MAX_VARIABLES_BYTES:
        return refuse(draft, f"input and output have {size} bytes, the limit is {MAX_VARIABLES_BYTES}", 413)
    draft.change_workflow(skips=(*skips, Skip(reference, command.input, command.output)))
    draft.tell_workflow(status, ReasonCode.SKIP_REQUESTED, f"task {reference} is to be skipped")
    draft.answer(200, draft.workflow.workflow_id)
    return None


def _checked(given: bytes | None, name: str) -> int:
    if given is None:
        return 0
    parse_json(given, what=name)
    return len(given)


def update_variables(draft: Draft, command: UpdateVariables) -> str | None:
    """Put values into the variables; names that are not given keep theirs."""
    status = draft.workflow.status
    if status.is_terminal:
        return refuse(draft, f"the workflow is {status}: only variables of a running workflow can be changed")
    try:
        given = parse_json(command.variables, what="the variables")
    except BadRequest as error:
        return refuse(draft, str(error), error.status)
    variables = orjson.dumps({**orjson.loads(draft.workflow.variables), **given})
    if len(variables) > MAX_VARIABLES_BYTES:
        message = f"the variables would have {len(variables)} bytes, the limit is {MAX_VARIABLES_BYTES}"
        return refuse(draft, f"{message}: put references into them instead of data", 413)
    draft.change_workflow(variables=variables)
    draft.tell_workflow(status, ReasonCode.VARIABLES_UPDATED, f"changed: {', '.join(sorted(given))}"[:500])
    draft.answer(200, draft.workflow.workflow_id)
    return None
