"""Commands to records and back. ``DECODERS`` has one line per command class that may stand on ``<ns>.commands``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from broker_engine.errors import DecodeError
from broker_engine.model.commands import (
    AllowStarts,
    AnyCommand,
    AskForSlot,
    AttemptPaused,
    CancelTask,
    ChildRunsAgain,
    ClearCap,
    Command,
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
    Parent,
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
    TaskCommand,
    TaskProgressed,
    TaskReported,
    TaskRequest,
    TaskStarted,
    TaskStep,
    TellSlotStarted,
    TerminateWorkflow,
    Tick,
    UpdateVariables,
    WorkerLost,
)
from broker_engine.model.slots import Line, ReleaseSlot, RequestSlot, SlotStarted
from broker_engine.model.status import StepStatus
from broker_engine.wire.codecs import COMMAND, FRAME_BYTES
from broker_engine.wire.kinds import CommandType
from broker_engine.wire.records import CommandRecord
from broker_engine.wire.signing import Signer

COMMAND_TYPES: Mapping[type[Command], CommandType] = {
    StartWorkflow: CommandType.START_WORKFLOW,
    TerminateWorkflow: CommandType.TERMINATE_WORKFLOW,
    ReleaseWorkflow: CommandType.RELEASE_WORKFLOW,
    TaskStarted: CommandType.TASK_STARTED,
    TaskReported: CommandType.TASK_REPORTED,
    TaskProgressed: CommandType.TASK_PROGRESSED,
    TaskStep: CommandType.TASK_STEP,
    ExtendLease: CommandType.EXTEND_LEASE,
    ResetCallbacks: CommandType.RESET_CALLBACKS,
    AttemptPaused: CommandType.TASK_PAUSED,
    CancelTask: CommandType.CANCEL_TASK,
    PauseTask: CommandType.PAUSE_TASK,
    ResumeTask: CommandType.RESUME_TASK,
    PauseWorkflow: CommandType.PAUSE_WORKFLOW,
    ResumeWorkflow: CommandType.RESUME_WORKFLOW,
    DelayDue: CommandType.DELAY_DUE,
    QueueReady: CommandType.QUEUE_READY,
    WorkerLost: CommandType.WORKER_LOST,
    Tick: CommandType.TICK,
    DeadlineReached: CommandType.DEADLINE_REACHED,
    PutTaskDef: CommandType.PUT_TASK_DEF,
    DeleteTaskDef: CommandType.DELETE_TASK_DEF,
    PutWorkflowDef: CommandType.PUT_WORKFLOW_DEF,
    DeleteWorkflowDef: CommandType.DELETE_WORKFLOW_DEF,
    StopStarts: CommandType.STOP_STARTS,
    AllowStarts: CommandType.ALLOW_STARTS,
    SetCap: CommandType.SET_CAP,
    ClearCap: CommandType.CLEAR_CAP,
    AskForSlot: CommandType.REQUEST_SLOT,
    TellSlotStarted: CommandType.SLOT_STARTED,
    GiveSlotBack: CommandType.RELEASE_SLOT,
    SlotGranted: CommandType.SLOT_GRANTED,
    GrantExpired: CommandType.GRANT_EXPIRED,
    MoveTask: CommandType.MOVE_TASK,
    RerouteTask: CommandType.REROUTE_TASK,
    SubWorkflowEnded: CommandType.SUB_WORKFLOW_ENDED,
    PutSchedule: CommandType.PUT_SCHEDULE,
    DeleteSchedule: CommandType.DELETE_SCHEDULE,
    PauseSchedule: CommandType.PAUSE_SCHEDULE,
    ResumeSchedule: CommandType.RESUME_SCHEDULE,
    ScheduleDue: CommandType.SCHEDULE_DUE,
    ScheduleRefused: CommandType.SCHEDULE_REFUSED,
    RetryWorkflow: CommandType.RETRY_WORKFLOW,
    RerunWorkflow: CommandType.RERUN_WORKFLOW,
    RestartWorkflow: CommandType.RESTART_WORKFLOW,
    ChildRunsAgain: CommandType.CHILD_RUNS_AGAIN,
    SkipTask: CommandType.SKIP_TASK,
    UpdateVariables: CommandType.UPDATE_VARIABLES,
    RemoveWorkflow: CommandType.REMOVE_WORKFLOW,
    ContinueLoop: CommandType.CONTINUE_LOOP,
    PushMessage: CommandType.PUSH_MESSAGE,
}
#: Commands that workers send under a token; a lease-less report (an operator finishing a task) is signed instead.
WORKER_COMMANDS = frozenset(
    {
        CommandType.TASK_STARTED,
        CommandType.TASK_REPORTED,
        CommandType.TASK_PROGRESSED,
        CommandType.TASK_STEP,
        CommandType.EXTEND_LEASE,
        CommandType.TASK_PAUSED,
    }
)


def _start(r: CommandRecord, common: Mapping[str, Any]) -> StartWorkflow:
    return StartWorkflow(
        **common,
        name=_need(r.name, "name"),
        version=r.version,
        input=r.payload or b"{}",
        correlation_id=r.correlation_id,
        priority=r.priority,
        created_by=r.created_by,
        source=r.source,
        idempotency_key=r.idempotency_key,
        strategy=r.strategy or IdempotencyStrategy.FAIL,
        definition=r.definition,
        tenant=r.tenant,
        deadline_at_ms=r.deadline_at_ms,
        task_to_domain=r.task_to_domain,
        parent=_parent_of(r),
    )


def _parent_of(r: CommandRecord) -> Parent | None:
    if r.parent_task_id is None:
        return None
    return Parent(_need(r.parent_workflow_id, "parentWorkflowId"), r.parent_reference or "", r.parent_task_id)


def _started(r: CommandRecord, common: Mapping[str, Any]) -> TaskStarted:
    return TaskStarted(
        **common,
        reference=_need(r.reference, "reference"),
        task_id=_need(r.task_id, "taskId"),
        hand_out=r.hand_out,
        worker_id=_need(r.worker_id, "workerId"),
        wants_confirmation=r.wants_confirmation,
        prepares=r.step_status is StepStatus.STARTED,
    )


def _reported(r: CommandRecord, common: Mapping[str, Any]) -> TaskReported:
    return TaskReported(
        **common,
        reference=_need(r.reference, "reference"),
        task_id=_need(r.task_id, "taskId"),
        hand_out=r.hand_out,
        status=_need(r.status, "status"),
        lease=r.lease,
        sequence=r.sequence,
        worker_id=r.worker_id,
        output=r.payload,
        reason=r.reason,
        error_code=r.error_code,
    )


def _progressed(r: CommandRecord, common: Mapping[str, Any]) -> TaskProgressed:
    return TaskProgressed(
        **common,
        reference=_need(r.reference, "reference"),
        task_id=_need(r.task_id, "taskId"),
        hand_out=r.hand_out,
        callback_after_ms=r.callback_after_ms or 0,
        lease=r.lease,
        sequence=r.sequence,
        worker_id=r.worker_id,
        output=r.payload,
        reason=r.reason,
        checkpoint=r.checkpoint,
        progress_done=r.progress_done,
        progress_total=r.progress_total,
    )


def _step(r: CommandRecord, common: Mapping[str, Any]) -> TaskStep:
    return TaskStep(
        **common,
        reference=_need(r.reference, "reference"),
        task_id=_need(r.task_id, "taskId"),
        hand_out=r.hand_out,
        step=_need(r.step, "step"),
        status=_need(r.step_status, "stepStatus"),
        lease=r.lease,
        sequence=r.sequence,
        worker_id=r.worker_id,
        result=r.payload,
        input_size=r.input_size,
        error_code=r.error_code,
        reason=r.reason,
    )


def _extend_lease(r: CommandRecord, common: Mapping[str, Any]) -> ExtendLease:
    reference, task_id = _need(r.reference, "reference"), _need(r.task_id, "taskId")
    return ExtendLease(**common, reference=reference, task_id=task_id, hand_out=r.hand_out, lease=r.lease)


def _attempt_paused(r: CommandRecord, common: Mapping[str, Any]) -> AttemptPaused:
    return AttemptPaused(
        **common,
        reference=_need(r.reference, "reference"),
        task_id=_need(r.task_id, "taskId"),
        hand_out=r.hand_out,
        lease=_need(r.lease, "lease"),
        sequence=r.sequence,
        worker_id=r.worker_id,
    )


Request = TypeVar("Request", CancelTask, PauseTask, ResumeTask)


def _request(kind: type[Request]) -> Callable[[CommandRecord, Mapping[str, Any]], Request]:
    return lambda r, common: kind(
        **common, reference=_need(r.reference, "reference"), task_id=r.task_id, reason=r.reason
    )


def _delay_due(r: CommandRecord, common: Mapping[str, Any]) -> DelayDue:
    return DelayDue(
        **common,
        reference=_need(r.reference, "reference"),
        task_id=_need(r.task_id, "taskId"),
        hand_out=r.hand_out,
        due_at_ms=_need(r.due_at_ms, "dueAt"),
    )


def _queue_ready(r: CommandRecord, common: Mapping[str, Any]) -> QueueReady:
    return QueueReady(
        **common, reference=_need(r.reference, "reference"), task_id=_need(r.task_id, "taskId"), hand_out=r.hand_out
    )


def _ask_for_slot(r: CommandRecord, common: Mapping[str, Any]) -> AskForSlot:
    line = Line(_need(r.name, "name"), _need(r.domain, "domain"), r.tenant, r.resource)
    slot = RequestSlot(
        task_id=_need(r.task_id, "taskId"),
        hand_out=r.hand_out,
        workflow_id=_need(r.workflow_id, "workflowId"),
        reference=_need(r.reference, "reference"),
        line=line,
        priority=r.priority,
        asked_at_ms=_need(r.asked_at_ms, "askedAt"),
    )
    return AskForSlot(**common, slot=slot)


def _slot_started(r: CommandRecord, common: Mapping[str, Any]) -> TellSlotStarted:
    slot = SlotStarted(_need(r.task_id, "taskId"), r.hand_out, _need(r.started_at_ms, "startedAt"))
    return TellSlotStarted(**common, slot=slot)


def _about_grant(
    kind: type[SlotGranted | GrantExpired],
) -> Callable[[CommandRecord, Mapping[str, Any]], SlotGranted | GrantExpired]:
    return lambda r, common: kind(
        **common, reference=_need(r.reference, "reference"), task_id=_need(r.task_id, "taskId"), hand_out=r.hand_out
    )


def _about_domain(r: CommandRecord, common: Mapping[str, Any]) -> dict[str, Any]:
    reference, task_id, domain = _need(r.reference, "reference"), _need(r.task_id, "taskId"), _need(r.domain, "domain")
    return {**common, "reference": reference, "task_id": task_id, "hand_out": r.hand_out, "domain": domain}


DECODERS: Mapping[CommandType, Callable[[CommandRecord, Mapping[str, Any]], AnyCommand]] = {
    CommandType.START_WORKFLOW: _start,
    CommandType.TASK_STARTED: _started,
    CommandType.TASK_REPORTED: _reported,
    CommandType.TASK_PROGRESSED: _progressed,
    CommandType.TASK_STEP: _step,
    CommandType.EXTEND_LEASE: _extend_lease,
    CommandType.RESET_CALLBACKS: lambda _, common: ResetCallbacks(**common),
    CommandType.TASK_PAUSED: _attempt_paused,
    CommandType.CANCEL_TASK: _request(CancelTask),
    CommandType.PAUSE_TASK: _request(PauseTask),
    CommandType.RESUME_TASK: _request(ResumeTask),
    CommandType.PAUSE_WORKFLOW: lambda r, common: PauseWorkflow(**common, reason=r.reason),
    CommandType.RESUME_WORKFLOW: lambda _, common: ResumeWorkflow(**common),
    CommandType.DELAY_DUE: _delay_due,
    CommandType.QUEUE_READY: _queue_ready,
    CommandType.WORKER_LOST: lambda r, common: WorkerLost(
        **common, worker_id=_need(r.worker_id, "workerId"), lost_at_ms=_need(r.due_at_ms, "dueAt")
    ),
    CommandType.TICK: lambda _, common: Tick(**common),
    CommandType.TERMINATE_WORKFLOW: lambda r, common: TerminateWorkflow(
        **common, reason=r.reason, compensate=r.overwrite
    ),
    CommandType.RELEASE_WORKFLOW: lambda _, common: ReleaseWorkflow(**common),
    CommandType.PUT_TASK_DEF: lambda r, common: PutTaskDef(
        **common, document=_need(r.payload, "payload"), is_update=r.overwrite
    ),
    CommandType.DELETE_TASK_DEF: lambda _, common: DeleteTaskDef(**common),
    CommandType.PUT_WORKFLOW_DEF: lambda r, common: PutWorkflowDef(
        **common, document=_need(r.payload, "payload"), overwrite=r.overwrite
    ),
    CommandType.DELETE_WORKFLOW_DEF: lambda r, common: DeleteWorkflowDef(**common, version=_need(r.version, "version")),
    CommandType.STOP_STARTS: lambda r, common: StopStarts(**common, reason=r.reason),
    CommandType.ALLOW_STARTS: lambda _, common: AllowStarts(**common),
    CommandType.SET_CAP: lambda r, common: SetCap(**common, document=_need(r.payload, "payload")),
    CommandType.CLEAR_CAP: lambda _, common: ClearCap(**common),
    CommandType.REQUEST_SLOT: _ask_for_slot,
    CommandType.SLOT_STARTED: _slot_started,
    CommandType.RELEASE_SLOT: lambda r, common: GiveSlotBack(
        **common, slot=ReleaseSlot(_need(r.task_id, "taskId"), r.hand_out, r.started_at_ms)
    ),
    CommandType.SLOT_GRANTED: _about_grant(SlotGranted),
    CommandType.GRANT_EXPIRED: _about_grant(GrantExpired),
    CommandType.MOVE_TASK: lambda r, common: MoveTask(**_about_domain(r, common), reason=r.reason),
    CommandType.REROUTE_TASK: lambda r, common: RerouteTask(
        **_about_domain(r, common), reason=_need(r.reason, "reason")
    ),
    CommandType.CONTINUE_LOOP: lambda r, common: ContinueLoop(
        **common,
        reference=_need(r.reference, "reference"),
        task_id=_need(r.task_id, "taskId"),
        hand_out=r.hand_out,
        round=r.sequence,
    ),
    CommandType.PUSH_MESSAGE: lambda r, common: PushMessage(**common, payload=_need(r.payload, "payload")),
    CommandType.SUB_WORKFLOW_ENDED: lambda r, common: SubWorkflowEnded(
        **common,
        reference=_need(r.reference, "reference"),
        task_id=_need(r.task_id, "taskId"),
        hand_out=r.hand_out,
        status=_need(r.workflow_status, "workflowStatus"),
        output=r.payload,
        reason=r.reason,
    ),
    CommandType.PUT_SCHEDULE: lambda r, common: PutSchedule(
        **common, document=_need(r.payload, "payload"), overwrite=r.overwrite
    ),
    CommandType.DELETE_SCHEDULE: lambda _, common: DeleteSchedule(**common),
    CommandType.PAUSE_SCHEDULE: lambda r, common: PauseSchedule(**common, reason=r.reason),
    CommandType.RESUME_SCHEDULE: lambda _, common: ResumeSchedule(**common),
    CommandType.SCHEDULE_DUE: lambda r, common: ScheduleDue(
        **common, generation=r.hand_out, due_at_ms=_need(r.due_at_ms, "dueAt")
    ),
    CommandType.RETRY_WORKFLOW: lambda r, common: RetryWorkflow(
        **common, resume_children=r.overwrite, parent=_parent_of(r)
    ),
    CommandType.RERUN_WORKFLOW: lambda r, common: RerunWorkflow(
        **common,
        task_id=r.task_id,
        reference=r.reference,
        task_input=r.task_input,
        workflow_input=r.payload,
        correlation_id=r.correlation_id,
    ),
    CommandType.RESTART_WORKFLOW: lambda r, common: RestartWorkflow(**common, use_latest=r.overwrite),
    CommandType.CHILD_RUNS_AGAIN: lambda r, common: ChildRunsAgain(
        **common, reference=_need(r.reference, "reference"), child_id=_need(r.workflow_id, "workflowId")
    ),
    CommandType.SKIP_TASK: lambda r, common: SkipTask(
        **common, reference=_need(r.reference, "reference"), input=r.task_input, output=r.payload
    ),
    CommandType.UPDATE_VARIABLES: lambda r, common: UpdateVariables(**common, variables=_need(r.payload, "payload")),
    CommandType.REMOVE_WORKFLOW: lambda _, common: RemoveWorkflow(**common),
    CommandType.SCHEDULE_REFUSED: lambda r, common: ScheduleRefused(**common, reason=_need(r.reason, "reason")),
}


def _parent(parent: Parent | None) -> dict[str, Any]:
    if parent is None:
        return {}
    return {
        "parent_workflow_id": parent.workflow_id,
        "parent_reference": parent.reference,
        "parent_task_id": parent.task_id,
    }


def _need(value: Any, field: str) -> Any:
    if value is None:
        raise DecodeError(f"a command lacks {field}")
    return value


def decode_command(value: bytes | None, signer: Signer, *, at_ms: int, offset: int) -> AnyCommand:
    """The command in a record of ``<ns>.commands``.

    Args:
        at_ms: the record's LogAppendTime.
        offset: the record's offset; of an accepted TaskStarted it becomes the lease.

    Raises:
        DecodeError: not a command.
        BadSignature: neither signed nor, for a worker's report, with a valid token.
    """
    record = COMMAND.decode(value)
    decoder = DECODERS.get(record.type)
    if decoder is None:
        raise DecodeError(f"{record.type} is not a command that may stand on the log")
    assert value is not None, "decode refuses a missing value"
    if not signer.is_open:
        _authorise(record, value, signer)
    common = {
        "key": record.key,
        "at_ms": at_ms,
        "offset": offset,
        "command_id": record.command_id,
        "expires_at_ms": record.expires_at_ms,
        "reply_to": record.reply_to,
        "operator": record.operator,
    }
    return decoder(record, common)


def _authorise(record: CommandRecord, value: bytes, signer: Signer) -> None:
    if record.type in WORKER_COMMANDS and record.token is not None:
        if record.type is not CommandType.TASK_STARTED and record.lease is None:
            raise DecodeError("a worker's report lacks its lease")
        signer.check_token(record.task_id or "", record.hand_out, record.token)
    else:
        signer.check(value)


def encode_command(command: AnyCommand, signer: Signer, *, token: bytes | None = None) -> bytes:
    """The record of a command: a worker's report under its token, any other command signed."""
    encoded = COMMAND.encode(_record(command, token))
    return encoded if token is not None else signer.sign(encoded)


def _record(command: AnyCommand, token: bytes | None) -> CommandRecord:
    extras = _extras(command)
    if isinstance(command, TaskCommand):
        extras |= {"reference": command.reference, "task_id": command.task_id, "hand_out": command.hand_out}
    return CommandRecord(
        type=COMMAND_TYPES[type(command)],
        key=command.key,
        command_id=command.command_id,
        expires_at_ms=command.expires_at_ms,
        reply_to=command.reply_to,
        operator=command.operator,
        token=token,
        **extras,
    )


def _extras(command: AnyCommand) -> dict[str, Any]:
    """The fields of the record that only this class of command has."""
    match command:
        case TaskStarted():
            return {
                "worker_id": command.worker_id,
                "wants_confirmation": command.wants_confirmation,
                # The set-up is told as a step is.
                "step_status": StepStatus.STARTED if command.prepares else None,
            }
        case TaskReported():
            return {
                "status": command.status,
                "lease": command.lease,
                "sequence": command.sequence,
                "worker_id": command.worker_id,
                "payload": command.output,
                "reason": command.reason,
                "error_code": command.error_code,
            }
        case TaskProgressed():
            return {
                "callback_after_ms": command.callback_after_ms,
                "lease": command.lease,
                "sequence": command.sequence,
                "worker_id": command.worker_id,
                "payload": command.output,
                "reason": command.reason,
                "checkpoint": command.checkpoint,
                "progress_done": command.progress_done,
                "progress_total": command.progress_total,
            }
        case TaskStep():
            return {
                "step": command.step,
                "step_status": command.status,
                "lease": command.lease,
                "sequence": command.sequence,
                "worker_id": command.worker_id,
                "payload": command.result,
                "input_size": command.input_size,
                "error_code": command.error_code,
                "reason": command.reason,
            }
        case ExtendLease():
            return {"lease": command.lease}
        case AttemptPaused():
            return {"lease": command.lease, "sequence": command.sequence, "worker_id": command.worker_id}
        case TaskRequest():
            return {"reference": command.reference, "task_id": command.task_id, "reason": command.reason}
        case StartWorkflow():
            return {
                "name": command.name,
                "version": command.version,
                "payload": command.input,
                "correlation_id": command.correlation_id,
                "priority": command.priority,
                "created_by": command.created_by,
                "source": command.source,
                "idempotency_key": command.idempotency_key,
                "strategy": command.strategy,
                "definition": command.definition,
                "tenant": command.tenant,
                "deadline_at_ms": command.deadline_at_ms,
                "task_to_domain": command.task_to_domain,
                **_parent(command.parent),
            }
        case SubWorkflowEnded():
            return {"workflow_status": command.status, "payload": command.output, "reason": command.reason}
        case ContinueLoop():
            return {"sequence": command.round}
        case AskForSlot(slot=slot):
            return {
                "task_id": slot.task_id,
                "hand_out": slot.hand_out,
                "workflow_id": slot.workflow_id,
                "reference": slot.reference,
                "name": slot.line.task_type,
                "domain": slot.line.domain,
                "tenant": slot.line.tenant,
                "resource": slot.line.resource,
                "priority": slot.priority,
                "asked_at_ms": slot.asked_at_ms,
            }
        case TellSlotStarted(slot=slot):
            return slot._asdict()
        case GiveSlotBack(slot=slot):
            return slot._asdict()
        case WorkerLost():
            return {"worker_id": command.worker_id, "due_at_ms": command.lost_at_ms}
        case MoveTask() | RerouteTask():
            return {"domain": command.domain, "reason": command.reason}
        case DelayDue():
            return {"due_at_ms": command.due_at_ms}
        case TerminateWorkflow():
            return {"reason": command.reason, "overwrite": command.compensate}
        case StopStarts() | PauseWorkflow() | PauseSchedule() | ScheduleRefused():
            return {"reason": command.reason}
        case PutTaskDef():
            return {"payload": command.document, "overwrite": command.is_update}
        case RetryWorkflow():
            return {"overwrite": command.resume_children, **_parent(command.parent)}
        case RerunWorkflow():
            return {
                "task_id": command.task_id,
                "reference": command.reference,
                "task_input": command.task_input,
                "payload": command.workflow_input,
                "correlation_id": command.correlation_id,
            }
        case RestartWorkflow():
            return {"overwrite": command.use_latest}
        case ChildRunsAgain():
            return {"reference": command.reference, "workflow_id": command.child_id}
        case SkipTask():
            return {"reference": command.reference, "task_input": command.input, "payload": command.output}
        case UpdateVariables():
            return {"payload": command.variables}
        case ScheduleDue():
            return {"hand_out": command.generation, "due_at_ms": command.due_at_ms}
        case PutWorkflowDef() | PutSchedule():
            return {"payload": command.document, "overwrite": command.overwrite}
        case DeleteWorkflowDef():
            return {"version": command.version}
        case PushMessage():
            return {"payload": command.payload}
        case SetCap():
            return {"payload": command.document}
        case _:
            return {}


def command_types_first_bytes(*types: CommandType) -> frozenset[bytes]:
    """The first six bytes (frame and type) of encoded commands of these types: to sort records before decoding them."""
    return frozenset(COMMAND.encode(CommandRecord(type=kind, key=""))[: FRAME_BYTES + 1] for kind in types)
