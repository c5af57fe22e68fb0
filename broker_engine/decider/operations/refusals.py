"""What operations have in common: when they are refused, and whom they tell."""

from __future__ import annotations

from broker_engine.decider.draft import Draft
from broker_engine.model.commands import ChildRunsAgain
from broker_engine.model.decision import Send


def refuse(draft: Draft, message: str, status: int = 409) -> str:
    """Answer that an operation is not possible now; the message says what to do instead."""
    draft.answer(status, message)
    return message


def not_ended(draft: Draft, what: str) -> str | None:
    """Why a workflow cannot be taken up, if it cannot."""
    workflow = draft.workflow
    if not workflow.status.is_terminal:
        return f"the workflow is {workflow.status}: only one that has ended can be {what}; terminate it first"
    if workflow.deadline_at_ms is not None and workflow.deadline_at_ms <= draft.now_ms:
        late_ms = draft.now_ms - workflow.deadline_at_ms
        return f"its deadlineAt has passed {late_ms} ms ago: start a new workflow with a later one"
    if workflow.compensated_by is not None and what != "restarted":
        return f"what it had completed is undone by workflow {workflow.compensated_by}: restart it instead"
    return None


def tell_parent(draft: Draft) -> None:
    """A sub-workflow runs again: its parent waits for it again."""
    workflow = draft.workflow
    if workflow.parent_workflow_id is None or not workflow.parent_task_id:
        return
    command = ChildRunsAgain(
        key=workflow.parent_workflow_id,
        operator=draft.command.operator,
        reference=workflow.parent_reference or "",
        child_id=workflow.workflow_id,
    )
    draft.outputs.append(Send(command=command))
