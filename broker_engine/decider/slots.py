"""The decider's side of the limits: a limited task asks the limiter before it is handed out, and says when it is done.

``TaskState.holds_slot`` says that the limiter knows of the present hand-out and has to hear of its end. While the task
waits for its slot the number it asked for is the next one; once granted, that is its hand-out.
"""

from __future__ import annotations

from broker_engine.decider.context import Context
from broker_engine.decider.documents import ExecutionDocument
from broker_engine.decider.expressions import java_text, resolve
from broker_engine.model.caps import NO_CAPS
from broker_engine.model.decision import TellLimiter
from broker_engine.model.definitions import TaskDef, WorkflowTask
from broker_engine.model.limits import SYSTEM_DOMAIN
from broker_engine.model.slots import Line, ReleaseSlot, RequestSlot, SlotStarted
from broker_engine.model.state import Execution, TaskState, evolve
from broker_engine.model.status import IN_HAND, Phase, WaitingFor

#: What a task waits for that has asked the limiter.
WAITS = frozenset({WaitingFor.SLOT, WaitingFor.LOCK})
_ON_QUEUE = frozenset({WaitingFor.SLOT, WaitingFor.LOCK, WaitingFor.WORKER})


def is_limited(definition: TaskDef) -> bool:
    """Whether such tasks go through the limiter."""
    return _is_counted(definition) or definition.resource_lock is not None


def _is_counted(definition: TaskDef) -> bool:
    return definition.concurrent_exec_limit > 0 or (
        definition.rate_limit_per_frequency > 0 and definition.rate_limit_frequency_in_seconds > 0
    )


def waiting(execution: Execution, task: TaskState, context: Context) -> TaskState | None:
    """The task as it waits for its slot; None when no limit holds it."""
    name = task.task_type
    if task.domain == SYSTEM_DOMAIN:  # an operator counts by the definition of its step's name
        name = execution.definition.task(task.reference).name
    definition, caps = context.definitions.task_def(name), context.definitions.caps
    is_capped = caps is not NO_CAPS and caps.hold(execution.workflow.tenant, task.domain)
    if not is_capped and (definition is None or not is_limited(definition)):
        return None
    resource = None
    if definition is not None and definition.resource_lock is not None:
        value = resolve(definition.resource_lock, ExecutionDocument(execution, task.task_id, context.environment))
        resource = None if value is None else java_text(value)
    is_counted = is_capped or (definition is not None and _is_counted(definition))
    if resource is None and not is_counted:
        return None
    return evolve(
        task,
        waiting_for=WaitingFor.SLOT if is_counted else WaitingFor.LOCK,
        handed_out_at_ms=None,
        holds_slot=True,
        resource=resource,
    )


def number(task: TaskState) -> int:
    """The hand-out that the limiter knows of."""
    return task.hand_out + 1 if task.waiting_for in WAITS else task.hand_out


def request(task: TaskState, step: WorkflowTask, tenant: str | None) -> TellLimiter:
    """Ask for the next hand-out. The age is that of the attempt, without its delay, however often it asks."""
    delay_ms = task.retry_delay_ms if task.attempt else step.start_delay_seconds * 1_000
    name = step.name if task.domain == SYSTEM_DOMAIN else task.task_type
    slot = RequestSlot(
        task_id=task.task_id,
        hand_out=number(task),
        workflow_id=task.workflow_id,
        reference=task.reference,
        line=Line(name, task.domain, tenant, task.resource),
        priority=task.priority,
        asked_at_ms=task.scheduled_at_ms + delay_ms,
    )
    return TellLimiter(slot=slot)


def started(task: TaskState, now_ms: int) -> TellLimiter:
    return TellLimiter(slot=SlotStarted(task.task_id, number(task), now_ms))


def released(task: TaskState, now_ms: int) -> TellLimiter:
    """The hand-out is over; one that a worker had counts for the rate even if its start is told later than its end."""
    started_at_ms = now_ms if task.phase in IN_HAND else None
    return TellLimiter(slot=ReleaseSlot(task.task_id, number(task), started_at_ms))


def returned(task_id: str, hand_out: int) -> TellLimiter:
    """Give back a slot that nobody wants (any more)."""
    return TellLimiter(slot=ReleaseSlot(task_id, hand_out))


def keeps(task: TaskState) -> bool:
    """Whether a task, after a move, still needs the slot that it holds."""
    return task.phase in IN_HAND or (task.phase is Phase.QUEUED and task.waiting_for in _ON_QUEUE)
