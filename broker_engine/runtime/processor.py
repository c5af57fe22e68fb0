"""The shell around the decider: poll → decode → decide → encode → one transaction, for the partitions that it holds.

Three things happen to a batch. It commits, and its changes are merged. It aborts, and it is forgotten and read again.
Or the process finds itself replaced or does not learn the outcome, and then everything is dropped and rebuilt from the
log (``ANSWERS`` is the one place that says which error means what). The group callbacks only flip state; takeovers run
in threads of their own and end with a claim in this loop.
"""

from __future__ import annotations

import gc
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from enum import Enum
from functools import partial
from pathlib import Path

import structlog

from broker_engine.config import Settings
from broker_engine.errors import (
    BrokerEngineError,
    Fenced,
    LogError,
    OutcomeUnknown,
    RecordTooLarge,
    Retriable,
    TransactionAborted,
    UnknownTopic,
)
from broker_engine.log.ports import (
    FOLLOW_MS,
    CommittedOffset,
    Group,
    GroupReader,
    Isolation,
    Log,
    Record,
    TopicPartition,
    TransactionalWriter,
)
from broker_engine.runtime.clock import BrokerClock, Clock, wall_clock_ms
from broker_engine.runtime.commits import Commits, ThreadedCommits
from broker_engine.runtime.definitions import DefinitionView
from broker_engine.runtime.lanes import MAX_STARTS, Lanes
from broker_engine.runtime.losses import Losses
from broker_engine.runtime.outbox import Outbox, OutRecord
from broker_engine.runtime.ownership import Mark
from broker_engine.runtime.partition import Partition, waiting_for_topic
from broker_engine.runtime.pollers import Pollers
from broker_engine.runtime.queue_pauses import QueuePauses
from broker_engine.runtime.queues import Queues
from broker_engine.runtime.rerouting import Rerouting
from broker_engine.runtime.retention import retire
from broker_engine.runtime.takeover import Takeover, claim, member_id, release
from broker_engine.runtime.takeovers import Takeovers
from broker_engine.runtime.ticker import Ticker
from broker_engine.runtime.turn import Setting, Turn
from broker_engine.topics import Namespace, Topic
from broker_engine.wire.commands import command_types_first_bytes
from broker_engine.wire.kinds import CommandType
from broker_engine.wire.signing import Signer

_log = structlog.get_logger(__name__)

#: The loop wakes at least this often, to serve takeovers and ticks.
MAX_WAIT_SECONDS = 0.05
#: A batch of nothing but starts of tasks waits this long for company: the first reports are a millisecond behind, and
#: a transaction costs seven (one-task p50 18 instead of 24 ms).
LINGER_SECONDS = 0.006
#: A transaction that begins this soon after the last commit sends its offsets first: that avoids a wait of 20 ms for
#: the last one's markers, which take about 2 ms (and costs 3 ms where there is nothing to wait for: records and offsets
#: are not registered side by side then).
BACK_TO_BACK_SECONDS = 0.004
#: States are trees of tuples without cycles; the collector's default rounds walk all live workflows again and again
#: (about a tenth of the decider's time with some thousand live).
GC_THRESHOLD = (50_000, 20, 100)
#: Being replaced this often within a minute means that two processes have the same slot.
MAX_FENCED_PER_MINUTE = 3
#: More workflows than this quarantined within a minute mean a bad release, not bad workflows.
MAX_QUARANTINED_PER_MINUTE = 20
#: How often the owner looks for finished workflows to forget, when idle.
RETIRE_EVERY_SECONDS = 5.0
_RETRY_SECONDS = 0.5


class Reaction(Enum):
    """What to do about an error of the log."""

    ABORT = "abort the transaction, forget the turn, read again"
    REBUILD = "drop producer and partitions, rebuild from the log"


#: Kafka's answers, the most specific class first. (Retriable ones are repeated inside the log.)
ANSWERS: Mapping[type[LogError], Reaction] = {
    Fenced: Reaction.REBUILD,
    OutcomeUnknown: Reaction.REBUILD,
    TransactionAborted: Reaction.ABORT,
    UnknownTopic: Reaction.ABORT,
    RecordTooLarge: Reaction.ABORT,
    Retriable: Reaction.ABORT,
    LogError: Reaction.REBUILD,
}


def reaction_to(error: LogError) -> Reaction:
    return next(reaction for kind, reaction in ANSWERS.items() if isinstance(error, kind))


def threads(name: str, workers: int) -> Executor:
    """What slow work runs in beside the loop. The in-memory engine runs it in steps of its own instead."""
    return ThreadPoolExecutor(max_workers=workers, thread_name_prefix=name)


class Rate:
    """Counts events of the last minute."""

    def __init__(self, limit: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._monotonic = monotonic
        self._moments: deque[float] = deque()

    def add(self, count: int = 1) -> bool:
        """Whether the limit is passed with these."""
        now = self._monotonic()
        self._moments.extend([now] * count)
        while self._moments and self._moments[0] < now - 60:
            self._moments.popleft()
        return len(self._moments) > self._limit


class Processor:
    """One member of the engine's group. ``run`` returns when ``stop`` was called, or raises what cannot be mended."""

    def __init__(
        self,
        log: Log,
        namespace: Namespace,
        settings: Settings,
        *,
        partitions: int,
        clock: Clock = wall_clock_ms,
        monotonic: Callable[[], float] = time.monotonic,
        executor: Callable[[str, int], Executor] = threads,
        commits: Callable[[], Commits] = ThreadedCommits,
    ) -> None:
        self._log = log
        self._namespace = namespace
        self._settings = settings
        self._partitions = partitions
        self._clock = clock
        self._monotonic = monotonic
        self._executor = executor
        self._commits = commits
        self._stop = threading.Event()
        self._fenced = Rate(MAX_FENCED_PER_MINUTE, monotonic)
        self._quarantined = Rate(MAX_QUARANTINED_PER_MINUTE, monotonic)
        #: Commands decided, transactions and records written, for metrics and the benchmark.
        self.decided = self.transactions = self.records = 0
        #: Partitions that are decided here now.
        self.active: frozenset[int] = frozenset()

    def stop(self) -> None:
        """Ask the loop to end after its present turn."""
        self._stop.set()

    def run(self) -> None:
        """Decide until stopped.

        Raises:
            UnsafeSettings: going on would lose or duplicate work.
            BrokerEngineError: replaced again and again, or a bad release.
        """
        gc.set_threshold(*GC_THRESHOLD)
        while not self._stop.is_set():
            session: Session | None = None
            try:
                session = Session(self)
                session.run()
            except LogError as error:
                self.survive(error)
                if not isinstance(error, Fenced | OutcomeUnknown):
                    self._stop.wait(_RETRY_SECONDS)
            finally:
                if session is not None:
                    session.close()
                self.active = frozenset()

    def survive(self, error: LogError) -> None:
        """Take note of what ended a session, before the next one.

        Raises:
            BrokerEngineError: replaced again and again.
        """
        if not isinstance(error, Fenced | OutcomeUnknown):
            _log.warning("processor.log_failed", error=str(error))
            return
        _log.warning("processor.rebuilds", error=str(error))
        if isinstance(error, Fenced) and self._fenced.add():
            slot = self._settings.slot
            raise BrokerEngineError(
                f"this process was replaced more than {MAX_FENCED_PER_MINUTE} times a minute: another process "
                f"runs with slot {slot} of namespace {self._namespace.name}. Give each its own --slot"
            ) from error


class Session:
    """One life of the processor's clients, from joining the group to leaving it."""

    def __init__(self, processor: Processor) -> None:
        self._owner = processor
        self._log, self._namespace, self._settings = processor._log, processor._namespace, processor._settings
        self._slot = self._settings.slot
        self._commands = self._namespace.topic(Topic.COMMANDS)
        self._lanes = Lanes(self._namespace.start_lanes())
        #: Partitions that were set back since the last read.
        self._rewound: set[int] = set()
        signer = Signer(self._settings.key)
        self._writer = self._new_writer()
        self._has_claimed = False
        self._admin = self._log.admin()
        self._definitions = DefinitionView(self._log, self._namespace)
        self._queues = Queues(
            self._log,
            self._namespace,
            signer,
            partitions=processor._partitions,
            queue_partitions=self._settings.queue_partitions,
            task_def=self._definitions.task_def,
            executor=processor._executor("queues", 1),
        )
        self._pollers = Pollers(self._log, self._namespace, processor._monotonic)
        self._setting = Setting(
            partitions=processor._partitions,
            partition_of=self._log.partition_of,
            signer=signer,
            definitions=self._definitions,
            queues=self._queues,
            pollers=self._pollers,
            outbox=Outbox(self._namespace, processor._partitions, self._queues, signer),
            grace_ms=self._settings.session_timeout_ms,
            environment=self._settings.environment(),
            max_payload_bytes=self._settings.max_payload_bytes,
            merges_task_states=self._settings.merge_task_states,
            lanes=self._lanes.topics,
            starts_are_read=self._starts_are_read,
        )
        self._clock = BrokerClock(processor._clock)
        self._losses = Losses(
            self._log,
            self._namespace,
            signer,
            self._pollers,
            self._clock,
            grace_ms=self._settings.session_timeout_ms,
        )
        self._rerouting = Rerouting(
            self._log,
            self._namespace,
            signer,
            self._pollers,
            self._clock,
            grace_ms=self._settings.session_timeout_ms,
        )
        self._queue_pauses = QueuePauses(
            self._log,
            self._namespace,
            signer,
            self._definitions,
            self._clock,
            is_idle=lambda: self._pending is None,
        )
        self._ticker = Ticker(self._log, self._namespace, signer, self._clock)
        self._partitions: dict[int, Partition] = {}
        self._folder = Path(self._settings.data_dir) / self._namespace.name / f"slot-{self._slot}"
        self._takeovers = Takeovers(
            partial(Takeover, self._log, self._namespace, self._slot),
            self._folder,
            processor._executor("takeover", 2),
            processor._stop.is_set,
        )
        self._reader: GroupReader | None = None
        self._committed_at = 0.0
        #: The turn that is being committed.
        self._pending: Turn | None = None
        self._commits = processor._commits()
        #: What went wrong inside a group callback.
        self._failure: BrokerEngineError | None = None
        self._monotonic = processor._monotonic
        self._next_retirement = self._monotonic() + RETIRE_EVERY_SECONDS
        #: Definitions have come that no limit was looked at with.
        self._has_news = False

    def _new_writer(self) -> TransactionalWriter:
        return self._log.transactional_writer(
            self._namespace.transactional_id(self._slot),
            transaction_timeout_ms=self._settings.transaction_timeout_ms,
        )

    # --- the loop

    def run(self) -> None:
        """Join the group, decide until stopped, and hand everything back."""
        self.join()
        while not self._owner._stop.is_set():
            self.step()
        self.leave()

    def join(self) -> None:
        self._writer.init()
        shutil.rmtree(self._folder, ignore_errors=True)  # left by a process of this slot that was killed
        self._definitions.catch_up(
            self._admin.end_offsets(self._definitions.partitions, Isolation.UNCOMMITTED), timeout=30.0
        )
        self._queues.start()
        self._pollers.start()
        self._reader = self._log.group_reader(
            self._namespace.engine_group,
            client_id=member_id(self._namespace, self._slot),
            session_timeout_ms=self._settings.session_timeout_ms,
            fetch_wait_ms=FOLLOW_MS,
        )
        self._reader.subscribe(self._commands, self, companions=tuple(self._lanes.topics))

    def step(self) -> None:
        """One round of the loop: at most one turn."""
        assert self._reader is not None, "join comes first"
        self._activate()
        self._follow_definitions()
        records = self._read()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if records:
            self._turn(self._with_company(records))
        else:
            self._settle()
            if self._monotonic() >= self._next_retirement:
                self._retire()
        if self._commits.is_done():
            self._settle()
        self._ticker.serve(self._partitions.values())
        self._pollers.read_on()
        self._losses.serve(self._partitions.values())
        self._rerouting.serve(self._partitions.values())
        self._queue_pauses.serve(self._partitions.values())

    def _read(self) -> list[Record]:
        """The next batch: commands as they come, and starts by budget while there is room beside them."""
        reader, lanes = self._reader, self._lanes
        assert reader is not None
        limit = self._settings.batch_records
        self._rewound.clear()
        found = reader.read(limit, 0.0 if lanes else self._wait())
        if self._rewound:  # a group callback of this very call settled a turn that had failed
            numbers = set(self._rewound)
            found = [record for record in found if record.partition not in numbers]
            self._rewind(numbers)
        records = lanes.sort(found)
        if lanes:
            records = records + lanes.take(min(MAX_STARTS, limit - len(records)))
            if full := lanes.to_pause():
                reader.pause(full)
        if ready := lanes.to_resume():
            reader.resume(ready)
        return records

    def _starts_are_read(self, number: int, decided: Mapping[str, int]) -> bool:
        tps = self._lanes.of(number)
        if self._lanes.waits(tps):
            return False
        ends = self._admin.end_offsets(tps, Isolation.UNCOMMITTED)
        return all(decided.get(tp.topic, 0) >= end for tp, end in ends.items())

    def _wait(self) -> float:
        due_ms = self._ticker.next_due_ms(self._partitions.values())
        if due_ms is None:
            return MAX_WAIT_SECONDS
        return min(max((due_ms - self._clock.now_ms()) / 1_000, 0.001), MAX_WAIT_SECONDS)

    def _with_company(self, records: list[Record]) -> list[Record]:
        if len(records) >= self._settings.batch_records or not _all(records, _TASK_STARTED):
            return records
        deadline = self._monotonic() + LINGER_SECONDS
        assert self._reader is not None
        while (rest := deadline - self._monotonic()) > 0:
            more = self._lanes.sort(self._reader.read(self._settings.batch_records - len(records), rest))
            records = records + more
            if (more and not _all(more, _TASK_STARTED)) or len(records) >= self._settings.batch_records:
                break
        return records

    def _turn(self, records: list[Record]) -> None:
        """Decide a batch on top of the one that is being committed, then hand it over."""
        pending = self._pending
        if (self._commits.is_done() or (pending is not None and pending.has_definitions)) and not self._settle():
            # What was just read stands behind what is to be read again.
            self._rewind({record.partition for record in records})
            return
        turn = Turn(self._setting, self._partitions, self._pending)
        try:
            if _any(records, _NEEDS_DEFINITIONS):
                ends = self._admin.end_offsets(self._definitions.partitions, Isolation.UNCOMMITTED)
                self._definitions.catch_up(ends)
            for record in records:
                turn.take(record)
            turn.finish()
        except LogError as error:  # of reading definitions; nothing was written
            turn.abandon()
            self._settle()
            if reaction_to(error) is Reaction.REBUILD:
                raise
            self._rewind({record.partition for record in records})
            return
        self._settle(turn)
        if not turn.overlays:
            return
        self._clock.observe(records[-1].timestamp_ms)
        assert self._reader is not None
        group = self._reader.group()
        self._pending = turn
        self._commits.submit(lambda: self._write(turn, group))

    def _follow_definitions(self) -> None:
        """Take in what was registered: limits follow the newest definitions and caps at once, by a tick."""
        if self._definitions.read_on():
            self._has_news = True
        if self._has_news and self._pending is None:
            self._has_news = False
            for partition in self._partitions.values():
                if partition.limits.state.entries:
                    partition.limits.due_ms = 0

    def _settle(self, on_top: Turn | None = None) -> bool:
        """Wait for the commit that is under way and merge its turn; a failed one takes the turn on top with it, and
        everything read behind it has to be read again (False).

        Raises:
            LogError: everything must be rebuilt.
            BrokerEngineError: a bad release.
        """
        pending, self._pending = self._pending, None
        if pending is None:
            return True
        try:
            self._commits.outcome()
        except LogError as error:
            numbers = set(pending.overlays)
            if on_top is not None:
                numbers |= set(on_top.overlays)
                on_top.abandon()
                on_top.overlays.clear()
            pending.abandon()
            if reaction_to(error) is Reaction.REBUILD:
                raise
            _log.warning("processor.aborted", error=str(error))
            self._writer.abort()
            self._rewind(numbers)
            return False
        self._count(pending)
        return True

    def _count(self, turn: Turn) -> None:
        turn.merge()
        owner = self._owner
        owner.decided += turn.decided
        owner.transactions += 1
        owner.records += len(turn.batch.records)
        if turn.quarantined and owner._quarantined.add(turn.quarantined):
            raise BrokerEngineError(
                f"more than {MAX_QUARANTINED_PER_MINUTE} workflows a minute failed in the decider: "
                f"this release is faulty. Go back to the last one; quarantined workflows can be released"
            )

    def _write(self, turn: Turn, group: Group) -> None:
        """One transaction: everything the turn adds up to, and the offsets it consumed."""
        offsets = {
            TopicPartition(self._commands, number): Mark(
                self._slot, False, overlay.position, overlay.log_time_ms
            ).commit()
            for number, overlay in turn.overlays.items()
        }
        offsets |= {
            TopicPartition(topic, number): CommittedOffset(overlay.starts[topic])
            for number, overlay in turn.overlays.items()
            for topic in overlay.moved
        }
        self._transact(turn.batch.records, offsets, group)

    def _transact(
        self, records: Iterable[OutRecord], offsets: Mapping[TopicPartition, CommittedOffset], group: Group
    ) -> None:
        writer = self._writer
        if self._monotonic() - self._committed_at < BACK_TO_BACK_SECONDS:
            writer.begin(offsets, group)
        else:
            writer.begin()
        for topic, partition, key, value, headers in records:
            writer.send(topic, partition, key, value, headers)
        writer.commit(offsets, group)
        self._committed_at = self._monotonic()

    def _retire(self) -> None:
        """Forget finished workflows whose retention is over; only when there is nothing to decide."""
        assert self._reader is not None
        self._settle()
        self._next_retirement = self._monotonic() + RETIRE_EVERY_SECONDS
        for partition in self._partitions.values():
            batch = retire(partition, self._setting.outbox, self._settings.retention_ms, self._clock.now_ms())
            if batch is None:
                continue
            offsets = claim(partition, TopicPartition(self._commands, partition.number), self._slot)
            self._commits.submit(partial(self._transact, batch.records, offsets, self._reader.group()))
            self._commits.outcome()
            batch.settle(partition)
            self._next_retirement = 0.0
            _log.info("processor.retired", partition=partition.number, workflows=len(batch.gone))

    def _rewind(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._rewound.add(number)
            if number in self._partitions:
                self._read_from(self._partitions[number])

    def _read_from(self, partition: Partition) -> None:
        """Read commands and starts on from where the partition is decided; what was read beyond that is forgotten."""
        assert self._reader is not None
        positions = {TopicPartition(self._commands, partition.number): partition.position}
        positions |= {tp: partition.starts[tp.topic] for tp in self._lanes.of(partition.number)}
        self._lanes.drop(partition.number)
        for tp, position in positions.items():
            self._reader.seek(tp, position)
        self._reader.resume(positions)

    # --- taking over and handing back

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        for tp in partitions:
            self._takeovers.start(tp.partition)

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self._settle_quietly()
        if self._failure is not None:
            # Perhaps committed after all: a release would set the offset back. The next owner fences and looks.
            self.lost(partitions)
            return
        for tp in partitions:
            partition = self._drop(tp.partition)
            if partition is not None and self._reader is not None:
                self._release(tp, partition)
                partition.close()

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        self._settle_quietly()
        for tp in partitions:
            partition = self._drop(tp.partition)
            if partition is not None:
                partition.close()

    def _settle_quietly(self) -> None:
        """Settle inside a group callback, which must not raise: the loop raises what is left of it."""
        try:
            self._settle()
        except BrokerEngineError as error:
            self._failure = error

    def _release(self, tp: TopicPartition, partition: Partition) -> None:
        """A hand-over that fails only makes the next owner fence this one."""
        assert self._reader is not None
        try:
            self._reader.commit(release(partition, tp, self._slot))
        except LogError as error:
            _log.warning("processor.not_released", error=str(error))

    def _drop(self, number: int) -> Partition | None:
        self._takeovers.give_up(number)
        partition = self._partitions.pop(number, None)
        self._lanes.drop(number)
        self._owner.active = frozenset(self._partitions)
        return partition

    def _activate(self) -> None:
        """Claim the partitions whose state is restored, and begin to decide them."""
        for partition in self._takeovers.finished():
            self._claim(partition)

    def _claim(self, partition: Partition) -> None:
        assert self._reader is not None
        tp = TopicPartition(self._commands, partition.number)
        if not self._has_claimed:
            self._renew_writer()
        try:
            self._reader.commit(claim(partition, tp, self._slot))
        except LogError:
            partition.close()
            raise
        self._partitions[partition.number] = partition
        self._owner.active = frozenset(self._partitions)
        self._read_from(partition)
        for execution in partition.live.values():
            if execution.workflow.task_to_domain is not None:
                partition.choosers.note(execution)
        for domain, task_type, workflow_id, reference, task_id in waiting_for_topic(partition.live.values()):
            self._queues.request(domain, task_type, (workflow_id, reference, task_id))
        _log.info("takeover.done", partition=partition.number, position=partition.position)

    def _renew_writer(self) -> None:
        """Register the id again, now as a member of the group.

        Between a session's first registration and its joining, this slot is missed in the group, and whoever takes one
        of its partitions fences it. Without this two processes can fence each other's new sessions for ever.
        """
        self._writer.close()
        self._writer = self._new_writer()
        self._writer.init()
        self._has_claimed = True

    def leave(self) -> None:
        """Hand everything back cleanly."""
        self.revoked([TopicPartition(self._commands, number) for number in list(self._partitions)])

    def close(self) -> None:
        """Release every client and folder. Idempotent."""
        self._commits.close()
        self._pending = None
        for partition in self._partitions.values():
            partition.close()
        self._partitions.clear()
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        self._takeovers.close()
        self._writer.close()
        self._ticker.close()
        self._queues.close()
        self._pollers.close()
        self._losses.close()
        self._rerouting.close()
        self._queue_pauses.close()
        self._definitions.close()
        self._admin.close()


_TASK_STARTED = command_types_first_bytes(CommandType.TASK_STARTED)
_NEEDS_DEFINITIONS = command_types_first_bytes(
    CommandType.START_WORKFLOW,
    CommandType.REQUEST_SLOT,
    CommandType.PUT_TASK_DEF,
    CommandType.DELETE_TASK_DEF,
    CommandType.PUT_WORKFLOW_DEF,
    CommandType.DELETE_WORKFLOW_DEF,
    CommandType.STOP_STARTS,
    CommandType.ALLOW_STARTS,
    CommandType.SET_CAP,
    CommandType.CLEAR_CAP,
    CommandType.PUT_SCHEDULE,
    CommandType.DELETE_SCHEDULE,
    CommandType.PAUSE_SCHEDULE,
    CommandType.RESUME_SCHEDULE,
    CommandType.SCHEDULE_DUE,
    CommandType.SCHEDULE_REFUSED,
)


def _all(records: Sequence[Record], first_bytes: frozenset[bytes]) -> bool:
    return all((record.value or b"")[:6] in first_bytes for record in records)


def _any(records: Sequence[Record], first_bytes: frozenset[bytes]) -> bool:
    return any((record.value or b"")[:6] in first_bytes for record in records)
