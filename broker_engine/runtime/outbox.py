"""Decisions to records: what one decision adds to the batch's transaction.

Every record is size-checked here, before it is sent: one that is too large is a fault of the decision (payloads were
bounded before), so it quarantines the workflow instead of failing the transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import assert_never

from broker_engine.errors import InvariantViolation
from broker_engine.log.ports import Headers, Record
from broker_engine.model.commands import AnyCommand, AskForSlot, GiveSlotBack, TellSlotStarted
from broker_engine.model.decision import (
    Answer,
    Confirm,
    Decision,
    Delay,
    RememberStart,
    Schedule,
    Send,
    TellLimiter,
    TellWorker,
    WriteDefinition,
)
from broker_engine.model.definitions import WorkflowDef
from broker_engine.model.limits import LIMIT_KEY
from broker_engine.model.slots import ReleaseSlot, RequestSlot, SlotMessage, SlotStarted
from broker_engine.model.state import Execution
from broker_engine.runtime.queues import Queues
from broker_engine.topics import DEFINITION_TOPICS, Namespace, Topic, partition_of, tier_for
from broker_engine.wire import codecs
from broker_engine.wire.commands import COMMAND_TYPES, encode_command
from broker_engine.wire.kinds import ReplyKind
from broker_engine.wire.records import (
    Checkpoint,
    Control,
    Definition,
    DefinitionSnapshot,
    DelayedCommand,
    Idempotency,
    LanePosition,
    Reply,
    ScheduledTask,
    StartResume,
    StartVerdict,
    TransitionEvent,
)
from broker_engine.wire.resume import encode_resume
from broker_engine.wire.signing import Signer

#: A record to be sent: topic, partition, key, value, headers. A plain tuple: nine are made for every workflow.
OutRecord = tuple[str, int, bytes, bytes | None, Headers]
_NONE: Headers = ()


@dataclass(slots=True)
class Batch:
    """What the decisions of one transaction add up to."""

    records: list[OutRecord] = field(default_factory=list)
    #: Start confirmations by worker: one record per worker and batch.
    verdicts: dict[str, list[StartVerdict]] = field(default_factory=dict)
    #: What starts that take over have to know, by worker.
    resumes: dict[str, list[StartResume]] = field(default_factory=dict)
    #: The last states of workflows that ended, by key: the local store keeps them as they are.
    ended: dict[bytes, bytes] = field(default_factory=dict)
    #: What the limiter is to be told, in order; the turn carries it over.
    slots: list[SlotMessage] = field(default_factory=list)


class Outbox:
    """Encodes decisions of one namespace."""

    def __init__(self, namespace: Namespace, partitions: int, queues: Queues, signer: Signer) -> None:
        #: Receivers of replies are few; their partition is computed once.
        self._receiver_partition = lru_cache(maxsize=4096)(lambda receiver: partition_of(receiver, partitions))
        self._queues = queues
        self._signer = signer
        self._namespace = namespace
        self._partitions = partitions
        self._names = {topic: namespace.topic(topic) for topic in Topic}
        self._lanes = namespace.start_lanes()

    def add(self, batch: Batch, decision: Decision, command: AnyCommand, partition: int) -> None:
        """Encode a decision.

        Raises:
            InvariantViolation: a record is over the size limit; nothing was added.
        """
        names, execution = self._names, decision.execution
        tasks = names[Topic.TASK_STATE]
        records: list[OutRecord] = [
            (tasks, partition, task.task_id.encode(), codecs.TASK_STATE.encode(task), _NONE)
            for task in decision.changed_tasks
        ]
        key = command.key.encode()
        if decision.workflow_changed and execution is not None:
            value = codecs.WORKFLOW_STATE.encode(execution.workflow)
            records.append((names[Topic.WORKFLOW_STATE], partition, key, value, _NONE))
        if execution is not None and (decision.transitions or decision.ignored):
            records.append(
                (names[Topic.EVENTS], partition, key, _event(decision, execution, command, partition), _NONE)
            )
        told: list[SlotMessage] = []
        for output in decision.outputs:
            match output:
                case Schedule():
                    records.append(self._schedule(output, partition, execution))
                case Delay():
                    records.append(self._delay(output, command, partition))
                case Answer():
                    records.append(self._reply(output))
                case Confirm():
                    verdict = StartVerdict(
                        output.task_id, output.hand_out, output.lease, output.accepted, output.reason
                    )
                    batch.verdicts.setdefault(output.worker_id, []).append(verdict)
                    if output.steps or output.checkpoint:
                        resume = StartResume(
                            output.task_id, output.lease, encode_resume(output.steps, output.checkpoint)
                        )
                        batch.resumes.setdefault(output.worker_id, []).append(resume)
                case WriteDefinition():
                    records.append(self._definition(output))
                case RememberStart():
                    records.append(self._remember(output, command, partition))
                case TellLimiter():
                    told.append(output.slot)
                case TellWorker():
                    records += self._control(output)
                case Send():
                    records.append(self.command(output.command))
                case _:
                    assert_never(output)
        for topic, _, _, encoded, _ in records:
            if encoded is not None and codecs.is_too_large(encoded):
                raise InvariantViolation(f"a record of {len(encoded)} bytes for {topic} is over the limit")
        batch.records += records
        batch.slots += told
        if decision.workflow_changed and execution is not None and execution.workflow.status.is_terminal:
            states = (tasks, names[Topic.WORKFLOW_STATE])
            batch.ended.update((key, value) for topic, _, key, value, _ in records if topic in states and value)

    def snapshot(self, definition: WorkflowDef, partition: int, document: bytes) -> OutRecord:
        """The definition that a partition's workflows run by."""
        value = codecs.SNAPSHOT.encode(
            DefinitionSnapshot(definition.content_hash, definition.name, definition.version, document)
        )
        return (self._names[Topic.SNAPSHOTS], partition, definition.content_hash.encode(), value, _NONE)

    def state(self, execution: Execution, partition: int) -> OutRecord:
        """A workflow's record by itself (quarantine)."""
        workflow = execution.workflow
        return (
            self._names[Topic.WORKFLOW_STATE],
            partition,
            workflow.workflow_id.encode(),
            codecs.WORKFLOW_STATE.encode(workflow),
            _NONE,
        )

    def checkpoint(self, partition: int, offset: int, log_time_ms: int, starts: Mapping[str, int]) -> OutRecord:
        lanes = tuple(LanePosition(self._lanes[topic], at) for topic, at in sorted(starts.items()))
        value = codecs.CHECKPOINT.encode(Checkpoint(partition, offset, log_time_ms, lanes))
        return (self._names[Topic.CHECKPOINTS], partition, str(partition).encode(), value, _NONE)

    def merged(self, records: list[OutRecord]) -> list[OutRecord]:
        """The records without those task states that a later one of the same transaction replaces."""
        topic = self._names[Topic.TASK_STATE]
        last = {record[2]: record for record in records if record[0] == topic}
        return [record for record in records if record[0] != topic or last[record[2]] is record]

    def verdicts(self, batch: Batch) -> Iterable[OutRecord]:
        """The start confirmations of the whole batch."""
        for worker_id, verdicts in batch.verdicts.items():
            for resume in batch.resumes.get(worker_id, ()):  # a record each: they may be large; before the verdict
                value = codecs.REPLY.encode(Reply(kind=ReplyKind.STARTS, resumes=(resume,)))
                yield self._to(worker_id, value)
            value = codecs.REPLY.encode(Reply(kind=ReplyKind.STARTS, verdicts=tuple(verdicts)))
            yield self._to(worker_id, value)

    def command(self, command: AnyCommand) -> OutRecord:
        """A command of the engine to itself, in this transaction."""
        number = partition_of(command.key, self._partitions)
        value = encode_command(command, self._signer)
        return (self._names[Topic.COMMANDS], number, command.key.encode(), value, _NONE)

    def for_limiter(self, slot: SlotMessage) -> OutRecord:
        """A message to the limits, as a command."""
        return self.command(_message(slot))

    def limit_entry(self, key: str, value: bytes | None, partition: int) -> OutRecord:
        return (self._names[Topic.LIMIT_STATE], partition, key.encode(), value, _NONE)

    def tombstone(self, topic: Topic, key: str, partition: int) -> OutRecord:
        return (self._names[topic], partition, key.encode(), None, _NONE)

    def dead_letter(self, record: Record, reason: str) -> OutRecord:
        """The bytes as they came, with where they came from and why they were put aside."""
        headers = (
            ("topic", record.topic.encode()),
            ("partition", str(record.partition).encode()),
            ("offset", str(record.offset).encode()),
            ("timestamp", str(record.timestamp_ms).encode()),
            ("reason", reason[:1_000].encode()),
        )
        return (self._names[Topic.DEAD_LETTERS], record.partition, record.key or b"", record.value or b"", headers)

    def _schedule(self, output: Schedule, partition: int, execution: Execution | None) -> OutRecord:
        task = output.task
        assert execution is not None, "only a workflow schedules"
        topic, partitions = self._queues.home(task.domain, task.task_type)
        value = codecs.SCHEDULED_TASK.encode(
            ScheduledTask(
                task_id=task.task_id,
                workflow_id=task.workflow_id,
                workflow_name=task.workflow_name,
                reference=task.reference,
                task_type=task.task_type,
                domain=task.domain,
                partition=partition,
                run=task.run,
                attempt=task.attempt,
                hand_out=task.hand_out,
                priority=task.priority,
                input=task.input,
                response_timeout_ms=output.response_timeout_ms,
                timeout_ms=output.timeout_ms,
                scheduled_at_ms=task.handed_out_at_ms or task.scheduled_at_ms,
                correlation_id=execution.workflow.correlation_id,
                start_before_ms=output.start_before_ms,
                token=self._signer.token(task.task_id, task.hand_out),
                resume=encode_resume(task.steps, task.checkpoint) if task.steps or task.checkpoint else None,
                secrets=",".join(output.secrets),
                deadline_at_ms=execution.workflow.deadline_at_ms,
                tenant=execution.workflow.tenant,
            )
        )
        # A task id is a uuid5, so its first digits spread as evenly as a hash of it would.
        spread = int(task.task_id[:8], 16) % partitions
        return (topic, spread, task.task_id.encode(), value, _NONE)

    def _control(self, output: TellWorker) -> list[OutRecord]:
        """At most one record: without its topic (an older namespace) nobody is told, and the clocks end the attempt."""
        if not self._queues.has_control(output.domain):
            self._queues.request_control(output.domain)
            return []
        value = None
        if output.kind is not None:
            value = codecs.CONTROL.encode(Control(output.task_id, output.hand_out, output.kind, output.reason))
        return [(self._namespace.control(output.domain), 0, output.task_id.encode(), value, _NONE)]

    def _delay(self, output: Delay, command: AnyCommand, partition: int) -> OutRecord:
        value = codecs.DELAYED_COMMAND.encode(
            DelayedCommand(command.key, output.reference, output.task_id, output.hand_out, output.due_at_ms)
        )
        topic = self._namespace.delay(tier_for(output.due_at_ms - command.at_ms))
        return (topic, partition, command.key.encode(), value, _NONE)

    def _reply(self, output: Answer) -> OutRecord:
        value = codecs.REPLY.encode(
            Reply(kind=ReplyKind.ANSWER, command_id=output.command_id, status=output.status, message=output.message)
        )
        return self._to(output.reply_to, value)

    def _to(self, receiver: str, value: bytes) -> OutRecord:
        return (self._names[Topic.REPLIES], self._receiver_partition(receiver), receiver.encode(), value, _NONE)

    def _definition(self, output: WriteDefinition) -> OutRecord:
        topic = self._names[DEFINITION_TOPICS[output.kind]]
        name, _, version = output.key.rpartition(":") if output.kind == "workflow" else (output.key, "", "1")
        value = (
            None
            if output.document is None
            else codecs.DEFINITION.encode(Definition(name, int(version), output.document))
        )
        return (topic, 0, output.key.encode(), value, _NONE)

    def _remember(self, output: RememberStart, command: AnyCommand, partition: int) -> OutRecord:
        value = codecs.IDEMPOTENCY.encode(
            Idempotency(output.workflow_id, output.name, output.idempotency_key, output.run, command.at_ms)
        )
        return (self._names[Topic.IDEMPOTENCY], partition, output.workflow_id.encode(), value, _NONE)


def _message(slot: SlotMessage) -> AnyCommand:
    match slot:
        case RequestSlot():
            return AskForSlot(key=LIMIT_KEY, slot=slot)
        case SlotStarted():
            return TellSlotStarted(key=LIMIT_KEY, slot=slot)
        case ReleaseSlot():
            return GiveSlotBack(key=LIMIT_KEY, slot=slot)
        case _:
            assert_never(slot)


def _event(decision: Decision, execution: Execution, command: AnyCommand, partition: int) -> bytes:
    workflow = execution.workflow
    return codecs.EVENT.encode(
        TransitionEvent(
            workflow_id=workflow.workflow_id,
            workflow_name=workflow.name,
            run=workflow.run,
            command=COMMAND_TYPES[type(command)],
            operator=command.operator,
            at_ms=command.at_ms,
            partition=partition,
            offset=command.offset,
            transitions=decision.transitions,
            ignored=decision.ignored,
        )
    )
