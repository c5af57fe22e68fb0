"""Reading states straight from the compacted topics: what a client can see without any server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import orjson

from broker_engine.decider.limits import LimitState, restore
from broker_engine.errors import NotFound
from broker_engine.log.ports import BEGINNING, Isolation, Log, Record, TopicPartition
from broker_engine.model.limits import LIMIT_KEY
from broker_engine.model.state import TaskState, WorkflowState
from broker_engine.model.stops import Stop, read_stop
from broker_engine.topics import Namespace, Topic, partition_of
from broker_engine.wire.codecs import DEFINITION, LIMIT_ENTRY, PRESENCE, TASK_STATE, WORKFLOW_STATE
from broker_engine.wire.limit_entries import from_record
from broker_engine.wire.records import Definition, WorkerPresence
from broker_engine.wire.states import peek_task


class WorkflowView(NamedTuple):
    """A workflow and all its attempts, in order."""

    workflow: WorkflowState
    tasks: tuple[TaskState, ...]

    @property
    def status(self) -> str:
        return self.workflow.status.value

    @property
    def output(self) -> dict[str, Any]:
        data: dict[str, Any] = orjson.loads(self.workflow.output) if self.workflow.output else {}
        return data


class Heard(NamedTuple):
    """The last word of a worker about one of its queues, and its LogAppendTime (epoch milliseconds)."""

    presence: WorkerPresence
    at_ms: int


def read_all(log: Log, partitions: list[TopicPartition], each: Callable[[Record], None]) -> None:
    """Read partitions from the beginning to their present end."""
    admin = log.admin()
    try:
        ends = admin.end_offsets(partitions, Isolation.COMMITTED)
    finally:
        admin.close()
    reader = log.reader()
    try:
        reader.assign(dict.fromkeys(partitions, BEGINNING))
        while any(reader.position(tp) < end for tp, end in ends.items()):
            for record in reader.read(5_000, 0.2):
                each(record)
    finally:
        reader.close()


class Views:
    """Point-in-time reads of one namespace."""

    def __init__(self, log: Log, namespace: Namespace, partitions: int) -> None:
        self._log = log
        self._namespace = namespace
        self._partitions = partitions

    def workflow(self, workflow_id: str) -> WorkflowView:
        """A workflow with its tasks; reads the workflow's partition.

        Raises:
            NotFound: there is none (any more).
        """
        number = partition_of(workflow_id, self._partitions)
        state: list[WorkflowState] = []
        tasks: dict[str, TaskState] = {}
        needle = workflow_id.encode()

        def see_workflow(record: Record) -> None:
            if record.key == needle:
                state[:] = [WORKFLOW_STATE.decode(record.value)] if record.value is not None else []

        def see_task(record: Record) -> None:
            if record.value is not None and needle in record.value:
                task = TASK_STATE.decode(record.value)
                if task.workflow_id == workflow_id:
                    tasks[task.task_id] = task

        read_all(self._log, [self._tp(Topic.WORKFLOW_STATE, number)], see_workflow)
        if not state:
            raise NotFound(f"there is no workflow {workflow_id}")
        read_all(self._log, [self._tp(Topic.TASK_STATE, number)], see_task)
        return WorkflowView(state[0], tuple(sorted(tasks.values(), key=lambda task: (task.run, task.seq))))

    def task(self, task_id: str) -> TaskState:
        """The last state of one attempt; reads the task states of every partition.

        Raises:
            NotFound: there is none (any more).
        """
        found: list[bytes | None] = [None]
        needle = task_id.encode()

        def see(record: Record) -> None:
            if record.key == needle:
                found[0] = record.value

        read_all(self._log, [self._tp(Topic.TASK_STATE, number) for number in range(self._partitions)], see)
        if found[0] is None:
            raise NotFound(f"there is no task {task_id}")
        return TASK_STATE.decode(found[0])

    def live_tasks(self) -> Iterator[TaskState]:
        """Every attempt that has not ended; reads the task states of every partition."""
        values: dict[bytes, bytes] = {}
        tps = [self._tp(Topic.TASK_STATE, number) for number in range(self._partitions)]

        def see(record: Record) -> None:
            key = record.key or b""
            if record.value is None or peek_task(record.value).is_terminal:
                values.pop(key, None)
            else:
                values[key] = record.value

        read_all(self._log, tps, see)
        yield from map(TASK_STATE.decode, values.values())

    def presence(self) -> list[Heard]:
        """The last word of every worker about each of its queues, within the last hour."""
        words: dict[bytes, Heard] = {}

        def see(record: Record) -> None:
            key = record.key or b""
            if record.value is None:
                words.pop(key, None)
            else:
                words[key] = Heard(PRESENCE.decode(record.value), record.timestamp_ms)

        read_all(self._log, [self._tp(Topic.WORKERS, 0)], see)
        return list(words.values())

    def shared_types(self) -> frozenset[str]:
        """Task types whose definition puts their hand-outs on a shared topic."""
        found = self.definitions(Topic.TASK_DEFS)
        return frozenset(name for name, known in found.items() if orjson.loads(known.document).get("sharedQueue"))

    def limits(self) -> LimitState:
        """Who waits for a slot or has one."""
        values: dict[bytes, bytes] = {}
        read_all(
            self._log,
            [self._tp(Topic.LIMIT_STATE, partition_of(LIMIT_KEY, self._partitions))],
            lambda record: _keep(values, record),
        )
        return restore(from_record(LIMIT_ENTRY.decode(value)) for value in values.values())

    def workflow_state(self, workflow_id: str) -> WorkflowState | None:
        """The state of a workflow without its tasks."""
        found: list[bytes | None] = [None]

        def see(record: Record) -> None:
            if record.key == workflow_id.encode():
                found[0] = record.value

        read_all(self._log, [self._tp(Topic.WORKFLOW_STATE, partition_of(workflow_id, self._partitions))], see)
        return None if found[0] is None else WORKFLOW_STATE.decode(found[0])

    def workflows(self) -> Iterator[WorkflowState]:
        """Every workflow, the newest first."""
        values: dict[bytes, bytes] = {}
        tps = [self._tp(Topic.WORKFLOW_STATE, number) for number in range(self._partitions)]
        read_all(self._log, tps, lambda record: _keep(values, record))
        states = [WORKFLOW_STATE.decode(value) for value in values.values()]
        yield from sorted(states, key=lambda state: state.created_at_ms, reverse=True)

    def definitions(self, topic: Topic) -> dict[str, Definition]:
        """The registered task or workflow definitions, by key."""
        values: dict[bytes, bytes] = {}
        read_all(self._log, [self._tp(topic, 0)], lambda record: _keep(values, record))
        return {key.decode(): DEFINITION.decode(value) for key, value in sorted(values.items())}

    def stops(self) -> dict[str, Stop]:
        """The stops in force, by key."""
        return {key: read_stop(key, found.document) for key, found in self.definitions(Topic.STOPS).items()}

    def values(self, topic: Topic, number: int) -> dict[bytes, bytes]:
        """What stands in one partition of a compacted topic, by key."""
        values: dict[bytes, bytes] = {}
        read_all(self._log, [self._tp(topic, number)], lambda record: _keep(values, record))
        return values

    def wait(self, workflow_id: str, is_done: Callable[[WorkflowState], bool], timeout: float) -> WorkflowState | None:
        """Follow a workflow's records until one satisfies; None when the time is over."""
        tp = self._tp(Topic.WORKFLOW_STATE, partition_of(workflow_id, self._partitions))
        deadline = time.monotonic() + timeout
        reader = self._log.reader()
        try:
            reader.assign({tp: BEGINNING})
            while (rest := deadline - time.monotonic()) > 0:
                for record in reader.read(5_000, min(rest, 0.2)):
                    if record.key == workflow_id.encode() and record.value is not None:
                        state = WORKFLOW_STATE.decode(record.value)
                        if is_done(state):
                            return state
        finally:
            reader.close()
        return None

    def _tp(self, topic: Topic, number: int) -> TopicPartition:
        return TopicPartition(self._namespace.topic(topic), number)


def _keep(values: dict[bytes, bytes], record: Record) -> None:
    key = record.key or b""
    if record.value is None:
        values.pop(key, None)
    else:
        values[key] = record.value
