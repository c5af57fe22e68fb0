"""One turn: a batch of commands, decided against the partitions' state, as records to write and changes to merge.

A turn changes nothing outside itself. Its new states stand in an overlay; ``merge`` applies them after the commit, and
forgetting the turn is all that an abort needs.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace

import orjson
import structlog

from broker_engine.decider.context import Context
from broker_engine.decider.deadlines import earliest_deadline_ms
from broker_engine.decider.decide import decide, quarantine
from broker_engine.decider.limits import LimitRules
from broker_engine.decider.losses import lost_tasks
from broker_engine.decider.registry import DefinitionCommand, decide_definition
from broker_engine.decider.schedules import ScheduleCommand, decide_schedule
from broker_engine.errors import DecodeError
from broker_engine.log.ports import Record
from broker_engine.model.commands import (
    AnyCommand,
    DeadlineReached,
    ForLimiter,
    ReleaseWorkflow,
    RemoveWorkflow,
    SlotGranted,
    StartWorkflow,
    TakeUp,
    TaskCommand,
    TaskRequest,
    Tick,
    WorkerLost,
)
from broker_engine.model.decision import Decision, RememberStart, WriteDefinition
from broker_engine.model.definitions import Dynamic, WorkflowDef
from broker_engine.model.limits import LIMIT_KEY
from broker_engine.model.slots import LimitCommand, LimitTick
from broker_engine.model.state import Execution, TaskState, WorkflowState
from broker_engine.model.status import WaitingFor
from broker_engine.runtime.definitions import DefinitionView
from broker_engine.runtime.limits import Limits, LimitTurn
from broker_engine.runtime.outbox import Batch, Outbox
from broker_engine.runtime.partition import CHECKPOINT_EVERY_MS, Clocks, Partition
from broker_engine.runtime.pollers import Pollers
from broker_engine.runtime.queues import Queues
from broker_engine.runtime.retention import stored_tasks
from broker_engine.topics import Topic
from broker_engine.wire.codecs import TASK_STATE
from broker_engine.wire.commands import decode_command
from broker_engine.wire.records import Idempotency
from broker_engine.wire.signing import Signer

_log = structlog.get_logger(__name__)

#: A gap in log time that means an outage: the owner of waiting deadlines ticks more often than this.
GAP_MS = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What every turn of a processor works with."""

    partitions: int
    partition_of: Callable[[str, int], int]
    signer: Signer
    definitions: DefinitionView
    queues: Queues
    pollers: Pollers
    outbox: Outbox
    grace_ms: int
    environment: Mapping[str, str]
    max_payload_bytes: int
    merges_task_states: bool
    #: Topics of starts.
    lanes: Container[str]
    #: Whether every start of a partition that stands on the log is decided, given how far this turn is.
    starts_are_read: Callable[[int, Mapping[str, int]], bool]


@dataclass(slots=True)
class Overlay:
    """The changes of one partition in one turn."""

    position: int
    starts: dict[str, int]
    #: Log time of the partition's last checkpoint.
    checkpoint_ms: int
    #: The partition's clocks before the turn, to go back to when it is abandoned: a second pass over the same records
    #: must not see deadlines as passed before it has read the results that came in time.
    clocks: Clocks
    #: Log time after the turn.
    log_time_ms: int = 0
    #: Topics of starts that this turn has read on.
    moved: set[str] = field(default_factory=set)
    context: Context | None = None
    executions: dict[str, Execution] = field(default_factory=dict)
    snapshots: dict[str, WorkflowDef] = field(default_factory=dict)
    idempotency: dict[str, Idempotency] = field(default_factory=dict)
    #: Only when this turn has decided limits.
    limits: LimitTurn | None = None
    #: Rows that leave the memory, for the local store.
    left: list[TaskState] = field(default_factory=list)
    #: Workflows that are forgotten, with the ids of their tasks in the local store.
    forgotten: dict[str, list[str]] = field(default_factory=dict)


class Turn:
    """Decides records one by one; ``batch`` holds what is to be written."""

    def __init__(self, setting: Setting, partitions: Mapping[int, Partition], before: Turn | None = None) -> None:
        """``before``: a turn that is being committed; this one is decided on top of it and falls with it."""
        self._setting = setting
        self._partitions = partitions
        self._before = before
        #: Whether it writes definitions.
        self.has_definitions = False
        self.batch = Batch()
        self.overlays: dict[int, Overlay] = {}
        #: Workflows whose decision failed, in this turn.
        self.quarantined = 0
        #: Domain and task type of every task definition that was registered.
        self.registered: list[str] = []
        self.decided = 0

    def take(self, record: Record) -> None:
        """Decide one record of ``commands`` and the deadlines that its log time lets pass."""
        partition = self._partitions.get(record.partition)
        if partition is None:
            return
        overlay = self._overlay(partition)
        if record.topic in self._setting.lanes:
            self._take_start(partition, overlay, record)
            return
        if record.offset < overlay.position:
            return  # read again after a rewind
        overlay.position = record.offset + 1
        partition.advance(record.timestamp_ms, gap_ms=GAP_MS, grace_ms=self._setting.grace_ms)
        self._decide_record(partition, overlay, record)
        self._deadlines(partition, overlay, record)
        due_ms = self._limits(partition, overlay).due_ms
        if due_ms is not None and due_ms <= partition.log_time_ms:
            self._decide_limits(partition, overlay, LimitTick(), record)
        self._tell_limiter(record)

    def _take_start(self, partition: Partition, overlay: Overlay, record: Record) -> None:
        """Decide a start of a lane. Log time stays what ``commands`` say; the start's own moment may be later."""
        if record.offset < overlay.starts.get(record.topic, 0):
            return  # read again after a rewind
        overlay.starts[record.topic] = record.offset + 1
        overlay.moved.add(record.topic)
        self._decide_record(partition, overlay, record)
        self._tell_limiter(record)

    def _decide_record(self, partition: Partition, overlay: Overlay, record: Record) -> None:
        is_start = record.topic in self._setting.lanes
        now_ms = max(partition.log_time_ms, record.timestamp_ms) if is_start else partition.log_time_ms
        try:
            # An offset on a lane is no place on `commands`.
            offset = -1 if is_start else record.offset
            at_ms = record.timestamp_ms if is_start else now_ms
            command = decode_command(record.value, self._setting.signer, at_ms=at_ms, offset=offset)
            if record.key != command.key.encode():
                raise DecodeError(f"the record's key {record.key!r} is not the command's, {command.key!r}")
            if is_start and not isinstance(command, StartWorkflow):
                raise DecodeError("only starts may stand on the topics of starts")
        except DecodeError as error:
            self._dead_letter(record, str(error))
            return
        if isinstance(command, Tick):
            partition.tick_outstanding = False
            return
        if isinstance(command, ForLimiter):
            if self._setting.partition_of(LIMIT_KEY, self._setting.partitions) != partition.number:
                self._dead_letter(record, f"limits are not decided in partition {partition.number}")
                return
            self.decided += 1
            self._decide_limits(partition, overlay, command.slot, record)
            return
        if isinstance(command, WorkerLost):
            self._worker_lost(partition, overlay, record, command)
            return
        task_id = command.task_id if isinstance(command, TaskCommand | TaskRequest) else None
        execution = self._changed(overlay, partition, command.key) or partition.execution(command.key, task_id)
        asks_for_all = isinstance(command, TakeUp | RemoveWorkflow)
        if asks_for_all and execution is not None and execution.workflow.status.is_terminal:
            if self._changed(overlay, partition, command.key) is not None:
                # It ended in a turn that is not settled yet: its tasks are not in the store. Look again then.
                self.batch.records.append((record.topic, record.partition, record.key or b"", record.value, ()))
                return
            if not isinstance(command, RemoveWorkflow):
                execution = partition.whole(command.key)
        if execution is None and self._setting.partition_of(command.key, self._setting.partitions) != partition.number:
            self._dead_letter(record, f"key {command.key!r} does not belong to partition {partition.number}")
            return
        if execution is None and self._may_be_early(partition, overlay, command, now_ms):
            again = (record.topic, record.partition, record.key or b"", record.value, ())
            self.batch.records.append(again)
            return
        if execution is not None and execution.workflow.quarantine and not isinstance(command, ReleaseWorkflow):
            self._dead_letter(record, f"workflow in quarantine: {execution.workflow.quarantine}")
            return
        self.decided += 1
        try:
            decision = self._decision(partition, overlay, execution, command, record, now_ms)
            self._setting.outbox.add(self.batch, decision, command, partition.number)
            self._apply(partition, overlay, execution, decision, command)
            if decision.forgets and execution is not None:
                self._forget(partition, overlay, execution.workflow)
        except Exception as error:  # any fault of a decision concerns its workflow alone; the partition goes on
            self._quarantine(partition, overlay, execution, record, error)

    def _forget(self, partition: Partition, overlay: Overlay, workflow: WorkflowState) -> None:
        """Tombstones for everything that is stored of an ended workflow."""
        ids, every = stored_tasks(partition, workflow)
        tombstone, number = self._setting.outbox.tombstone, partition.number
        self.batch.records += [tombstone(Topic.TASK_STATE, each, number) for each in every]
        self.batch.records.append(tombstone(Topic.WORKFLOW_STATE, workflow.workflow_id, number))
        overlay.forgotten[workflow.workflow_id] = ids

    def _limits(self, partition: Partition, overlay: Overlay) -> Limits:
        """The limit state as of now."""
        if overlay.limits is not None:
            return overlay.limits.limits
        below = self._below(partition)
        return below.limits.limits if below is not None and below.limits is not None else partition.limits

    def _decide_limits(self, partition: Partition, overlay: Overlay, command: LimitCommand, record: Record) -> None:
        """Decide a message to the limits. ``record``: where it stands, or what caused it."""
        if overlay.limits is None:
            overlay.limits = LimitTurn(self._limits(partition, overlay))
        now_ms = max(partition.log_time_ms, record.timestamp_ms)
        try:
            told = overlay.limits.decide(command, now_ms, self._rules)
        except Exception as error:  # as for workflows: the partition goes on
            self._quarantine(partition, overlay, None, record, error)
            return
        for answer in told:
            self._carry_over(answer, now_ms)

    def _tell_limiter(self, cause: Record) -> None:
        """Carry over what was decided for the limits: at once where they are decided here, else by a command. A slot
        that goes from one task to the next in one transaction starts that next task sooner by two of them."""
        slots = self.batch.slots
        if not slots:
            return
        partition = self._partitions.get(self._setting.partition_of(LIMIT_KEY, self._setting.partitions))
        while slots:  # whoever does not want its grant any more gives it back
            slot = slots.pop(0)
            if partition is None:
                self.batch.records.append(self._setting.outbox.for_limiter(slot))
            else:
                self._decide_limits(partition, self._overlay(partition), slot, cause)

    def _carry_over(self, command: AnyCommand, now_ms: int) -> None:
        """Decide a grant at once where its workflow is decided here; anything else becomes a command. A question about
        a grant must not overtake the grant, which may be such a command."""
        number = self._setting.partition_of(command.key, self._setting.partitions)
        partition = self._partitions.get(number) if isinstance(command, SlotGranted) else None
        if partition is not None and isinstance(command, SlotGranted):
            overlay = self._overlay(partition)
            execution = self._changed(overlay, partition, command.key) or partition.execution(
                command.key, command.task_id
            )
            if execution is None or not execution.workflow.quarantine:
                at_ms = max(now_ms, partition.log_time_ms)
                granted = replace(command, at_ms=at_ms, offset=overlay.position - 1)
                try:
                    decision = decide(execution, granted, self._context(overlay, at_ms))
                    self._setting.outbox.add(self.batch, decision, granted, number)
                    self._apply(partition, overlay, execution, decision, granted)
                except Exception as error:  # read as a command it fails again, and there is a record to put aside
                    _log.warning("turn.grant_failed", workflow_id=command.key, error=str(error))
                else:
                    return
        self.batch.records.append(self._setting.outbox.command(command))

    @property
    def _rules(self) -> LimitRules:
        return LimitRules(self._setting.definitions.task_def, self._setting.definitions.caps)

    def _decision(
        self,
        partition: Partition,
        overlay: Overlay,
        execution: Execution | None,
        command: AnyCommand,
        record: Record,
        now_ms: int,
    ) -> Decision:
        if execution is None and isinstance(command, StartWorkflow):
            entry = self._idempotency(overlay, partition, command.key)
            retired_run = entry.run if entry else None
            context = self._context(overlay, now_ms)._replace(
                position=f"{record.topic}/{record.partition}/{record.offset}", retired_run=retired_run
            )
        else:
            context = self._context(overlay, now_ms)
        if isinstance(command, DefinitionCommand):
            return decide_definition(command, context)
        if isinstance(command, ScheduleCommand):
            return decide_schedule(command, context)
        return decide(execution, command, context)

    def _may_be_early(self, partition: Partition, overlay: Overlay, command: AnyCommand, now_ms: int) -> bool:
        """Whether a client's command may be about a workflow whose start waits in its lane: it is put behind the others
        and looked at again, until that is known or the command expires."""
        if command.command_id is None or isinstance(command, StartWorkflow | DefinitionCommand | ScheduleCommand):
            return False
        return command.expires_at_ms > now_ms and not self._setting.starts_are_read(partition.number, overlay.starts)

    def _context(self, overlay: Overlay, now_ms: int) -> Context:
        """The surroundings at this log time; most records of a batch share it."""
        context = overlay.context
        if context is None or context.now_ms != now_ms:
            setting = self._setting
            context = overlay.context = Context(
                now_ms=now_ms,
                position="",
                definitions=setting.definitions,
                queues=setting.queues,
                environment=setting.environment,
                max_payload_bytes=setting.max_payload_bytes,
                pollers=setting.pollers,
            )
        return context

    def _apply(
        self,
        partition: Partition,
        overlay: Overlay,
        before: Execution | None,
        decision: Decision,
        command: AnyCommand,
    ) -> None:
        for output in decision.outputs:
            if isinstance(output, WriteDefinition):
                self._setting.definitions.stage(output)
                self.has_definitions = True
                if output.kind == "task" and output.document is not None:
                    self.registered.append(output.key)
            elif isinstance(output, RememberStart):
                overlay.idempotency[output.workflow_id] = Idempotency(
                    output.workflow_id, output.name, output.idempotency_key, output.run, command.at_ms
                )
        execution = decision.execution
        if execution is None or execution is before:
            return
        definition = execution.definition
        if not self._has_snapshot(overlay, partition, definition.content_hash):
            document = orjson.dumps(definition.document)
            self.batch.records.append(self._setting.outbox.snapshot(definition, partition.number, document))
            # Others run by it as well: what this one has got while it ran is not theirs.
            overlay.snapshots[definition.content_hash] = replace(definition, dynamic=Dynamic())
        overlay.executions[command.key] = execution
        overlay.left += decision.left
        partition.watch(command.key, execution)

    def _deadlines(self, partition: Partition, overlay: Overlay, record: Record) -> None:
        """Fire what is due. The record itself was decided first: a result that is late but current counts."""
        while (workflow_id := partition.pop_due()) is not None:
            execution = self._changed(overlay, partition, workflow_id) or partition.live.get(workflow_id)
            if execution is None or execution.workflow.status.is_terminal:
                continue
            due_ms = earliest_deadline_ms(execution)
            if due_ms is None:
                continue
            if due_ms > partition.log_time_ms:
                partition.watch(workflow_id, execution)
                continue
            command = DeadlineReached(key=workflow_id, at_ms=partition.log_time_ms, offset=record.offset)
            try:
                decision = decide(execution, command, self._context(overlay, command.at_ms))
                self._setting.outbox.add(self.batch, decision, command, partition.number)
                self._apply(partition, overlay, execution, decision, command)
            except Exception as error:  # as for commands
                self._quarantine(partition, overlay, execution, record, error, is_command=False)

    def _worker_lost(self, partition: Partition, overlay: Overlay, record: Record, lost: WorkerLost) -> None:
        """Decide the loss of a worker for every workflow with an attempt that ran on it."""
        below = self._below(partition)
        changed = (*overlay.executions, *(below.executions if below is not None else ()))
        for workflow_id in dict.fromkeys((*partition.live, *changed)):
            execution = self._changed(overlay, partition, workflow_id) or partition.live[workflow_id]
            if not lost_tasks(execution, lost.worker_id, lost.lost_at_ms):
                continue
            command = replace(lost, key=workflow_id)
            try:
                decision = decide(execution, command, self._context(overlay, partition.log_time_ms))
                self._setting.outbox.add(self.batch, decision, command, partition.number)
                self._apply(partition, overlay, execution, decision, command)
            except Exception as error:  # as for commands
                self._quarantine(partition, overlay, execution, record, error, is_command=False)

    def _quarantine(
        self,
        partition: Partition,
        overlay: Overlay,
        execution: Execution | None,
        record: Record,
        error: Exception,
        *,
        is_command: bool = True,
    ) -> None:
        self.quarantined += 1
        problem = f"{type(error).__name__}: {error}"
        _log.error("turn.quarantined", partition=partition.number, offset=record.offset, exc_info=error)
        if is_command:
            self._dead_letter(record, f"the decision failed: {problem}")
        if execution is not None and not execution.workflow.status.is_terminal:
            still = quarantine(execution, problem, partition.log_time_ms)
            overlay.executions[still.workflow.workflow_id] = still
            self.batch.records.append(self._setting.outbox.state(still, partition.number))

    def _dead_letter(self, record: Record, reason: str) -> None:
        _log.warning("turn.dead_letter", partition=record.partition, offset=record.offset, reason=reason)
        self.batch.records.append(self._setting.outbox.dead_letter(record, reason))

    def _overlay(self, partition: Partition) -> Overlay:
        overlay = self.overlays.get(partition.number)
        if overlay is None:
            base = self._below(partition) or partition
            overlay = Overlay(base.position, dict(base.starts), base.checkpoint_ms, partition.clocks())
            self.overlays[partition.number] = overlay
        return overlay

    def _below(self, partition: Partition) -> Overlay | None:
        """What the turn before, which may not be committed yet, has changed of a partition."""
        return self._before.overlays.get(partition.number) if self._before is not None else None

    def _changed(self, overlay: Overlay, partition: Partition, workflow_id: str) -> Execution | None:
        execution = overlay.executions.get(workflow_id)
        if execution is None and (below := self._below(partition)) is not None:
            execution = below.executions.get(workflow_id)
        return execution

    def _idempotency(self, overlay: Overlay, partition: Partition, workflow_id: str) -> Idempotency | None:
        below = self._below(partition)
        found = overlay.idempotency.get(workflow_id) or (below.idempotency.get(workflow_id) if below else None)
        return found or partition.idempotency.get(workflow_id)

    def _has_snapshot(self, overlay: Overlay, partition: Partition, content_hash: str) -> bool:
        if content_hash in partition.snapshots or content_hash in overlay.snapshots:
            return True
        below = self._below(partition)
        return below is not None and content_hash in below.snapshots

    def finish(self) -> None:
        """Add what is written once per batch: confirmations, and checkpoints now and then."""
        if self._setting.merges_task_states:
            self.batch.records = self._setting.outbox.merged(self.batch.records)
        self.batch.records += self._setting.outbox.verdicts(self.batch)
        for number, overlay in self.overlays.items():
            overlay.log_time_ms = self._partitions[number].log_time_ms
            if overlay.limits is not None:
                entries = overlay.limits.finish(overlay.log_time_ms, self._rules)
                self.batch.records += [
                    self._setting.outbox.limit_entry(key, value, number) for key, value in entries.items()
                ]
            if overlay.log_time_ms - overlay.checkpoint_ms >= CHECKPOINT_EVERY_MS:
                overlay.checkpoint_ms = overlay.log_time_ms
                self.batch.records.append(
                    self._setting.outbox.checkpoint(number, overlay.position, overlay.log_time_ms, overlay.starts)
                )

    def merge(self) -> None:
        """The transaction is committed: what was decided is the state now."""
        if self.has_definitions:
            self._setting.definitions.settle()
        for number, overlay in self.overlays.items():
            partition = self._partitions.get(number)
            if partition is None:
                continue  # lost meanwhile
            partition.position = overlay.position
            partition.starts = overlay.starts
            partition.checkpoint_ms = overlay.checkpoint_ms
            if overlay.limits is not None:
                partition.limits = overlay.limits.limits
            partition.snapshots.update(overlay.snapshots)
            partition.idempotency.update(overlay.idempotency)
            for workflow_id, ids in overlay.forgotten.items():
                partition.store.remove_workflow(workflow_id)
                for each in ids:
                    partition.store.remove_task(workflow_id, each)
            for workflow_id, execution in overlay.executions.items():
                self._merge_execution(partition, workflow_id, execution)
            for task in overlay.left:
                partition.store.put_task(task.workflow_id, task.task_id, TASK_STATE.encode(task))
            partition.store.flush()
        for task_type in self.registered:
            self._setting.queues.request("default", task_type)

    def abandon(self) -> None:
        """The transaction was aborted: forget everything."""
        if self.has_definitions:
            self._setting.definitions.unstage()
        for number, overlay in self.overlays.items():
            if number in self._partitions:
                self._partitions[number].go_back(overlay.clocks)

    def _merge_execution(self, partition: Partition, workflow_id: str, execution: Execution) -> None:
        if execution.workflow.task_to_domain is not None:
            partition.choosers.note(execution)
        if execution.workflow.status.is_terminal:
            partition.live.pop(workflow_id, None)
            partition.finish(execution, self.batch.ended)
            return
        partition.live[workflow_id] = execution
        partition.watch(workflow_id, execution)  # an earlier run's end may have taken the entry off
        for task in execution.live_tasks():
            if task.waiting_for is WaitingFor.TOPIC:
                waiter = (workflow_id, task.reference, task.task_id)
                self._setting.queues.request(task.domain, task.task_type, waiter)
