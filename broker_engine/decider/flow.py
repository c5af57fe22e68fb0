"""How a workflow moves on: tasks are handed out, ended and retried.

What an attempt is made of stands in ``attempts.py``, how the workflow ends in ``workflow_end.py``.

Everything works on a Draft. The callers in ``decide.py`` have checked that the command is about the present.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from broker_engine.decider import children, controls, holds, rounds, slots
from broker_engine.decider.attempts import first_attempt as first_attempt
from broker_engine.decider.attempts import missed_limit, next_attempt
from broker_engine.decider.deadlines import TIMEOUT_CODES, DeadlineKind, next_deadline
from broker_engine.decider.definitions import MAX_DEPTH, is_too_deep
from broker_engine.decider.draft import Draft
from broker_engine.decider.moves import Cause
from broker_engine.decider.payload_schemas import payload_problem
from broker_engine.decider.retries import is_fatal
from broker_engine.decider.workflow_end import complete as complete
from broker_engine.decider.workflow_end import end_by_failure
from broker_engine.decider.workflow_end import end_workflow as end_workflow
from broker_engine.decider.workflow_end import finish as finish
from broker_engine.model.commands import TaskReported
from broker_engine.model.decision import ControlKind, Delay, Schedule
from broker_engine.model.definitions import TaskDef, TimeoutPolicy, iterations
from broker_engine.model.limits import START_WITHIN_MS
from broker_engine.model.state import TaskState, evolve
from broker_engine.model.status import (
    FACTS,
    STARTED,
    STATUSES_OF,
    TERMINAL_PHASES,
    Phase,
    ReasonCode,
    ReportStatus,
    TaskStatus,
    WaitingFor,
)


class Ending(NamedTuple):
    """How a report or time-out ends an attempt."""

    cause: Cause
    phase: Phase
    status: TaskStatus
    code: ReasonCode


ENDINGS: Mapping[ReportStatus, Ending] = {
    ReportStatus.COMPLETED: Ending(Cause.COMPLETED, Phase.SUCCEEDED, TaskStatus.COMPLETED, ReasonCode.WORKER_REPORTED),
    ReportStatus.FAILED: Ending(Cause.FAILED, Phase.FAILED, TaskStatus.FAILED, ReasonCode.RETRYABLE_ERROR),
    ReportStatus.FAILED_WITH_TERMINAL_ERROR: Ending(
        Cause.FAILED_TERMINALLY,
        Phase.FAILED,
        TaskStatus.FAILED_WITH_TERMINAL_ERROR,
        ReasonCode.TERMINAL_ERROR,
    ),
    ReportStatus.CANCELED: Ending(
        Cause.CANCELED_BY_WORKER, Phase.CANCELED, TaskStatus.CANCELED, ReasonCode.WORKER_REPORTED
    ),
}

#: Error codes of a worker that say that the function did not run.
INIT_CODES: Mapping[str, ReasonCode] = {code.value: code for code in ReasonCode if code.value.startswith("INIT_")}


def add(draft: Draft, task: TaskState, code: ReasonCode, *, delay_ms: int, reason: str | None = None) -> None:
    """Add an attempt that is handed out now or after its delay; one that cannot run ends as it appears."""
    problem = input_problem(draft, task)
    if problem is not None:
        refuse(draft, task, *problem)
        return
    if holds.is_held(draft, task):
        task = holds.as_held(draft, task)
        if delay_ms <= 0:
            draft.appear(task, code, reason)
            return
    if delay_ms <= 0 and task.attempt and children.is_child_step(draft.step(task)):
        _begin_child(draft, task, code, reason)
        return
    if delay_ms <= 0:
        draft.appear(_on_queue(draft, task), code, reason)
        _put_on_queue(draft, task.reference)
        return
    due_at_ms = draft.now_ms + delay_ms
    waiting_for = WaitingFor.RESUME if task.phase is Phase.PAUSED else WaitingFor.DELAY
    draft.appear(evolve(task, due_at_ms=due_at_ms, waiting_for=waiting_for), code, reason)
    draft.outputs.append(
        Delay(
            reference=task.reference,
            task_id=task.task_id,
            hand_out=task.hand_out,
            due_at_ms=due_at_ms,
        )
    )


def _begin_child(draft: Draft, task: TaskState, code: ReasonCode, reason: str | None) -> None:
    """A new attempt of a sub-workflow's task appears with its child."""
    running = children.begun(draft, task)
    if isinstance(running, str):
        refuse(draft, task, ReasonCode.TERMINAL_ERROR, running)
    else:
        draft.appear(running, code, reason)


def _begin_waiting_child(draft: Draft, task: TaskState) -> None:
    """The time of such an attempt that was there already has come."""
    running = children.begun(draft, task)
    if isinstance(running, str):
        ending = ENDINGS[ReportStatus.FAILED_WITH_TERMINAL_ERROR]
        _fail(draft, task, ending, running, {"waiting_for": None, "due_at_ms": None})
        return
    changes = {
        name: getattr(running, name)
        for name in ("output", "started_at_ms", "waiting_for", "delay_returned", "sub_workflow_id")
    }
    draft.move(task, Cause.CHILD_STARTED, Phase.RUNNING, ReasonCode.SUB_WORKFLOW_STARTED, due_at_ms=None, **changes)


def _on_queue(draft: Draft, task: TaskState) -> TaskState:
    """The task with its next hand-out; it waits for its topic when that is not known to exist (a record sent to a
    missing topic would stall the transaction for 15 s and abort it)."""
    if not draft.context.queues.exists(task.domain, task.task_type):
        return evolve(task, waiting_for=WaitingFor.TOPIC)
    waiting = slots.waiting(draft.execution, task, draft.context)
    if waiting is not None:
        return waiting
    return evolve(task, waiting_for=WaitingFor.WORKER, hand_out=task.hand_out + 1, handed_out_at_ms=draft.now_ms)


def _put_on_queue(draft: Draft, reference: str) -> None:
    task = draft.execution.tasks[reference]
    if task.waiting_for in slots.WAITS:
        draft.outputs.append(slots.request(task, draft.step(task), draft.workflow.tenant))
    if task.waiting_for is not WaitingFor.WORKER:
        return
    definition = draft.step(task).definition
    draft.outputs.append(
        Schedule(
            task=task,
            response_timeout_ms=definition.response_timeout_seconds * 1_000,
            timeout_ms=definition.timeout_seconds * 1_000,
            secrets=definition.runtime_metadata,
            start_before_ms=draft.now_ms + START_WITHIN_MS if task.holds_slot else None,
        )
    )


def hand_out(draft: Draft, task: TaskState, cause: Cause, code: ReasonCode) -> None:
    """Put a waiting task on its queue under the next hand-out number; an earlier one is void from now on.

    In a pause it is held instead, ready to go.
    """
    if holds.is_held(draft, task) and cause is not Cause.RESUMED:
        stop = holds.queue_stop(draft, task)
        why = holds.because(stop) if stop is not None else None
        holds.hold(draft, evolve(task, due_at_ms=None, delay_returned=False), code, why, by=task.paused_by)
        return
    if task.attempt and children.is_child_step(draft.step(task)):
        _begin_waiting_child(draft, task)
        return
    ready = _on_queue(draft, task)
    if ready.waiting_for in slots.WAITS and task.waiting_for in slots.WAITS:
        _ask_again(draft, ready)
        return
    draft.move(
        task,
        cause,
        Phase.QUEUED,
        code,
        waiting_for=ready.waiting_for,
        hand_out=ready.hand_out,
        handed_out_at_ms=ready.handed_out_at_ms,
        due_at_ms=None,
        delay_returned=False,
        holds_slot=ready.holds_slot,
        resource=ready.resource,
    )
    _put_on_queue(draft, task.reference)


def _ask_again(draft: Draft, task: TaskState) -> None:
    """Repeat the request for a slot. No transition: the task waits as before."""
    again = evolve(task, updated_at_ms=draft.now_ms)
    deadline = next_deadline(again, draft.step(task).definition)
    assert deadline is not None, "a task that waits for its slot asks again"
    draft.set_aside(evolve(again, next_deadline=deadline.kind.value, next_deadline_at_ms=deadline.at_ms))
    _put_on_queue(draft, task.reference)


def grant(draft: Draft, task: TaskState) -> None:
    """Hand a task out whose slot was granted."""
    is_there = draft.context.queues.exists(task.domain, task.task_type)
    if not is_there or holds.is_held(draft, task):  # gone, or paused, meanwhile: the slot goes back
        hand_out(draft, task, Cause.HANDED_OUT_AGAIN, ReasonCode.HANDED_OUT_AGAIN)
        return
    draft.move(
        task,
        Cause.HANDED_OUT_AGAIN,
        Phase.QUEUED,
        ReasonCode.HANDED_OUT,
        waiting_for=WaitingFor.WORKER,
        hand_out=task.hand_out + 1,
        handed_out_at_ms=draft.now_ms,
    )
    _put_on_queue(draft, task.reference)


def change_queue(draft: Draft, task: TaskState, code: ReasonCode, reason: str, **changes: Any) -> None:
    """Put a waiting task on the queue that ``changes`` (fields of TaskState) make of it; its hand-out is void.

    What waits for a delay goes there when that is over.
    """
    if task.waiting_for is WaitingFor.DELAY or task.waiting_for is WaitingFor.RESUME:
        draft.move(task, Cause.MOVED, task.phase, code, reason=reason, **changes)
        return
    if task.holds_slot:
        draft.outputs.append(slots.released(task, draft.now_ms))
    free = evolve(task, holds_slot=False, resource=None, handed_out_at_ms=None)
    ready = evolve(free, waiting_for=WaitingFor.TOPIC, **changes)
    stop = holds.queue_stop(draft, ready)
    if stop is None:
        ready = _on_queue(draft, ready)
    moved = draft.move(
        free,
        Cause.MOVED,
        task.phase,
        code,
        reason=reason,
        waiting_for=ready.waiting_for,
        # A number of its own even where nothing is handed out yet: no worker may start, and no grant may release, what
        # went out before.
        hand_out=task.hand_out + 1,
        handed_out_at_ms=ready.handed_out_at_ms,
        holds_slot=ready.holds_slot,
        resource=ready.resource,
        **changes,
    )
    if stop is None:
        _put_on_queue(draft, task.reference)
    else:  # it arrives on a paused queue
        holds.hold_for_queue(draft, moved, stop)


def expect_delay(draft: Draft, task: TaskState) -> None:
    """The delay record came back a moment early: wait for the rest by deadline."""
    definition = draft.step(task).definition
    returned = evolve(task, delay_returned=True)
    deadline = next_deadline(returned, definition)
    assert deadline is not None, "a task that waits has a clock"
    draft.set_aside(evolve(returned, next_deadline=deadline.kind.value, next_deadline_at_ms=deadline.at_ms))


def apply_report(draft: Draft, task: TaskState, report: TaskReported) -> None:
    """End the attempt as its worker (or an operator) says."""
    ending, output, reason = ENDINGS[report.status], report.output, report.reason
    definition = draft.step(task).definition
    if report.status is ReportStatus.FAILED and is_fatal(definition, report.error_code):
        ending = ENDINGS[ReportStatus.FAILED_WITH_TERMINAL_ERROR]
    if ending.phase is Phase.FAILED:
        ending = ending._replace(code=_init_code(task, report) or ending.code)
    problem = None if output is None else output_problem(output, draft.context.max_payload_bytes)
    if problem is None and report.status is ReportStatus.COMPLETED and definition.enforce_schema:
        broken = payload_problem(definition.output_schema, output or b"{}")
        problem = (ReasonCode.SCHEMA_VIOLATION, f"the output breaks outputSchema at {broken}") if broken else None
    if problem is not None:
        code, reason = problem
        ending = ENDINGS[ReportStatus.FAILED_WITH_TERMINAL_ERROR]._replace(code=code)
        if report.status is ReportStatus.COMPLETED:
            ending = ending._replace(cause=Cause.COMPLETED)
        output = None
    changes: dict[str, Any] = {
        "output": output,
        "sequence": report.sequence,
        "worker_id": report.worker_id or task.worker_id,
        "error_code": report.error_code,
        "waiting_for": None,
    }
    if ending.status is TaskStatus.COMPLETED:
        draft.ended.append(draft.move(task, ending.cause, ending.phase, ending.code, reason=reason, **changes))
    else:
        _fail(draft, task, ending, reason, changes)


def _init_code(task: TaskState, report: TaskReported) -> ReasonCode | None:
    """What failed before the function ran, if it did not get that far (B5)."""
    code = INIT_CODES.get(report.error_code or "")
    return ReasonCode.INIT_SETUP if code is None and task.phase is Phase.STARTING else code


def refuse_output(draft: Draft, task: TaskState, code: ReasonCode, reason: str) -> None:
    """End a running attempt whose interim output cannot be kept."""
    ending = ENDINGS[ReportStatus.FAILED_WITH_TERMINAL_ERROR]._replace(code=code)
    _fail(draft, task, ending, reason, {"output": None, "waiting_for": None})


def output_problem(output: bytes, limit: int) -> tuple[ReasonCode, str] | None:
    """Why an output cannot be kept: the steps after it would break on it."""
    if len(output) > limit:
        return ReasonCode.PAYLOAD_TOO_LARGE, f"the output has {len(output)} bytes, the limit is {limit}"
    try:
        document = orjson.loads(output)
    except orjson.JSONDecodeError as error:
        return ReasonCode.TERMINAL_ERROR, f"the output is not valid JSON: {error}"
    if not isinstance(document, dict):
        return ReasonCode.TERMINAL_ERROR, f"the output must be a JSON object, not {type(document).__name__}"
    if is_too_deep(document, output):
        return ReasonCode.TERMINAL_ERROR, f"the output is nested more than {MAX_DEPTH} levels deep"
    return None


def time_out(draft: Draft, task: TaskState, kind: DeadlineKind) -> None:
    """A clock of a live task ran out. The response time-out always retries; the others follow ``timeoutPolicy``."""
    definition = draft.step(task).definition
    policy = TimeoutPolicy.RETRY if kind is DeadlineKind.RESPONSE else definition.timeout_policy
    reason = _timeout_reason(kind, definition)
    if policy is TimeoutPolicy.ALERT_ONLY:
        alerted = ",".join(filter(None, (task.alerted, kind.value)))
        draft.alert(task, alerted, reason)
        return
    ending = Ending(Cause.TIMED_OUT, Phase.TIMED_OUT, TaskStatus.TIMED_OUT, TIMEOUT_CODES[kind])
    may_retry = policy is TimeoutPolicy.RETRY and kind is not DeadlineKind.TOTAL
    _fail(draft, task, ending, reason, {"waiting_for": None}, may_retry=may_retry)


def lose(draft: Draft, task: TaskState, reason: str) -> None:
    """The worker of a running attempt is gone: timed out, and retried as after a response time-out."""
    ending = Ending(Cause.TIMED_OUT, Phase.TIMED_OUT, TaskStatus.TIMED_OUT, ReasonCode.WORKER_LOST)
    _fail(draft, task, ending, reason, {"waiting_for": None})


def end_canceled(draft: Draft, task: TaskState) -> None:
    """The worker of an attempt that was asked to stop has stopped."""
    end_badly(draft, task, ENDINGS[ReportStatus.CANCELED], None, {"waiting_for": None})


def end_badly(
    draft: Draft,
    task: TaskState,
    ending: Ending,
    reason: str | None,
    changes: Mapping[str, Any],  # fields of TaskState
    *,
    may_retry: bool = True,
) -> None:
    """End a live attempt that did not succeed, from outside this module."""
    _fail(draft, task, ending, reason, changes, may_retry=may_retry)


def _timeout_reason(kind: DeadlineKind, definition: TaskDef) -> str:
    seconds = {
        DeadlineKind.TOTAL: definition.total_timeout_seconds,
        DeadlineKind.TASK: definition.timeout_seconds,
        DeadlineKind.POLL: definition.poll_timeout_seconds,
        DeadlineKind.RESPONSE: definition.response_timeout_seconds,
    }[kind]
    what = {
        DeadlineKind.TOTAL: "all attempts together took longer than totalTimeoutSeconds",
        DeadlineKind.TASK: "the attempt took longer than timeoutSeconds",
        DeadlineKind.POLL: "no worker took the task within pollTimeoutSeconds",
        DeadlineKind.RESPONSE: "the worker gave no sign of life within responseTimeoutSeconds",
    }[kind]
    return f"{what} ({seconds} s)"


def _fail(
    draft: Draft,
    task: TaskState,
    ending: Ending,
    reason: str | None,
    changes: Mapping[str, Any],  # fields of TaskState
    *,
    may_retry: bool = True,
) -> None:
    """End an attempt that did not succeed: retry it, count it as done (optional), or end the workflow."""
    step = draft.step(task)
    if task.phase is Phase.CANCELING:
        ending, reason = _as_canceled(task, ending, reason)
    elif task.phase in STARTED and ending.cause is Cause.TIMED_OUT and not task.is_in_engine:
        draft.outputs.append(controls.tell(task, ControlKind.SUPERSEDED, reason))
    retry = next_attempt(draft, task, step) if may_retry and FACTS[ending.status].is_retriable else None
    limit = missed_limit(draft, task, step.definition, retry.delay_ms) if retry is not None else None
    if retry is not None and limit is None:
        ended = draft.move(
            task,
            ending.cause,
            ending.phase,
            ending.code,
            status=ending.status,
            reason=reason,
            **changes,
        )
        draft.mark_retried(ended)
        again = evolve(retry.task, reason_code=ReasonCode.RETRYABLE_ERROR, reason=ended.reason)
        add(draft, again, ReasonCode.RETRYABLE_ERROR, delay_ms=retry.delay_ms, reason=reason)
        return
    code = limit or ending.code
    if step.optional:
        done = draft.move(
            task,
            ending.cause,
            Phase.SUCCEEDED,
            ReasonCode.OPTIONAL_FAILED if code is ending.code else code,
            status=TaskStatus.COMPLETED_WITH_ERRORS,
            reason=reason or f"the optional task ended {ending.status}",
            **changes,
        )
        if step.body:
            _end_body(draft, done)
        draft.ended.append(done)
        return
    ended = draft.move(task, ending.cause, ending.phase, code, status=ending.status, reason=reason, **changes)
    if step.permissive:
        if step.body:
            _end_body(draft, ended)
        draft.ended.append(ended)
        return
    end_by_failure(draft, ended, code)


def _end_body(draft: Draft, loop: TaskState) -> None:
    """Cancel what still runs of a loop that has ended in some other way than by its own end."""
    definition = draft.execution.definition
    node, suffix = definition.locate(loop.reference)
    depth, outer = len(node.loops), iterations(suffix)
    for row in draft.execution.live_tasks():
        inner, own = definition.locate(row.reference)
        if inner.loops[: depth + 1] == (*node.loops, node.step.reference) and iterations(own)[:depth] == outer:
            reason = f"loop {loop.reference} ended {loop.status}"
            if row.phase in STARTED and not row.is_in_engine:
                draft.outputs.append(controls.tell(row, ControlKind.CANCEL, reason))
            code = ReasonCode.WORKFLOW_ENDED  # ended with what it belongs to
            draft.move(row, Cause.WORKFLOW_ENDS, Phase.CANCELED, code, reason=reason, waiting_for=None)
    draft.execution = rounds.forget(draft.execution, loop)


def _as_canceled(task: TaskState, ending: Ending, reason: str | None) -> tuple[Ending, str | None]:
    """How an attempt ends that was asked to stop: canceled, whatever its worker (or its clock) says."""
    told = "" if ending.status is TaskStatus.CANCELED else f"; it ended {ending.status}: {reason or 'no reason given'}"
    ended = Ending(ending.cause, Phase.CANCELED, TaskStatus.CANCELED, ReasonCode.CANCEL_REQUESTED)
    return ended, f"{task.cancel_reason}{told}"


def input_problem(draft: Draft, task: TaskState) -> tuple[ReasonCode, str] | None:
    """Why a task cannot run with its resolved input."""
    if len(task.input) > draft.context.max_payload_bytes:
        limit = draft.context.max_payload_bytes
        return ReasonCode.PAYLOAD_TOO_LARGE, f"the resolved input has {len(task.input)} bytes, the limit is {limit}"
    definition = draft.step(task).definition
    if definition.enforce_schema:
        broken = payload_problem(definition.input_schema, task.input)
        if broken is not None:
            return ReasonCode.SCHEMA_VIOLATION, f"the input breaks inputSchema at {broken}"
    return None


def refuse(draft: Draft, task: TaskState, code: ReasonCode, reason: str) -> None:
    """A new task that cannot run ends as it appears."""
    step = draft.step(task)
    phase = Phase.SUCCEEDED if step.optional else Phase.FAILED
    ended = evolve(
        task,
        phase=phase,
        status=TaskStatus.COMPLETED_WITH_ERRORS if step.optional else TaskStatus.FAILED_WITH_TERMINAL_ERROR,
        input=b"{}" if code is ReasonCode.PAYLOAD_TOO_LARGE else task.input,
        ended_at_ms=draft.now_ms,
        reason_code=code,
        reason=reason,
    )
    ended = draft.appear(ended, code, reason)
    if step.optional or step.permissive:
        draft.ended.append(ended)
    else:
        end_by_failure(draft, ended, code)


assert all(
    ending.phase in TERMINAL_PHASES and ending.status in STATUSES_OF[ending.phase] for ending in ENDINGS.values()
)
