"""Rebuilding a partition from its compacted topics: the last value per key is the state, so there is no replay.

The order is part of the promise (decisions/0003): the caller has fenced the previous owner and read the committed
offset; here the high watermarks are read *uncommitted*, because the last stable offset lags a commit that has already
returned (seen in 61 of 300), and every compacted topic is read to that point before anything is consumed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import orjson
import structlog

from broker_engine.decider.definition_tree import from_snapshot
from broker_engine.decider.rounds import rebuilt
from broker_engine.errors import LogError, UnsafeSettings
from broker_engine.log.ports import BEGINNING, CommittedOffset, Isolation, Log, Record, TopicPartition
from broker_engine.model.slots import Entry
from broker_engine.model.state import Execution, TaskState
from broker_engine.runtime.limits import keep_entries, restored
from broker_engine.runtime.ownership import Mark
from broker_engine.runtime.partition import CHECKPOINT_EVERY_MS, Partition, assembled
from broker_engine.runtime.store import FinishedStore
from broker_engine.topics import Namespace, Topic
from broker_engine.wire.codecs import CHECKPOINT, EVENT, IDEMPOTENCY, SNAPSHOT, TASK_STATE, WORKFLOW_STATE
from broker_engine.wire.records import Checkpoint
from broker_engine.wire.states import is_live_workflow, peek_task

_log = structlog.get_logger(__name__)

#: Read in this order: task states are sorted by whether their workflow is live.
STATE_TOPICS = (
    Topic.SNAPSHOTS,
    Topic.CHECKPOINTS,
    Topic.IDEMPOTENCY,
    Topic.LIMIT_STATE,
    Topic.WORKFLOW_STATE,
    Topic.TASK_STATE,
)

_BATCH = 5_000
#: How far before the end of the events the last one is looked for at first.
_EVENTS_STEP = 1_000
#: Without progress for this long the restore fails and is tried again by the caller.
_STALL_SECONDS = 60.0


class Restorer:
    """Reads one partition's state. Runs in a thread of its own; ``stopping`` is asked between batches."""

    def __init__(self, log: Log, namespace: Namespace, number: int, folder: Path, stopping: Callable[[], bool]) -> None:
        self._log = log
        self._namespace = namespace
        self._number = number
        self._stopping = stopping
        self._partition = Partition(number=number, store=FinishedStore(folder))
        self._checkpoint = Checkpoint(number, 0, 0)
        #: By key as it stands in the topic: most records are overwritten or finished, so none is decoded yet.
        self._workflows: dict[bytes, bytes] = {}
        self._ended_at: dict[bytes, int] = {}
        self._tasks: dict[bytes, bytes] = {}
        self._limits: dict[str, Entry] = {}

    def run(self, offsets: Mapping[TopicPartition, CommittedOffset | None]) -> Partition:
        """The restored partition, positioned at the committed offsets of commands and starts.

        Raises:
            UnsafeSettings: committed offset and state disagree, or the log no longer reaches back far enough.
            LogError: Kafka did not answer; try again.
        """
        started = time.monotonic()
        events = TopicPartition(self._namespace.topic(Topic.EVENTS), self._number)
        tps = {topic: TopicPartition(self._namespace.topic(topic), self._number) for topic in STATE_TOPICS}
        admin = self._log.admin()
        try:
            ends = admin.end_offsets(tps.values(), Isolation.UNCOMMITTED)
            commands = TopicPartition(self._namespace.topic(Topic.COMMANDS), self._number)
            committed = offsets.get(commands)
            begins = admin.begin_offsets([commands, events, *offsets])
            events_end = admin.end_offsets([events], Isolation.COMMITTED)[events]
        finally:
            admin.close()
        records = 0
        try:
            for topic in STATE_TOPICS:
                records += self._read(topic, tps[topic], ends[tps[topic]])
            self._assemble()
            mark = Mark.of(committed)
            if mark is None:
                mark = self._recorded(events, begins[events], events_end) or Mark("", True, begins[commands], 0)
            self._position(committed, mark, begins[commands])
            lanes, known = self._namespace.start_lanes(), dict(self._checkpoint.starts)
            self._partition.starts = {
                tp.topic: max(found.offset if found is not None else known.get(lanes[tp.topic], 0), begins[tp])
                for tp, found in offsets.items()
                if tp != commands
            }
        except BaseException:
            self._partition.close()
            raise
        _log.info(
            "restore.done",
            partition=self._number,
            records=records,
            live=len(self._partition.live),
            seconds=round(time.monotonic() - started, 2),
        )
        return self._partition

    def _read(self, topic: Topic, tp: TopicPartition, end: int) -> int:
        count = 0
        for batch in self._batches(tp, BEGINNING, end):
            count += len(batch)
            self._take(topic, batch)
        return count

    def _batches(self, tp: TopicPartition, begin: int, end: int) -> Iterator[list[Record]]:
        reader = self._log.reader()
        moved = time.monotonic()
        try:
            reader.assign({tp: begin})
            while reader.position(tp) < end:
                if self._stopping():
                    raise LogError("the restore was given up: this process is stopping")
                batch = reader.read(_BATCH, 0.5)
                if batch:
                    moved = time.monotonic()
                    yield batch
                elif time.monotonic() - moved > _STALL_SECONDS:
                    raise LogError(f"restore of {tp} stalls at {reader.position(tp)} of {end}: an open transaction?")
        finally:
            reader.close()

    def _take(self, topic: Topic, records: list[Record]) -> None:
        match topic:
            case Topic.WORKFLOW_STATE:
                _keep(self._workflows, records)
                self._ended_at.update((record.key or b"", record.timestamp_ms) for record in records)
            case Topic.LIMIT_STATE:
                keep_entries(self._limits, records)
            case Topic.TASK_STATE:
                _keep(self._tasks, records)
            case Topic.SNAPSHOTS:
                for record in records:
                    key = (record.key or b"").decode()
                    if record.value is None:
                        self._partition.snapshots.pop(key, None)
                    else:
                        document = orjson.loads(SNAPSHOT.decode(record.value).document)
                        self._partition.snapshots[key] = from_snapshot(document)
            case Topic.IDEMPOTENCY:
                for record in records:
                    key = (record.key or b"").decode()
                    if record.value is None:
                        self._partition.idempotency.pop(key, None)
                    else:
                        self._partition.idempotency[key] = IDEMPOTENCY.decode(record.value)
            case _:
                self._checkpoint = CHECKPOINT.decode(records[-1].value)

    def _assemble(self) -> None:
        """Sort live from finished; only live ones are decoded."""
        partition, live_tasks = self._partition, dict[str, list[TaskState]]()
        live = {key.decode() for key, value in self._workflows.items() if is_live_workflow(value)}
        for value in self._tasks.values():
            peek = peek_task(value)
            if peek.workflow_id in live:
                live_tasks.setdefault(peek.workflow_id, []).append(TASK_STATE.decode(value))
            else:
                partition.store.put_task(peek.workflow_id, peek.task_id, value)
        self._tasks.clear()
        for key, value in self._workflows.items():
            workflow_id = key.decode()
            if workflow_id in live:
                partition.live[workflow_id] = _execution(partition, value, live_tasks.pop(workflow_id, []))
            else:
                partition.store.put_workflow(workflow_id, value, self._ended_at[key])
        self._workflows.clear()
        self._ended_at.clear()
        partition.limits = restored(self._limits)
        partition.store.flush()
        partition.rebuild_heap()

    def _recorded(self, events: TopicPartition, first: int, end: int) -> Mark | None:
        """How far the partition was decided, by its own records: for offsets that are gone or were set by hand.

        Every change of a workflow wrote an event that names its command. Commands after the last one changed nothing,
        so they may be decided again. None: nothing was ever decided here.
        """
        position, log_time_ms = self._checkpoint.offset, self._checkpoint.log_time_ms
        begin, step, is_found = end, _EVENTS_STEP, False
        while not is_found and begin > first:
            before, begin = begin, max(begin - step, first)
            for event in (EVENT.decode(r.value) for batch in self._batches(events, begin, before) for r in batch):
                if event.offset < 0:
                    continue  # a start's: it stands in a lane, and lanes do not move log time
                is_found = True
                position, log_time_ms = max(position, event.offset + 1), max(log_time_ms, event.at_ms)
            step *= 10  # only starts and the marks of transactions: look further back
        return Mark("", True, position, log_time_ms) if log_time_ms else None

    def _position(self, committed: CommittedOffset | None, mark: Mark, first: int) -> None:
        """Go on at the mark, once it is certain that offset, state and log belong together."""
        place = f"partition {self._number} of {self._namespace.name}"
        group = self._namespace.engine_group
        if mark.offset < first:
            if committed is None or committed.offset != first:
                raise UnsafeSettings(
                    f"{place}: commands from {mark.offset} on are to be decided, but the log begins at {first}: "
                    f"commands were deleted unread. To go on without them set the offset of group {group} to {first}"
                )
            mark = mark._replace(offset=first)
        elif committed is not None and committed.offset != mark.offset:
            raise UnsafeSettings(
                f"{place}: the group's offset {committed.offset} and the state, decided up to {mark.offset}, disagree. "
                f"Someone reset the group: set the offset of group {group} back to {mark.offset}"
            )
        checkpoint = self._checkpoint
        if checkpoint.offset > mark.offset or mark.log_time_ms - checkpoint.log_time_ms > CHECKPOINT_EVERY_MS:
            raise UnsafeSettings(
                f"{place}: the group's offset {mark.offset} and the checkpoint {checkpoint.offset} disagree: a topic "
                f"was restored from another time. Restore all topics of {self._namespace.name} and its group from one "
                f"moment"
            )
        self._partition.position = mark.offset
        self._partition.log_time_ms = mark.log_time_ms
        self._partition.checkpoint_ms = checkpoint.log_time_ms


def _keep(values: dict[bytes, bytes], records: list[Record]) -> None:
    """The last value per key; a tombstone takes the key away."""
    for record in records:
        if record.value is None:
            values.pop(record.key or b"", None)
        else:
            values[record.key or b""] = record.value


def _execution(partition: Partition, value: bytes, tasks: list[TaskState]) -> Execution:
    """A live workflow: the latest attempt of each reference of its present run."""
    workflow = WORKFLOW_STATE.decode(value)
    execution, left = rebuilt(assembled(workflow, partition.snapshots, tasks))
    held = {task.task_id for task in execution.tasks.values()}
    others = [task for task in tasks if task.task_id not in held]
    for task in {task.task_id: task for task in (*others, *left)}.values():  # kept for their tombstones
        partition.store.put_task(task.workflow_id, task.task_id, TASK_STATE.encode(task))
    return execution
