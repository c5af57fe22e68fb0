"""The thread that serves one queue: reads scheduled tasks, tells that they start, gives them to the pool.

User code never runs here. A task runs only after its ``TaskStarted`` is delivered: its offset is the lease, and its
LogAppendTime says how long the record lay in the queue. A fresh record runs at once. An old one (or one whose grant
may have lapsed) runs only after the decider has confirmed the start, so work that was cancelled, timed out or handed
out again while it lay in a backlog never runs. Offsets are committed after the starts are delivered: from then on the
response time-out protects the task.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from broker_engine.errors import DecodeError, LogError
from broker_engine.log.ports import (
    FOLLOW_MS,
    CommittedOffset,
    Delivery,
    GroupReader,
    Isolation,
    Log,
    Record,
    TopicPartition,
    Writer,
)
from broker_engine.model.commands import TaskStarted
from broker_engine.topics import Namespace, Topic
from broker_engine.wire.codecs import SCHEDULED_TASK
from broker_engine.wire.commands import encode_command
from broker_engine.wire.records import ScheduledTask, StartVerdict
from broker_engine.wire.resume import decode_resume
from broker_engine.wire.signing import Signer
from broker_engine.worker.context import TaskContext
from broker_engine.worker.controls import Controls
from broker_engine.worker.presence import Presence
from broker_engine.worker.slots import Slots
from broker_engine.worker.task import TaskWorker
from broker_engine.worker.verdicts import Verdicts

_log = structlog.get_logger(__name__)

#: A record that lay longer than this in its queue runs only after a confirmation.
FRESH_MS = 5_000
#: Granted work runs unconfirmed only with this much time to spare.
GRANT_MARGIN_MS = 1_000
#: A full pool leaves its queue to others after this long (when there are others with free slots and work waits) ...
LEAVE_AFTER_SECONDS = 1.0
#: ... but not before it has stayed this long, so that two workers do not hand a queue to and fro.
MIN_STAY_SECONDS = 5.0
_READ_SECONDS = 0.05
_RETRY_SECONDS = 0.5
_NO_KEY = Signer(None)


@dataclass(slots=True)
class Start:
    """A start that was sent: the work, and what became of the record."""

    work: ScheduledTask
    record_time_ms: int
    wants_confirmation: bool
    delivery: Delivery | None = None


class QueueLoop:
    """Serves one queue until stopped."""

    def __init__(
        self,
        log: Log,
        namespace: Namespace,
        task: TaskWorker,
        slots: Slots,
        *,
        worker_id: str,
        writer: Writer,
        verdicts: Verdicts,
        presence: Presence,
        controls: Controls,
        run: Callable[[TaskWorker, ScheduledTask, TaskContext, Callable[[], None]], None],
        is_shared: bool = False,
    ) -> None:
        """``is_shared``: read the topic that task types of this domain share, and pass over the others' records."""
        self._log = log
        self._task = task
        self._slots = slots
        self._worker_id = worker_id
        self._writer = writer
        self._verdicts = verdicts
        self._presence = presence
        self._controls = controls
        self._run_task = run
        self._topic = namespace.schedule(task.domain, task.name)
        self._group = namespace.worker_group(task.domain, task.name)
        self._own_name: bytes | None = None
        if is_shared:
            # Every type has a group of its own there: in one group, a worker would swallow what it does not serve.
            self._topic = namespace.shared_schedule(task.domain)
            self._group = namespace.shared_worker_group(task.domain, task.name)
            self._own_name = task.name.encode()
        self._commands = namespace.topic(Topic.COMMANDS)
        self._joined_at = 0.0
        self._away = False
        #: How far each partition was written when it came.
        self._seen_to: dict[TopicPartition, int] = {}

    def run(self, stop: threading.Event) -> None:
        """Serve; Kafka's errors only make it join again."""
        while not stop.is_set():
            if self._away:
                self._stay_away(stop)
            reader: GroupReader | None = None
            try:
                reader = self._join(stop)
                if reader is not None:
                    self._serve(reader, stop)
            except LogError as error:
                _log.warning("worker.queue_failed", topic=self._topic, error=str(error))
                stop.wait(_RETRY_SECONDS)
            finally:
                if reader is not None:
                    reader.close()

    def _join(self, stop: threading.Event) -> GroupReader | None:
        """Join the queue's group once its topic exists (a task definition or the first task makes it)."""
        admin = self._log.admin()
        try:
            while self._topic not in admin.topics():
                if stop.wait(_RETRY_SECONDS):
                    return None
        finally:
            admin.close()
        self._controls.wait_until_read(self._task.domain, stop)
        reader = self._log.group_reader(self._group, client_id=self._worker_id, fetch_wait_ms=FOLLOW_MS)
        reader.subscribe(self._topic)
        self._seen_to.clear()
        self._joined_at = time.monotonic()
        return reader

    def _serve(self, reader: GroupReader, stop: threading.Event) -> None:
        while not stop.is_set():
            room = self._slots.room()
            if room == 0:
                if self._slots.wait_for_room(LEAVE_AFTER_SECONDS):
                    continue
                self._sit_out(reader, stop)
                if self._away:
                    return
                continue
            records = reader.read(room, _READ_SECONDS)
            self._look_at(reader.assignment())
            if records:
                self._take(records)
                reader.commit(_after(records), asynchronous=True)
            self._writer.poll(0.0)

    # --- a full pool

    def _sit_out(self, reader: GroupReader, stop: threading.Event) -> None:
        """Keep the membership alive without taking work, or leave the queue to others with free slots."""
        held = reader.assignment()
        reader.pause(held)
        while not stop.is_set() and not self._slots.wait_for_room(0.1):
            reader.read(1, 0.0)  # paused: serves the group only
            held = reader.assignment()
            reader.pause(held)
            if self._should_leave(reader, held):
                self._away = True
                _log.info("worker.leaves_queue", topic=self._topic, full_seconds=round(self._slots.full_seconds, 1))
                return
        reader.resume(held)

    def _should_leave(self, reader: GroupReader, held: frozenset[TopicPartition]) -> bool:
        if time.monotonic() - self._joined_at < MIN_STAY_SECONDS or self._slots.full_seconds < LEAVE_AFTER_SECONDS:
            return False
        if not self._presence.someone_else_is_free(self._task.domain, self._task.name):
            return False
        admin = self._log.admin()
        try:
            ends = admin.end_offsets(held, Isolation.COMMITTED)
        finally:
            admin.close()
        return any(reader.position(tp) < end for tp, end in ends.items())

    def _stay_away(self, stop: threading.Event) -> None:
        while not stop.is_set() and not self._slots.wait_for_room(0.5):
            pass
        self._away = False

    # --- taking work

    def _take(self, records: list[Record]) -> None:
        """Send a start for each record, the highest priority first and the oldest of one first; wait for all deliveries
        once, then run or park."""
        fetched = [(record, work) for record in records if (work := self._decoded(record)) is not None]
        fetched.sort(key=lambda found: -found[1].priority)
        starts = [self._announce(record, work) for record, work in fetched]
        self._await(starts)
        for start in starts:
            self._begin(start)

    def _decoded(self, record: Record) -> ScheduledTask | None:
        if self._own_name is not None and self._own_name not in (record.value or b""):
            return None  # another type's, without decoding it
        try:
            work = SCHEDULED_TASK.decode(record.value)
        except DecodeError as error:
            _log.error("worker.undecodable", topic=record.topic, offset=record.offset, error=str(error))
            return None
        return work if self._own_name is None or work.task_type == self._task.name else None

    def _await(self, starts: list[Start]) -> None:
        """Wait for every delivery report (success or failure; the producer gives up by itself)."""
        while any(start.delivery is None for start in starts):
            self._writer.flush(0.005)  # sends what lingers at once

    def _is_first_reader(self, record: Record) -> bool:
        """Whether nobody can have read this record before: it came after this worker had its partition. What stood
        there already may have been started by the one before, whose last offsets were not committed."""
        return record.offset >= self._seen_to.get(TopicPartition(record.topic, record.partition), 0)

    def _look_at(self, held: frozenset[TopicPartition]) -> None:
        """Note how far each partition that has just come was written."""
        if held == self._seen_to.keys():
            return
        for lost in self._seen_to.keys() - held:
            del self._seen_to[lost]
        admin = self._log.admin()
        try:
            self._seen_to |= admin.end_offsets(held - self._seen_to.keys(), Isolation.UNCOMMITTED)
        finally:
            admin.close()

    def _announce(self, record: Record, work: ScheduledTask) -> Start:
        age_ms = time.time_ns() // 1_000_000 - record.timestamp_ms
        start = Start(
            work, record.timestamp_ms, wants_confirmation=age_ms > FRESH_MS // 2 or not self._is_first_reader(record)
        )
        self._slots.take()
        self._send(start)
        return start

    def _send(self, start: Start) -> None:
        work = start.work
        command = TaskStarted(
            key=work.workflow_id,
            operator=f"worker:{self._worker_id}",
            reference=work.reference,
            task_id=work.task_id,
            hand_out=work.hand_out,
            worker_id=self._worker_id,
            wants_confirmation=start.wants_confirmation,
            prepares=self._task.setup is not None,
        )

        def delivered(delivery: Delivery) -> None:
            start.delivery = delivery

        key = work.workflow_id.encode()
        value = encode_command(command, _NO_KEY, token=work.token or b"")
        self._writer.send(self._commands, work.partition, key, value, on_delivery=delivered)

    def _begin(self, start: Start) -> None:
        delivery, work = start.delivery, start.work
        assert delivery is not None
        if delivery.error is not None:
            # Not told, so not run; the hand-out stays valid and the poll time-out or a backstop brings it back.
            _log.warning("worker.start_not_delivered", task_id=work.task_id, error=str(delivery.error))
            self._slots.give_back(has_run=False)
            return
        if start.wants_confirmation:
            self._park(work, delivery.offset)
        elif self._is_stale(start, delivery):
            # Older than its sender thought (clocks differ, or the delivery took long): ask after all.
            again = Start(work, start.record_time_ms, wants_confirmation=True)
            self._send(again)
            self._await([again])
            self._begin(again)
        else:
            self._run_now(work, delivery.offset)

    def _is_stale(self, start: Start, delivery: Delivery) -> bool:
        """Judged by the broker's clock alone: both moments are LogAppendTimes."""
        if delivery.timestamp_ms - start.record_time_ms > FRESH_MS:
            return True
        before_ms = start.work.start_before_ms
        return before_ms is not None and delivery.timestamp_ms >= before_ms - GRANT_MARGIN_MS

    def _park(self, work: ScheduledTask, lease: int) -> None:
        def decided(verdict: StartVerdict) -> None:
            taken_over = self._verdicts.resume(work.task_id, lease)
            self._verdicts.forget(work.task_id, lease)
            if verdict.accepted:
                self._run_now(work, lease, taken_over)
            else:
                _log.info("worker.start_refused", task_id=work.task_id, reason=verdict.reason)
                self._slots.give_back(has_run=False)

        self._verdicts.listen(work.task_id, lease, decided)

    def _run_now(self, work: ScheduledTask, lease: int, taken_over: bytes | None = None) -> None:
        context = TaskContext(
            task_id=work.task_id,
            workflow_id=work.workflow_id,
            workflow_name=work.workflow_name,
            reference=work.reference,
            task_type=work.task_type,
            domain=work.domain,
            run=work.run,
            attempt=work.attempt,
            lease=lease,
            correlation_id=work.correlation_id,
            _resume=decode_resume(work.resume).taken_over(taken_over),
        )

        def heard(verdict: StartVerdict) -> None:
            if not verdict.accepted:
                context._superseded = True
            else:  # it takes over from a start of whose steps it did not know
                context._resume = context._resume.taken_over(self._verdicts.resume(work.task_id, lease))

        def ended() -> None:
            self._verdicts.forget(work.task_id, lease)
            self._slots.give_back()

        self._verdicts.listen(work.task_id, lease, heard)
        self._run_task(self._task, work, context, ended)


def _after(records: list[Record]) -> dict[TopicPartition, CommittedOffset]:
    return {TopicPartition(r.topic, r.partition): CommittedOffset(r.offset + 1) for r in records}
