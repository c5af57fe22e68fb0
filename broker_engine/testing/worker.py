"""A worker of the in-memory engine: the SDK's protocol without its threads, and with bad manners on demand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import orjson

from broker_engine.errors import LogError, Retriable
from broker_engine.log.memory import MemoryLog
from broker_engine.log.ports import BEGINNING, END, CommittedOffset, Delivery, GroupReader, Record, TopicPartition
from broker_engine.model.commands import AttemptPaused, TaskReported, TaskStarted
from broker_engine.model.decision import ControlKind
from broker_engine.model.limits import DEFAULT_DOMAIN
from broker_engine.model.status import ReportStatus
from broker_engine.testing.clock import FakeClock
from broker_engine.topics import Namespace, Topic, partition_of
from broker_engine.wire.codecs import CONTROL, REPLY, SCHEDULED_TASK
from broker_engine.wire.commands import encode_command
from broker_engine.wire.records import ScheduledTask
from broker_engine.wire.signing import Signer
from broker_engine.worker import TaskCanceled, TaskFailed, TaskFailedForGood
from broker_engine.worker.queue_loop import FRESH_MS, GRANT_MARGIN_MS

#: From input and hand-out to output; raises the SDK's errors to say how it failed.
Handler = Callable[[dict[str, Any], ScheduledTask], Mapping[str, Any] | None]
_NO_KEY = Signer(None)


class Behaviour(StrEnum):
    """How a worker treats one hand-out."""

    ANSWERS = "answers"
    ANSWERS_TWICE = "answers twice"
    STARTS_TWICE = "starts twice"
    DIES_BEFORE_START = "takes the record and dies"
    DIES_RUNNING = "dies while it runs"
    HEARS_NOTHING = "never comes to a safe point"


@dataclass(slots=True)
class _Running:
    work: ScheduledTask
    lease: int
    report_at_ms: int
    behaviour: Behaviour
    told: ControlKind | None = None


@dataclass(slots=True)
class SteppedWorker:
    """Serves one queue: ``step`` takes what is there and reports what is due.

    Args:
        takes_ms: how long a hand-out runs.
        behaves: how a hand-out is treated; well by default.
    """

    log: MemoryLog
    namespace: Namespace
    partitions: int
    clock: FakeClock
    task_type: str
    handler: Handler
    worker_id: str
    domain: str = DEFAULT_DOMAIN
    #: Whether it reads the topic that task types of its domain share.
    is_shared: bool = False
    takes_ms: Callable[[ScheduledTask], int] = lambda _work: 0
    behaves: Callable[[ScheduledTask], Behaviour] = lambda _work: Behaviour.ANSWERS
    #: Hand-outs whose function was run, in order.
    ran: list[ScheduledTask] = field(default_factory=list)
    #: Hand-outs that the decider refused.
    refused: list[ScheduledTask] = field(default_factory=list)
    #: Hand-outs that stopped at a safe point, and why.
    stopped: list[tuple[ScheduledTask, ControlKind]] = field(default_factory=list)
    _running: list[_Running] = field(default_factory=list)
    _parked: dict[tuple[str, int], _Running] = field(default_factory=dict)
    _reader: GroupReader | None = None

    def __post_init__(self) -> None:
        self._writer = self.log.writer(client_id=self.worker_id)
        self._replies = self.log.reader()
        number = partition_of(self.worker_id, self.partitions)
        self._replies.assign({TopicPartition(self.namespace.topic(Topic.REPLIES), number): END})

    # slots and a post-init attribute do not mix without declaring them
    _writer: Any = field(init=False)
    _replies: Any = field(init=False)
    _controls: Any = field(init=False, default=None)
    _told: dict[str, tuple[int, ControlKind]] = field(init=False, default_factory=dict)

    def step(self, max_records: int = 20) -> None:
        """Take hand-outs, hear verdicts, report what has run its time."""
        self._hear()
        if self._reader is None:
            topic = self.namespace.schedule(self.domain, self.task_type)
            group = self.namespace.worker_group(self.domain, self.task_type)
            if self.is_shared:
                topic = self.namespace.shared_schedule(self.domain)
                group = self.namespace.shared_worker_group(self.domain, self.task_type)
            if topic not in self.log.cluster.topics:
                return
            self._reader = self.log.group_reader(group, client_id=self.worker_id)
            self._reader.subscribe(topic)
        for record in self._reader.read(max_records, 0.0):
            if not self._take(record):
                self.kill()  # the record is not committed: somebody reads it again
                return
            self._commit(record)
        self._hear_controls()
        now_ms = self.clock.now_ms()
        due = [running for running in self._running if running.report_at_ms <= now_ms]
        self._running = [running for running in self._running if running.report_at_ms > now_ms]
        for running in due:
            self._report(running)

    def next_due_ms(self) -> int | None:
        return min((running.report_at_ms for running in self._running), default=None)

    def kill(self) -> None:
        """Everything in hand is lost; the queue goes to others."""
        self._running.clear()
        self._parked.clear()
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _commit(self, record: Record) -> None:
        assert self._reader is not None
        try:
            self._reader.commit(
                {TopicPartition(record.topic, record.partition): CommittedOffset(record.offset + 1)}, asynchronous=True
            )
        except LogError:
            return  # read again by whoever has the partition now

    def _take(self, record: Record) -> bool:
        """Start a hand-out; False when the worker dies instead."""
        work = SCHEDULED_TASK.decode(record.value)
        if work.task_type != self.task_type:
            return True
        behaviour = self.behaves(work)
        if behaviour is Behaviour.DIES_BEFORE_START:
            return False
        now_ms, before_ms = self.clock.now_ms(), work.start_before_ms
        is_late_grant = before_ms is not None and now_ms >= before_ms - GRANT_MARGIN_MS
        wants_confirmation = is_late_grant or now_ms - record.timestamp_ms > FRESH_MS
        lease = self._start(work, wants_confirmation)
        if behaviour is Behaviour.STARTS_TWICE:
            lease = self._start(work, wants_confirmation)
        if lease is None or behaviour is Behaviour.DIES_RUNNING:
            return True
        running = _Running(work, lease, self.clock.now_ms() + self.takes_ms(work), behaviour)
        if wants_confirmation:
            self._parked[work.task_id, lease] = running
        else:
            self._running.append(running)
        return True

    def _start(self, work: ScheduledTask, wants_confirmation: bool) -> int | None:
        command = TaskStarted(
            key=work.workflow_id,
            operator=f"worker:{self.worker_id}",
            reference=work.reference,
            task_id=work.task_id,
            hand_out=work.hand_out,
            worker_id=self.worker_id,
            wants_confirmation=wants_confirmation,
        )
        delivery = self._send(work, encode_command(command, _NO_KEY, token=work.token or b""))
        return None if delivery.error is not None else delivery.offset

    def _send(self, work: ScheduledTask, value: bytes) -> Delivery:
        deliveries: list[Delivery] = []
        topic = self.namespace.topic(Topic.COMMANDS)
        self._writer.send(topic, work.partition, work.workflow_id.encode(), value, on_delivery=deliveries.append)
        self._writer.poll()
        return deliveries[0] if deliveries else Delivery(topic, work.partition, -1, -1, Retriable("not delivered yet"))

    def _hear(self) -> None:
        for record in self._replies.read(500, 0.0):
            if record.key != self.worker_id.encode():
                continue
            for verdict in REPLY.decode(record.value).verdicts:
                parked = self._parked.pop((verdict.task_id, verdict.lease), None)
                if parked is None:
                    continue
                if verdict.accepted:
                    parked.report_at_ms = self.clock.now_ms() + self.takes_ms(parked.work)
                    self._running.append(parked)
                else:
                    self.refused.append(parked.work)

    def _hear_controls(self) -> None:
        """What was told stops a hand-out at once: every moment is a safe point, unless it hears nothing."""
        topic = self.namespace.control(self.domain)
        if self._controls is None:
            if topic not in self.log.cluster.topics:
                return
            self._controls = self.log.reader()
            self._controls.assign({TopicPartition(topic, 0): BEGINNING})
        for record in self._controls.read(500, 0.0):
            key = (record.key or b"").decode()
            if record.value is None:
                self._told.pop(key, None)
                continue
            control = CONTROL.decode(record.value)
            self._told[key] = (control.hand_out, control.kind)
        now_ms = self.clock.now_ms()
        for running in self._running:
            told = self._told.get(running.work.task_id)
            if told is None or told[0] != running.work.hand_out or running.behaviour is Behaviour.HEARS_NOTHING:
                continue
            running.told, running.report_at_ms = told[1], now_ms

    def _report(self, running: _Running) -> None:
        work = running.work
        if running.told is not None:
            self._stop(running, running.told)
            return
        self.ran.append(work)
        status, output, reason = ReportStatus.COMPLETED, None, None
        try:
            output = orjson.dumps(dict(self.handler(orjson.loads(work.input), work) or {}))
        except TaskCanceled as error:
            status, reason = ReportStatus.CANCELED, str(error)
        except TaskFailedForGood as error:
            status, reason = ReportStatus.FAILED_WITH_TERMINAL_ERROR, str(error)
        except TaskFailed as error:
            status, reason = ReportStatus.FAILED, str(error)
        report = TaskReported(
            key=work.workflow_id,
            operator=f"worker:{self.worker_id}",
            reference=work.reference,
            task_id=work.task_id,
            hand_out=work.hand_out,
            status=status,
            lease=running.lease,
            sequence=1,
            worker_id=self.worker_id,
            output=output,
            reason=reason,
        )
        self._say(work, report, times=2 if running.behaviour is Behaviour.ANSWERS_TWICE else 1)

    def _stop(self, running: _Running, kind: ControlKind) -> None:
        """Tell that the function has stopped; one that was superseded says nothing."""
        work = running.work
        self.stopped.append((work, kind))
        about: dict[str, Any] = {
            "key": work.workflow_id,
            "operator": f"worker:{self.worker_id}",
            "reference": work.reference,
            "task_id": work.task_id,
            "hand_out": work.hand_out,
            "lease": running.lease,
            "sequence": 1,
            "worker_id": self.worker_id,
        }
        if kind is ControlKind.PAUSE:
            self._say(work, AttemptPaused(**about))
        elif kind is ControlKind.CANCEL:
            self._say(work, TaskReported(**about, status=ReportStatus.CANCELED))

    def _say(self, work: ScheduledTask, command: TaskReported | AttemptPaused, times: int = 1) -> None:
        value = encode_command(command, _NO_KEY, token=work.token or b"")
        for _ in range(times):
            self._send(work, value)
