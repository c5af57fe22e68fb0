"""Making attempts: the first one of a step, and the one after a failed one."""

from __future__ import annotations

from typing import NamedTuple

from broker_engine.decider import children
from broker_engine.decider.documents import TOP, scope_of, task_input
from broker_engine.decider.domains import place
from broker_engine.decider.draft import Draft, Repeat
from broker_engine.decider.identity import task_id as derive_task_id
from broker_engine.decider.retries import retry_delay_ms
from broker_engine.model.definitions import TaskDef, WorkflowTask
from broker_engine.model.limits import SYSTEM_DOMAIN
from broker_engine.model.state import TaskState, evolve
from broker_engine.model.status import Phase, ReasonCode, TaskStatus


def first_attempt(
    draft: Draft, step: WorkflowTask, suffix: str, code: ReasonCode, *, in_engine: bool = False
) -> TaskState:
    """The first attempt of a step, which has not appeared yet.

    Args:
        suffix: the iterations that it belongs to, as they stand in its name (``__2__5``).
        in_engine: no worker of a domain of the user's runs it.
    """
    workflow, reference = draft.workflow, step.reference + suffix
    task_id = derive_task_id(
        workflow_id=workflow.workflow_id,
        incarnation=workflow.incarnation,
        run=workflow.run,
        reference=reference,
    )
    if in_engine:
        domain, choices, task_type = SYSTEM_DOMAIN, "", step.type
    else:
        domain, choices = place(workflow.task_to_domain, step.name, draft.context)
        task_type = step.name
    scope = scope_of(draft.execution, reference) if suffix else TOP
    task = TaskState(
        phase=Phase.CREATED if step.start_delay_seconds else Phase.QUEUED,
        status=TaskStatus.SCHEDULED,
        task_id=task_id,
        workflow_id=workflow.workflow_id,
        workflow_name=workflow.name,
        run=workflow.run,
        reference=reference,
        task_type=task_type,
        domain=domain,
        domain_choices=choices,
        seq=draft.execution.last_seq + 1,
        priority=workflow.priority,
        iteration=int(scope.iterations[-1]) if suffix else 0,
        input=task_input(draft.execution, step, task_id, draft.context.environment, scope=scope),
        first_scheduled_at_ms=draft.now_ms,
        scheduled_at_ms=draft.now_ms,
        updated_at_ms=draft.now_ms,
        reason_code=code,
    )
    repeat = draft.repeats.get(reference) if draft.repeats else None
    return task if repeat is None else _repeating(task, repeat)


def _repeating(task: TaskState, repeat: Repeat) -> TaskState:
    return evolve(
        task,
        retried_task_id=repeat.retried_task_id,
        input=task.input if repeat.input is None else repeat.input,
        steps=repeat.steps,
        checkpoint=repeat.checkpoint,
        definition=repeat.definition,
    )


class Retry(NamedTuple):
    task: TaskState
    delay_ms: int


def next_attempt(draft: Draft, task: TaskState, step: WorkflowTask) -> Retry | None:
    """The attempt after a failed one, None when none is left. A new record with a new id; the failed one stays."""
    if task.attempt >= step.retry_limit or (task.is_in_engine and not children.is_child_step(step)):
        return None
    workflow, attempt = draft.workflow, task.attempt + 1
    task_id = derive_task_id(
        workflow_id=workflow.workflow_id,
        incarnation=workflow.incarnation,
        run=workflow.run,
        reference=task.reference,
        iteration=task.iteration,
        attempt=attempt,
    )
    delay_ms = retry_delay_ms(step.definition, task.attempt, task_id)
    if task.domain == SYSTEM_DOMAIN:
        domain, choices = SYSTEM_DOMAIN, ""
    else:
        domain, choices = place(workflow.task_to_domain, task.task_type, draft.context)
    scope = scope_of(draft.execution, task.reference) if task.iteration else TOP
    again = TaskState(
        phase=Phase.RETRY_WAIT if delay_ms else Phase.QUEUED,
        status=TaskStatus.SCHEDULED,
        task_id=task_id,
        workflow_id=task.workflow_id,
        workflow_name=task.workflow_name,
        run=task.run,
        reference=task.reference,
        task_type=task.task_type,
        domain=domain,
        domain_choices=choices,
        seq=draft.execution.last_seq + 1,
        iteration=task.iteration,
        attempt=attempt,
        priority=task.priority,
        input=task_input(draft.execution, step, task_id, draft.context.environment, earlier=task.input, scope=scope),
        retry_delay_ms=delay_ms,
        first_scheduled_at_ms=task.first_scheduled_at_ms,
        scheduled_at_ms=draft.now_ms,
        updated_at_ms=draft.now_ms,
        retried_task_id=task.task_id,
        # What is completed is not done again (B6).
        steps=task.steps,
        checkpoint=task.checkpoint,
        paused_by=task.paused_by,
        definition=task.definition,
    )
    return Retry(again, delay_ms)


def missed_limit(draft: Draft, task: TaskState, definition: TaskDef, delay_ms: int) -> ReasonCode | None:
    """What a retry would miss that starts after this delay; it is not scheduled then.

    ``totalTimeoutSeconds`` (D7), and the moment that the workflow was promised for (B10).
    """
    starts_at_ms, budget_ms = draft.now_ms + delay_ms, definition.total_timeout_seconds * 1_000
    if budget_ms > 0 and starts_at_ms >= task.first_scheduled_at_ms + budget_ms:
        return ReasonCode.TOTAL_TIMEOUT
    deadline_ms = draft.workflow.deadline_at_ms
    return ReasonCode.DEADLINE_EXCEEDED if deadline_ms is not None and starts_at_ms >= deadline_ms else None
