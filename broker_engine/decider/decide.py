"""The decider: one function from (state, command, context) to a decision.

Read ``decide`` first: it looks at what the command is about, leaves everything late or repeated alone (same state, an
``ignored`` reason that becomes an event), and hands the rest to one function per command. Nothing here knows a clock,
a topic or a thread; time is the log time of the command, ids are derived, definitions come from the snapshot that the
workflow took when it started. What a task may do is in ``moves.py``; when it runs out of time in ``deadlines.py``; how
long a retry waits in ``retries.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import assert_never

import orjson
from immutables import Map

from broker_engine.decider import (
    cancels,
    children,
    deadlines,
    failures,
    flow,
    grants,
    losses,
    messages,
    pauses,
    progress,
    queue_pauses,
    slots,
    steps,
    transfers,
    walk,
)
from broker_engine.decider.context import MAX_REMEMBERED, Context
from broker_engine.decider.deadlines import DeadlineKind
from broker_engine.decider.definitions import MAX_DEPTH, is_too_deep
from broker_engine.decider.documents import workflow_input
from broker_engine.decider.domains import domains_problem
from broker_engine.decider.draft import MAX_REASON, Draft, reply
from broker_engine.decider.identity import workflow_id_for
from broker_engine.decider.moves import Cause
from broker_engine.decider.operations import carry_out
from broker_engine.decider.payload_schemas import payload_problem
from broker_engine.errors import BadRequest, NotFound
from broker_engine.model.commands import (
    AllowStarts,
    AnyCommand,
    AskForSlot,
    AttemptPaused,
    CancelTask,
    ChildRunsAgain,
    ClearCap,
    ContinueLoop,
    DeadlineReached,
    DelayDue,
    DeleteSchedule,
    DeleteTaskDef,
    DeleteWorkflowDef,
    ExtendLease,
    GiveSlotBack,
    GrantExpired,
    IdempotencyStrategy,
    MoveTask,
    PauseSchedule,
    PauseTask,
    PauseWorkflow,
    PushMessage,
    PutSchedule,
    PutTaskDef,
    PutWorkflowDef,
    QueueReady,
    ReleaseWorkflow,
    RemoveWorkflow,
    RerouteTask,
    RerunWorkflow,
    ResetCallbacks,
    RestartWorkflow,
    ResumeSchedule,
    ResumeTask,
    ResumeWorkflow,
    RetryWorkflow,
    ScheduleDue,
    ScheduleRefused,
    SetCap,
    SkipTask,
    SlotGranted,
    StartWorkflow,
    StopStarts,
    SubWorkflowEnded,
    TaskProgressed,
    TaskReported,
    TaskStarted,
    TaskStep,
    TellSlotStarted,
    TerminateWorkflow,
    Tick,
    UpdateVariables,
    WorkerLost,
)
from broker_engine.model.decision import Confirm, Decision, Delay, Output, RememberStart, Send, Transition
from broker_engine.model.definitions import TimeoutPolicy, WorkflowDef
from broker_engine.model.schedules import schedule_of
from broker_engine.model.state import Execution, TaskState, WorkflowState
from broker_engine.model.status import (
    STARTED,
    Phase,
    ReasonCode,
    WaitingFor,
    WorkflowStatus,
)

#: What the id and the labels of a workflow may be long together; they stand in many records.
MAX_LABEL = 1_000
#: A delay that fires this much early (clocks differ) is not sent again: the heap waits for the rest.
EARLY_DELAY_MS = 1_000


def decide(execution: Execution | None, command: AnyCommand, context: Context) -> Decision:
    """The next state and everything to be written because of one command.

    Args:
        execution: the workflow named by ``command.key``, None when there is none.
        command: what is asked, with the log time of its record.
        context: what the shell looked up.

    Raises:
        InvariantViolation: a bug of ours; the shell quarantines the workflow.
    """
    if isinstance(command, StartWorkflow) and (execution is None or _repeated(execution, command) is None):
        return _start(execution, command, context)
    if execution is None:
        return _unknown(command)
    remembered = _repeated(execution, command)
    if remembered is not None:
        return remembered
    if isinstance(command, RemoveWorkflow):
        return _remove(execution, command)
    draft = Draft(execution, command, context)
    match command:
        case TaskStarted():
            ignored = _started(draft, command)
        case TaskReported():
            ignored = _reported(draft, command)
        case TaskProgressed():
            ignored = progress.progressed(draft, command, _current(draft, command))
        case TaskStep():
            ignored = steps.step_told(draft, command, _current(draft, command))
        case ExtendLease():
            ignored = progress.extend_lease(draft, command)
        case ResetCallbacks():
            ignored = progress.reset_callbacks(draft, command)
        case AttemptPaused():
            ignored = pauses.attempt_paused(draft, command, _current(draft, command))
        case CancelTask():
            ignored = cancels.cancel(draft, command)
        case PauseTask():
            ignored = pauses.pause_task(draft, command)
        case ResumeTask():
            ignored = pauses.resume_task(draft, command)
        case PauseWorkflow():
            ignored = pauses.pause_workflow(draft, command)
        case ResumeWorkflow():
            ignored = pauses.resume_workflow(draft, command)
        case DelayDue():
            ignored = _delay_due(draft, command)
        case QueueReady():
            ignored = _queue_ready(draft, command)
        case SubWorkflowEnded():
            if command.task_id == children.NO_TASK:
                ignored = failures.refused(draft, command)
            else:
                ignored = walk.sub_workflow_ended(draft, command, _waiting_for_child(draft, command))
        case RetryWorkflow() | RerunWorkflow() | RestartWorkflow() | ChildRunsAgain() | SkipTask() | UpdateVariables():
            ignored = carry_out(draft, command)
        case PushMessage():
            ignored = messages.push(draft, command)
        case ContinueLoop():
            ignored = walk.continue_loop(draft, command, _current(draft, command))
        case SlotGranted():
            ignored = grants.granted(draft, command, _current(draft, command))
        case GrantExpired():
            ignored = grants.expired(draft, command, _current(draft, command))
        case MoveTask():
            ignored = transfers.move(draft, command, _current(draft, command))
        case RerouteTask():
            ignored = transfers.reroute(draft, command, _current(draft, command))
        case DeadlineReached():
            ignored = _deadline(draft)
        case WorkerLost():
            ignored = losses.worker_lost(draft, command)
        case TerminateWorkflow():
            ignored = _terminate(draft, command)
        case ReleaseWorkflow():
            ignored = _release(draft)
        case (
            StartWorkflow()
            | Tick()
            | PutTaskDef()
            | DeleteTaskDef()
            | PutWorkflowDef()
            | DeleteWorkflowDef()
            | StopStarts()
            | AllowStarts()
            | SetCap()
            | ClearCap()
            | PutSchedule()
            | DeleteSchedule()
            | PauseSchedule()
            | ResumeSchedule()
            | ScheduleDue()
            | ScheduleRefused()
            | AskForSlot()
            | TellSlotStarted()
            | GiveSlotBack()
        ):
            raise AssertionError(f"{type(command).__name__} is not decided here")
        case _:
            assert_never(command)
    walk.go_on(draft)
    return draft.decision(ignored=ignored)


def _repeated(execution: Execution, command: AnyCommand) -> Decision | None:
    """The stored answer of a client command that was carried out before; 429 when no more can be remembered."""
    if command.command_id is None:
        return None
    remembered = execution.workflow.remembered
    for entry in remembered:
        if entry.command_id == command.command_id:
            answers = (reply(command, entry.status, entry.message),) if command.reply_to else ()
            return Decision(execution=execution, outputs=answers, ignored="repeated command")
    if len(remembered) >= MAX_REMEMBERED and sum(e.expires_at_ms > command.at_ms for e in remembered) >= MAX_REMEMBERED:
        return _refused(
            execution,
            command,
            429,
            f"{MAX_REMEMBERED} commands are remembered already; try again later",
        )
    return None


def _refused(execution: Execution | None, command: AnyCommand, status: int, message: str) -> Decision:
    answers: tuple[Output, ...] = (reply(command, status, message),) if command.reply_to else ()
    if isinstance(command, StartWorkflow | RetryWorkflow) and command.parent is not None and status >= 400:
        answers += (children.not_resumed(command, command.parent, message),)
    if isinstance(command, StartWorkflow) and status >= 400 and (schedule := schedule_of(command.operator)) is not None:
        told = ScheduleRefused(key=schedule, operator=f"workflow:{command.key}", reason=message[:MAX_REASON])
        answers += (Send(command=told),)
    return Decision(execution=execution, outputs=answers, ignored=message)


def _unknown(command: AnyCommand) -> Decision:
    """A command for a workflow that does not exist (any more)."""
    message = f"there is no workflow {command.key}"
    if isinstance(command, SlotGranted | GrantExpired):
        back = slots.returned(command.task_id, command.hand_out)
        return Decision(execution=None, outputs=(back,), ignored=message)
    if isinstance(command, TaskStarted) and command.wants_confirmation:
        return Decision(
            execution=None,
            outputs=(_confirm(command, accepted=False, reason=message),),
            ignored=message,
        )
    return _refused(None, command, 404, message)


# --- starting -------------------------------------------------------------------------------------------------------


def _start(existing: Execution | None, command: StartWorkflow, context: Context) -> Decision:
    if command.expires_at_ms and command.expires_at_ms <= command.at_ms:  # waiting in its lane does not count
        return _refused(existing, command, 409, "the command expired before it reached the log; send it again")
    refusal = _refusal(command, context)
    if refusal is not None:
        return _refused(existing, command, *refusal)
    run = 0
    if existing is not None or context.retired_run is not None:
        if existing is not None and not _is_own(existing.workflow, command):
            return _refused(existing, command, 409, f"its id {command.key} is taken by a workflow of somebody else's")
        status = existing.workflow.status if existing else None
        verdict = _existing(command, status)
        if verdict is not None:
            return _refused(existing, command, *verdict)
        run = (existing.workflow.run if existing else context.retired_run or 0) + 1
    try:
        definition = _definition(command, context)
    except BadRequest as error:
        return _refused(existing, command, error.status, str(error))
    stop = context.definitions.stop_of(definition.name, command.tenant)
    if stop is not None:
        because = f": {stop.reason}" if stop.reason else ""
        return _refused(existing, command, 409, f"{stop.operator} has stopped {stop.about} from starting{because}")
    given = workflow_input(definition, command.input)
    if len(given) > context.max_payload_bytes:
        return _refused(existing, command, 413, _too_large("input", len(given), context))
    broken = payload_problem(definition.input_schema, given) if definition.enforce_schema else None
    if broken is not None:
        return _refused(existing, command, 400, f"the input breaks the workflow's inputSchema at {broken}")
    parent = command.parent if command.parent and command.parent.task_id != children.NO_TASK else None
    workflow = WorkflowState(
        status=WorkflowStatus.RUNNING,
        workflow_id=command.key,
        incarnation=existing.workflow.incarnation if existing else context.position,
        run=run,
        name=definition.name,
        version=definition.version,
        definition_hash=definition.content_hash,
        input=given,
        variables=orjson.dumps(definition.variables) if definition.variables else b"{}",
        correlation_id=command.correlation_id,
        priority=command.priority,
        created_by=command.created_by,
        source=command.source,
        idempotency_key=command.idempotency_key,
        created_at_ms=context.now_ms,
        updated_at_ms=context.now_ms,
        remembered=existing.workflow.remembered if existing else (),
        tenant=command.tenant,
        deadline_at_ms=command.deadline_at_ms,
        task_to_domain=command.task_to_domain,
        parent_workflow_id=parent.workflow_id if parent else None,
        parent_reference=parent.reference if parent else None,
        parent_task_id=parent.task_id if parent else None,
    )
    empty = Execution(workflow=workflow, tasks=Map(), definition=definition)
    draft = Draft(empty, command, context, is_new=True)
    draft.tell_workflow(WorkflowStatus.RUNNING, ReasonCode.WORKFLOW_STARTED)
    if command.idempotency_key is not None:
        draft.outputs.append(
            RememberStart(
                workflow_id=command.key,
                name=command.name,
                idempotency_key=command.idempotency_key,
                run=run,
            )
        )
    walk.begin(draft, definition.tasks, "", ReasonCode.WORKFLOW_STARTED)
    walk.go_on(draft)
    draft.answer(200, command.key)
    return draft.decision()


def _refusal(command: StartWorkflow, context: Context) -> tuple[int, str] | None:
    """What is wrong with the request itself."""
    if not 0 <= command.priority <= 99:
        return 400, f"priority must be 0 to 99, not {command.priority}"
    labels = (command.key, command.correlation_id, command.idempotency_key, command.created_by, command.source)
    if len("".join(filter(None, (*labels, command.tenant)))) > MAX_LABEL:
        return 400, (
            f"workflowId, correlationId, idempotencyKey, createdBy, source and tenant have more than the {MAX_LABEL} "
            f"characters that are allowed for them together: they are kept in every record"
        )
    if command.deadline_at_ms is not None and command.deadline_at_ms <= context.now_ms:
        late_ms = context.now_ms - command.deadline_at_ms
        return 400, f"deadlineAt {command.deadline_at_ms} has passed {late_ms} ms ago: give a later moment or none"
    wrong = domains_problem(command.task_to_domain) if command.task_to_domain is not None else None
    if wrong is not None:
        return 400, wrong
    if len(command.input) > context.max_payload_bytes:
        return 413, _too_large("input", len(command.input), context)
    if command.idempotency_key is not None and command.key != workflow_id_for(command.name, command.idempotency_key):
        return (
            400,
            "a chosen workflowId and an idempotencyKey exclude each other: the key already gives the id",
        )
    try:
        document = orjson.loads(command.input)
    except orjson.JSONDecodeError:
        document = None
    if not isinstance(document, Mapping):
        return 400, "input must be a JSON object"
    if is_too_deep(document, command.input):
        return 400, f"input is nested more than {MAX_DEPTH} levels deep"
    return None


def _too_large(what: str, size: int, context: Context) -> str:
    return (
        f"the {what} has {size} bytes, the limit is {context.max_payload_bytes}: "
        f"store it elsewhere and pass a reference"
    )


def _existing(command: StartWorkflow, status: WorkflowStatus | None) -> tuple[int, str] | None:
    """What a start meets whose workflow id is taken; None when a new run may begin (D10, D28)."""
    is_running = status is not None and not status.is_terminal
    match command.strategy:
        case IdempotencyStrategy.RETURN_EXISTING:
            return 200, command.key
        case IdempotencyStrategy.FAIL_ON_RUNNING:
            return (409, f"workflow {command.key} is {status}: wait until it ends") if is_running else None
        case IdempotencyStrategy.FAIL:
            return (
                409,
                f"workflow {command.key} exists already ({status or 'ended and retired'}): choose another id",
            )
        case _:
            assert_never(command.strategy)


def _is_own(existing: WorkflowState, command: StartWorkflow) -> bool:
    """Whether the workflow that a task's start meets under the id that follows from it is that task's."""
    if command.parent is None:
        return True
    if command.parent.task_id == children.NO_TASK:
        return existing.source == command.source
    return existing.parent_task_id == command.parent.task_id


def _definition(command: StartWorkflow, context: Context) -> WorkflowDef:
    if command.definition is not None:
        definition = context.definitions.inline(command.definition)
    else:
        known = context.definitions.workflow_def(command.name, command.version)
        if known is None:
            versions = context.definitions.workflow_versions(command.name)
            there = f"; there are versions {', '.join(map(str, versions))}" if versions else ""
            version = "" if command.version is None else f" version {command.version}"
            raise NotFound(f"there is no workflow definition {command.name}{version}{there}: register it first")
        definition = known
    return definition


# --- workers --------------------------------------------------------------------------------------------------------


def _waiting_for_child(draft: Draft, command: SubWorkflowEnded) -> TaskState | str:
    """The task that a sub-workflow's end is about: the one that started it, or the one that waits for it again."""
    row = draft.execution.tasks.get(command.reference)
    waits = row is not None and not row.is_terminal and row.sub_workflow_id is not None
    if row is not None and waits and command.operator == f"workflow:{row.sub_workflow_id}":
        return row
    return _current(draft, command)


def _current(
    draft: Draft,
    command: TaskStarted
    | TaskReported
    | TaskProgressed
    | TaskStep
    | AttemptPaused
    | DelayDue
    | QueueReady
    | SlotGranted
    | GrantExpired
    | MoveTask
    | RerouteTask
    | SubWorkflowEnded
    | ContinueLoop,
) -> TaskState | str:
    """The task that a command is about, or why the command belongs to the past."""
    task = draft.execution.tasks.get(command.reference)
    if task is None:
        return f"no task {command.reference} in this run"
    if task.task_id != command.task_id:
        return f"task {command.task_id} is not the latest attempt of {command.reference}"
    if task.is_terminal:
        return f"the task is {task.status} already"
    if draft.workflow.status.is_terminal:
        return f"the workflow is {draft.workflow.status} already"
    return task


def _confirm(command: TaskStarted, *, accepted: bool, reason: str = "") -> Confirm:
    return Confirm(
        worker_id=command.worker_id,
        task_id=command.task_id,
        hand_out=command.hand_out,
        lease=command.offset,
        accepted=accepted,
        reason=reason,
    )


def _started(draft: Draft, command: TaskStarted) -> str | None:
    task = _current(draft, command)
    reason = task if isinstance(task, str) else _void_start(task, command)
    if reason is not None or isinstance(task, str):
        if command.wants_confirmation:
            draft.outputs.append(_confirm(command, accepted=False, reason=str(reason)))
        return reason
    if command.wants_confirmation and (why := queue_pauses.take_back(draft, task)) is not None:
        draft.outputs.append(_confirm(command, accepted=False, reason=why))
        return None
    is_takeover = task.phase in STARTED
    if is_takeover and task.worker_id is not None and task.lease is not None:
        draft.outputs.append(
            Confirm(
                worker_id=task.worker_id,
                task_id=task.task_id,
                hand_out=task.hand_out,
                lease=task.lease,
                accepted=False,
                reason="superseded",
            )
        )
    draft.move(
        task,
        Cause.STARTED,
        Phase.STARTING if command.prepares else Phase.RUNNING,
        ReasonCode.LEASE_TAKEN_OVER if is_takeover else ReasonCode.WORKER_STARTED,
        lease=command.offset,
        sequence=0,
        worker_id=command.worker_id,
        poll_count=task.poll_count + 1,
        started_at_ms=task.started_at_ms if task.started_at_ms is not None else draft.now_ms,
        waiting_for=None,
        heartbeat_at_ms=None,
    )
    if task.holds_slot and not is_takeover:
        draft.outputs.append(slots.started(task, draft.now_ms))
    has_more = is_takeover and bool(task.steps or task.checkpoint)
    if command.wants_confirmation or has_more:
        confirm = _confirm(command, accepted=True)
        draft.outputs.append(replace(confirm, steps=task.steps, checkpoint=task.checkpoint) if has_more else confirm)
    return None


def _void_start(task: TaskState, command: TaskStarted) -> str | None:
    if command.hand_out != task.hand_out or not task.hand_out:
        return f"hand-out {command.hand_out} is void, the current one is {task.hand_out}"
    if task.phase is not Phase.QUEUED and task.phase not in STARTED:
        return f"the task is {task.phase}, not on its queue"
    if task.waiting_for in slots.WAITS:
        return f"hand-out {command.hand_out} is void, the task waits for its next slot"
    if progress.waits_for_callback(task):
        return f"hand-out {command.hand_out} was put away by its worker"
    return None


def _reported(draft: Draft, command: TaskReported) -> str | None:
    task = _current(draft, command)
    if isinstance(task, str):
        return _late(draft, command, task)
    if command.lease is not None:
        if command.hand_out != task.hand_out or task.lease != command.lease:
            return _late(draft, command, f"lease {command.lease} is not the current one ({task.lease})")
        if command.sequence <= task.sequence:
            return _late(draft, command, f"report {command.sequence} was applied already")
    if not walk.take_result(draft, task, command):
        flow.apply_report(draft, task, command)
    draft.answer(200, task.task_id)
    return None


def _late(draft: Draft, command: TaskReported, reason: str) -> str:
    """What came too late; whoever waits for an answer gets the usual one."""
    if command.reply_to is not None:
        draft.outputs.append(reply(command, 200, command.task_id))
    return f"{command.status} with {len(command.output or b'')} bytes of output: {reason}"


# --- delays, queues, deadlines --------------------------------------------------------------------------------------


def _delay_due(draft: Draft, command: DelayDue) -> str | None:
    task = _current(draft, command)
    if isinstance(task, str):
        return task
    if task.phase is Phase.PAUSED:
        return pauses.delay_over(draft, command, task)
    if task.due_at_ms is None or task.phase not in deadlines.WAITING_PHASES:
        return f"the task is {task.phase}, it waits for no delay"
    rest_ms = task.due_at_ms - draft.now_ms
    if rest_ms <= 0:
        flow.hand_out(draft, task, Cause.DELAY_OVER, ReasonCode.DELAY_OVER)
        return None
    if command.due_at_ms != task.due_at_ms or rest_ms > EARLY_DELAY_MS:
        draft.outputs.append(
            Delay(
                reference=task.reference,
                task_id=task.task_id,
                hand_out=task.hand_out,
                due_at_ms=task.due_at_ms,
            )
        )
        return f"the delay is not over for another {rest_ms} ms and was sent again"
    if task.delay_returned:
        return f"the delay is not over for another {rest_ms} ms"
    flow.expect_delay(draft, task)
    return None


def _queue_ready(draft: Draft, command: QueueReady) -> str | None:
    task = _current(draft, command)
    if isinstance(task, str):
        return task
    if task.waiting_for is not WaitingFor.TOPIC:
        return queue_pauses.follow(draft, task)
    flow.hand_out(draft, task, Cause.HANDED_OUT_AGAIN, ReasonCode.TOPIC_READY)
    return None


def _deadline(draft: Draft) -> str | None:
    """Every clock of the workflow that has run out, the workflow's own first."""
    execution, fired = draft.execution, False
    promised_ms = execution.workflow.deadline_at_ms
    if promised_ms is not None and promised_ms <= draft.now_ms and not execution.workflow.status.is_terminal:
        reason = "the workflow did not end before its deadlineAt"
        flow.end_workflow(draft, WorkflowStatus.TIMED_OUT, ReasonCode.DEADLINE_EXCEEDED, reason)
        return None
    due_ms = deadlines.workflow_timeout_ms(execution)
    if due_ms is not None and due_ms <= draft.now_ms:
        fired = True
        if execution.definition.timeout_policy is TimeoutPolicy.TIME_OUT_WF:
            reason = f"the workflow did not end within {execution.definition.timeout_seconds} s"
            flow.end_workflow(draft, WorkflowStatus.TIMED_OUT, ReasonCode.WORKFLOW_TIMEOUT, reason)
            return None
        draft.change_workflow(timeout_alerted=True)
        draft.tell_workflow(draft.workflow.status, ReasonCode.TIMEOUT_ALERT, "workflow time-out")
    for reference in [task.reference for task in execution.live_tasks()]:
        while not draft.workflow.status.is_terminal:
            task = draft.execution.tasks[reference]
            passed = deadlines.passed_deadline(task, draft.step(task).definition, draft.now_ms)
            if passed is None:
                break
            fired = True
            if passed.kind is DeadlineKind.DELAY:
                code = ReasonCode.DELAY_OVER if task.delay_returned else ReasonCode.DELAY_LOST
                flow.hand_out(draft, task, Cause.DELAY_OVER, code)
            elif passed.kind is DeadlineKind.HAND_OUT:
                flow.hand_out(draft, task, Cause.HANDED_OUT_AGAIN, ReasonCode.HANDED_OUT_AGAIN)
            elif passed.kind is DeadlineKind.WAIT:
                walk.wait_over(draft, task)
            else:
                flow.time_out(draft, task, passed.kind)
    return None if fired else "no deadline has passed"


# --- operators ------------------------------------------------------------------------------------------------------


def _terminate(draft: Draft, command: TerminateWorkflow) -> str | None:
    status = draft.workflow.status
    if status is WorkflowStatus.TERMINATED:
        draft.answer(200, "it is TERMINATED already")
        return "the workflow is TERMINATED already"
    if status.is_terminal:
        message = f"the workflow is {status} already and cannot be terminated"
        draft.answer(409, message)
        return message
    flow.end_workflow(
        draft,
        WorkflowStatus.TERMINATED,
        ReasonCode.CANCEL_REQUESTED,
        command.reason or "terminated on request",
    )
    draft.answer(200, draft.workflow.workflow_id)
    return None


def _remove(execution: Execution, command: RemoveWorkflow) -> Decision:
    status = execution.workflow.status
    if not status.is_terminal:
        message = f"the workflow is {status}: only one that has ended can be removed; terminate it first"
        return _refused(execution, command, 409, message)
    answers: tuple[Output, ...] = (reply(command, 200, command.key),) if command.reply_to else ()
    told = Transition(status=status, reason_code=ReasonCode.WORKFLOW_REMOVED, reason=f"removed by {command.operator}")
    return Decision(execution=execution, transitions=(told,), outputs=answers, forgets=True)


def _release(draft: Draft) -> str | None:
    if draft.workflow.quarantine is None:
        draft.answer(409, "the workflow is not in quarantine")
        return "the workflow is not in quarantine"
    draft.change_workflow(quarantine=None)
    draft.tell_workflow(draft.workflow.status, ReasonCode.RELEASED)
    draft.answer(200, draft.workflow.workflow_id)
    return None


def quarantine(execution: Execution, problem: str, now_ms: int) -> Execution:
    """The state of a workflow whose decision failed: still, with the reason, until it is released."""
    workflow = execution.workflow._replace(quarantine=problem[:500], updated_at_ms=now_ms)
    return execution._replace(workflow=workflow)
