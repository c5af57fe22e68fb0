"""Rebuilding a partition from its compacted topics: the last value per key is the state, so there is no replay.

The order is part of the promise (decisions/0003): the caller has fenced the previous owner and read the committed
offset; here the high watermarks are read *uncommitted*, because the last stable offset lags a commit that has already
returned (seen in 61 of 300), and every compacted topic is read to that point before anything is consumed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import orjson
import structlog
from immutables import Map

from broker_engine.decider.definitions import from_snapshot
from broker_engine.errors import LogError, UnsafeSettings
from broker_engine.log.ports import BEGINNING, Isolation, Log, Record, TopicPartition
from broker_engine.model.state import Execution, TaskState
from broker_engine.runtime.partition import Partition
from broker_engine.runtime.store import FinishedStore
from broker_engine.topics import Namespace, Topic
from broker_engine.wire.codecs import CHECKPOINT, IDEMPOTENCY, SNAPSHOT, TASK_STATE, WORKFLOW_STATE
from broker_engine.wire.records import Checkpoint
from broker_engine.wire.states import is_live_workflow, peek_task

_log = structlog.get_logger(__name__)

#: Read in this order: task states are sorted by whether their workflow is live.
STATE_TOPICS = (Topic.SNAPSHOTS, Topic.CHECKPOINTS, Topic.IDEMPOTENCY, Topic.WORKFLOW_STATE, Topic.TASK_STATE)

_BATCH = 5_000
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
        self._checkpoint: Checkpoint | None = None
        #: By key as it stands in the topic: most records are overwritten or finished, so none is decoded yet.
        self._workflows: dict[bytes, bytes] = {}
        self._ended_at: dict[bytes, int] = {}
        self._tasks: dict[bytes, bytes] = {}

    def run(self, committed: int | None) -> Partition:
        """The restored partition, positioned at the committed offset.

        Raises:
            UnsafeSettings: committed offset and checkpoint disagree, or the log no longer reaches back far enough.
            LogError: Kafka did not answer; try again.
        """
        started = time.monotonic()
        tps = {topic: TopicPartition(self._namespace.topic(topic), self._number) for topic in STATE_TOPICS}
        admin = self._log.admin()
        try:
            ends = admin.end_offsets(tps.values(), Isolation.UNCOMMITTED)
            commands = TopicPartition(self._namespace.topic(Topic.COMMANDS), self._number)
            first = admin.begin_offsets([commands])[commands]
        finally:
            admin.close()
        records = 0
        try:
            for topic in STATE_TOPICS:
                records += self._read(topic, tps[topic], ends[tps[topic]])
            self._assemble()
            self._position(committed, first)
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
        reader = self._log.reader()
        count, moved = 0, time.monotonic()
        try:
            reader.assign({tp: BEGINNING})
            while reader.position(tp) < end:
                if self._stopping():
                    raise LogError("the restore was given up: this process is stopping")
                batch = reader.read(_BATCH, 0.5)
                if batch:
                    count, moved = count + len(batch), time.monotonic()
                    self._take(topic, batch)
                elif time.monotonic() - moved > _STALL_SECONDS:
                    raise LogError(f"restore of {tp} stalls at {reader.position(tp)} of {end}: an open transaction?")
        finally:
            reader.close()
        return count

    def _take(self, topic: Topic, records: list[Record]) -> None:
        match topic:
            case Topic.WORKFLOW_STATE:
                _keep(self._workflows, records)
                self._ended_at.update((record.key or b"", record.timestamp_ms) for record in records)
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
        partition.store.flush()
        partition.rebuild_heap()

    def _position(self, committed: int | None, first: int) -> None:
        checkpoint = self._checkpoint
        if checkpoint is not None and committed is not None and checkpoint.offset != committed:
            raise UnsafeSettings(
                f"partition {self._number} of {self._namespace.name}: the group's offset {committed} and the "
                f"checkpoint {checkpoint.offset} disagree. Someone reset the group or restored a topic: set the offset "
                f"of group {self._namespace.engine_group} back to {checkpoint.offset}"
            )
        position = committed if committed is not None else checkpoint.offset if checkpoint else first
        if position < first:
            raise UnsafeSettings(
                f"partition {self._number} of {self._namespace.name}: commands from {position} on are to be decided, "
                f"but the log begins at {first}: commands were deleted unread. To go on without them set the offset of "
                f"group {self._namespace.engine_group} to {first}"
            )
        self._partition.position = position
        if checkpoint is not None:
            self._partition.log_time_ms = checkpoint.log_time_ms


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
    definition = partition.snapshots[workflow.definition_hash]
    execution = Execution(workflow=workflow, tasks=Map(), definition=definition)
    for task in sorted(tasks, key=lambda task: (task.run, task.seq)):
        if task.run == workflow.run:
            execution = execution.with_task(task)
        else:  # kept for its tombstone
            partition.store.put_task(task.workflow_id, task.task_id, TASK_STATE.encode(task))
    return execution
