"""Restart: an ended workflow runs again from the beginning, under its id, with its input; variables are those of the
definition again (D8)."""

from __future__ import annotations

import orjson
from immutables import Map

from broker_engine.decider import walk
from broker_engine.decider.draft import Draft
from broker_engine.decider.operations.again import take_up
from broker_engine.decider.operations.refusals import not_ended, refuse, tell_parent
from broker_engine.model.commands import RestartWorkflow
from broker_engine.model.definitions import WorkflowDef
from broker_engine.model.state import Execution
from broker_engine.model.status import ReasonCode, WorkflowStatus


def restart(draft: Draft, command: RestartWorkflow) -> str | None:
    """Run again from the beginning."""
    problem = not_ended(draft, "restarted")
    if problem is not None:
        return refuse(draft, problem)
    definition = draft.execution.definition
    if draft.workflow.status is WorkflowStatus.COMPLETED and definition.document.get("restartable") is False:
        return refuse(draft, "its definition says restartable: false: a COMPLETED workflow of it is not restarted")
    if command.use_latest:
        newest = draft.context.definitions.workflow_def(definition.name, None)
        if newest is None:
            return refuse(draft, f"there is no workflow definition {definition.name} any more: restart by its own", 404)
        definition = newest
    take_up(draft, ReasonCode.WORKFLOW_RESTARTED, f"restarted by {command.operator}")
    begin_anew(draft, definition, ReasonCode.WORKFLOW_RESTARTED)
    tell_parent(draft)
    draft.answer(200, draft.workflow.workflow_id)
    return None


def begin_anew(draft: Draft, definition: WorkflowDef, code: ReasonCode) -> None:
    """Begin the definition's first list, with nothing of earlier runs."""
    draft.change_workflow(
        first_run=None,
        version=definition.version,
        definition_hash=definition.content_hash,
        variables=orjson.dumps(definition.variables) if definition.variables else b"{}",
        messages=(),
        skips=(),
    )
    draft.execution = Execution(workflow=draft.workflow, tasks=Map(), definition=definition)
    walk.begin(draft, definition.tasks, "", code)
