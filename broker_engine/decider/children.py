"""Workflows that tasks start: the command, and what the task of a sub-workflow is while that runs."""

from __future__ import annotations

import orjson

from broker_engine.decider.draft import MAX_REASON, Draft
from broker_engine.decider.identity import started_workflow_id
from broker_engine.decider.task_types.base import How, Seen, StartedWorkflow
from broker_engine.decider.task_types.workflows import SUB_WORKFLOW
from broker_engine.model.commands import IdempotencyStrategy, Parent, RetryWorkflow, StartWorkflow, SubWorkflowEnded
from broker_engine.model.decision import Send
from broker_engine.model.definitions import WorkflowTask
from broker_engine.model.state import TaskState, evolve
from broker_engine.model.status import Phase, TaskStatus, WaitingFor, WorkflowStatus

#: Whether a start is told of by ``SubWorkflowEnded`` only when it is refused: this stands for the task that started it.
NO_TASK = ""


def is_child_step(step: WorkflowTask) -> bool:
    return step.type == "SUB_WORKFLOW"


def start(draft: Draft, task: TaskState, started: StartedWorkflow) -> str:
    """Send the start of the workflow that an attempt starts. Returns its id."""
    workflow, workflow_id = draft.workflow, started_workflow_id(task.task_id)
    command = StartWorkflow(
        key=workflow_id,
        operator=f"workflow:{workflow.workflow_id}",
        name=started.name,
        version=started.version,
        definition=started.definition,
        input=started.input,
        correlation_id=started.correlation_id,
        priority=started.priority,
        created_by=workflow.created_by,
        source=f"task {task.task_id}",
        strategy=IdempotencyStrategy.RETURN_EXISTING,
        tenant=workflow.tenant,
        deadline_at_ms=workflow.deadline_at_ms if started.is_child else None,
        task_to_domain=started.task_to_domain,
        parent=Parent(workflow.workflow_id, task.reference, task.task_id) if started.is_child else None,
    )
    draft.outputs.append(Send(command=command))
    return workflow_id


def not_resumed(command: StartWorkflow | RetryWorkflow, parent: Parent, reason: str) -> Send:
    """What a parent is told whose sub-workflow cannot start, or cannot go on: its task has failed."""
    how = "start" if isinstance(command, StartWorkflow) else "go on"
    what = "workflow" if parent.task_id == NO_TASK else "sub-workflow"
    if what == "workflow" and isinstance(command, StartWorkflow):
        what = (command.source or "").partition(" of ")[0] + " workflow"  # failure, compensation
    told = SubWorkflowEnded(
        key=parent.workflow_id,
        operator=f"workflow:{command.key}",
        reference=parent.reference,
        task_id=parent.task_id,
        hand_out=0,
        status=WorkflowStatus.FAILED,
        reason=f"the {what} could not {how}: {reason}"[:MAX_REASON],
    )
    return Send(command=told)


def begun(draft: Draft, task: TaskState) -> TaskState | str:
    """The next attempt of a sub-workflow's task, whose time has come, with its child; a text that says why there is
    none. The caller makes it appear, or moves the task there."""
    _, suffix = draft.execution.definition.locate(task.reference)
    seen = Seen(draft.execution, draft.now_ms, suffix, orjson.loads(task.input))
    found = SUB_WORKFLOW.begin(draft.step(task), seen)
    if found.how is How.FAILED or found.starts is None:
        return found.reason or "it names no workflow"
    child = start(draft, task, found.starts)
    return evolve(
        task,
        phase=Phase.RUNNING,
        status=TaskStatus.IN_PROGRESS,
        output=orjson.dumps({"subWorkflowId": child}),
        started_at_ms=draft.now_ms,
        waiting_for=WaitingFor.WORKFLOW,
        due_at_ms=None,
        delay_returned=False,
        sub_workflow_id=child,
    )
