"""Steps of an attempt (B6, B14): what began, what ended and with what result.

A step is known by its name within the task. Its result and the checkpoint live in the task's state, are carried into
the next attempt, and go out with every hand-out; the worker skips what is completed. Bounded: a record holds no endless
list.
"""

from __future__ import annotations

from broker_engine.decider import flow
from broker_engine.decider.draft import Draft
from broker_engine.decider.moves import Cause
from broker_engine.decider.progress import keep_alive, report_problem
from broker_engine.model.commands import TaskStep
from broker_engine.model.state import Step, TaskState, evolve
from broker_engine.model.status import SETUP_STEP, Phase, ReasonCode, StepStatus

#: Steps of one task.
MAX_STEPS = 100
MAX_STEP_NAME = 100


def step_told(draft: Draft, command: TaskStep, task: TaskState | str) -> str | None:
    """A step began or ended. ``task``: what it is about, or why it belongs to the past."""
    problem = task if isinstance(task, str) else report_problem(task, command)
    if problem is not None or isinstance(task, str):
        return f"step {command.step[:MAX_STEP_NAME]} {command.status}: {problem}"
    if command.step == SETUP_STEP:
        return _prepared(draft, task, command)
    known = next((step for step in task.steps if step.name == command.step), None)
    if known is not None and known.status is StepStatus.COMPLETED:
        return f"step {command.step} is completed already"
    refused = _refusal(draft, task, command, known)
    if refused is not None:
        flow.refuse_output(draft, task, *refused)
        return None
    step = _begun(draft, command, known) if command.status is StepStatus.STARTED else _ended(draft, command, known)
    keep_alive(
        draft,
        evolve(
            task,
            steps=(*task.steps, step) if known is None else tuple(step if s is known else s for s in task.steps),
            current_step=step.name if step.status is StepStatus.STARTED else None,
            # What a step has stored of its progress means nothing to the next one.
            checkpoint=None if step.status is StepStatus.COMPLETED else task.checkpoint,
            sequence=command.sequence,
        ),
    )
    return None


def _prepared(draft: Draft, task: TaskState, command: TaskStep) -> str | None:
    """The set-up is over: the function runs."""
    if task.phase is not Phase.STARTING:
        return "the task is prepared already"
    sequence, now_ms = command.sequence, draft.now_ms
    draft.move(task, Cause.PREPARED, Phase.RUNNING, ReasonCode.PREPARED, sequence=sequence, heartbeat_at_ms=now_ms)
    return None


def _begun(draft: Draft, command: TaskStep, known: Step | None) -> Step:
    return Step(
        name=command.step,
        status=StepStatus.STARTED,
        started_at_ms=draft.now_ms,
        tries=known.tries + 1 if known is not None else 1,
        input_size=command.input_size,
    )


def _ended(draft: Draft, command: TaskStep, known: Step | None) -> Step:
    begun = known or _begun(draft, command, None)
    is_completed = command.status is StepStatus.COMPLETED
    return begun._replace(
        status=command.status,
        ended_at_ms=draft.now_ms,
        output_size=len(command.result or b""),
        result=command.result if is_completed else None,
        error_code=command.error_code,
        reason=command.reason[:500] if command.reason else None,
    )


def _refusal(draft: Draft, task: TaskState, command: TaskStep, known: Step | None) -> tuple[ReasonCode, str] | None:
    if len(command.step) > MAX_STEP_NAME:
        return ReasonCode.TERMINAL_ERROR, f"the name of a step has more than {MAX_STEP_NAME} characters"
    if known is None and len(task.steps) >= MAX_STEPS:
        return ReasonCode.TERMINAL_ERROR, f"a task may have {MAX_STEPS} steps: make several tasks of it"
    size = sum(len(step.result or b"") for step in task.steps) + len(command.result or b"")
    limit = draft.context.max_payload_bytes
    if size > limit:
        reason = f"the results of its steps have {size} bytes together, the limit is {limit}: store them elsewhere"
        return ReasonCode.PAYLOAD_TOO_LARGE, reason
    return None
