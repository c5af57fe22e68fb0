"""One partition of the engine in memory: its live workflows, their deadlines, its log time.

Owned by one processor at a time. Nothing here is the truth: all of it is rebuilt from the compacted topics.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from immutables import Map

from broker_engine.decider.deadlines import earliest_deadline_ms
from broker_engine.model.definitions import WorkflowDef
from broker_engine.model.state import Execution, TaskState, WorkflowState, present
from broker_engine.runtime.choosers import Choosers
from broker_engine.runtime.limits import Limits
from broker_engine.runtime.store import FinishedStore
from broker_engine.wire.codecs import TASK_STATE, WORKFLOW_STATE
from broker_engine.wire.records import Idempotency

#: Log time between two checkpoint records of a partition: they are read only when the group's offsets are gone, so one
#: with every turn would be a request per partition for nothing.
CHECKPOINT_EVERY_MS = 10_000
#: Left-over heap entries that are not worth a clean-up.
_SPARE_ENTRIES = 1_000


class Clocks(NamedTuple):
    """The moments of a partition that reading a record moves on."""

    log_time_ms: int
    grace_until_ms: int
    is_fresh: bool


@dataclass(slots=True, kw_only=True)
class Partition:
    """The state of one partition of ``commands``."""

    number: int
    store: FinishedStore
    live: dict[str, Execution] = field(default_factory=dict)
    #: Definition snapshots that are stored in this partition, by content hash.
    snapshots: dict[str, WorkflowDef] = field(default_factory=dict)
    idempotency: dict[str, Idempotency] = field(default_factory=dict)
    #: The next offset of ``commands`` to be decided.
    position: int = 0
    #: The next offset of each lane of starts to be decided, by topic.
    starts: dict[str, int] = field(default_factory=dict)
    #: The largest LogAppendTime read; deadlines are measured by it.
    log_time_ms: int = 0
    #: Log time of the last checkpoint record.
    checkpoint_ms: int = 0
    #: Deadlines wait until log time has passed this (a takeover or an outage: queued reports come first).
    grace_until_ms: int = 0
    #: Set at takeover: the grace period begins with the first record's log time.
    is_fresh: bool = True
    #: Due moments, smallest first; entries are checked against the state when they come up.
    heap: list[tuple[int, str]] = field(default_factory=list)
    #: The one entry per workflow that counts; others in the heap are left-overs.
    queued: dict[str, int] = field(default_factory=dict)
    tick_outstanding: bool = False
    #: Of the one partition that decides the limits; empty in all others.
    limits: Limits = field(default_factory=Limits)
    #: What may be re-routed to another domain.
    choosers: Choosers = field(default_factory=Choosers)

    def execution(self, workflow_id: str, task_id: str | None = None) -> Execution | None:
        """A workflow; of a finished one only the named task is loaded (all that late commands ask about)."""
        live = self.live.get(workflow_id)
        if live is not None:
            return live
        value = self.store.workflow(workflow_id)
        if value is None:
            return None
        workflow = WORKFLOW_STATE.decode(value)
        execution = Execution(workflow=workflow, tasks=Map(), definition=self.snapshots[workflow.definition_hash])
        task_value = self.store.task(workflow_id, task_id) if task_id is not None else None
        if task_value is None:
            return execution
        task = TASK_STATE.decode(task_value)
        return execution if task.is_retried else execution.with_task(task)

    def whole(self, workflow_id: str) -> Execution | None:
        """A finished workflow with every task of its present run, those of rounds that are over included."""
        value = self.store.workflow(workflow_id)
        if value is None:
            return None
        stored = (self.store.task(workflow_id, task_id) for task_id in self.store.task_ids(workflow_id))
        tasks = [TASK_STATE.decode(task) for task in stored if task is not None]
        return assembled(WORKFLOW_STATE.decode(value), self.snapshots, tasks)

    def watch(self, workflow_id: str, execution: Execution) -> None:
        """Put a workflow's earliest deadline into the heap."""
        due_ms = earliest_deadline_ms(execution)
        if due_ms is None:
            return
        queued_ms = self.queued.get(workflow_id)
        if queued_ms is None or due_ms < queued_ms:
            self.queued[workflow_id] = due_ms
            heapq.heappush(self.heap, (due_ms, workflow_id))

    def rebuild_heap(self) -> None:
        """Make the heap anew from the live workflows."""
        self.heap = []
        self.queued.clear()
        for workflow_id, execution in self.live.items():
            self.watch(workflow_id, execution)

    def pop_due(self) -> str | None:
        """The next workflow whose heap entry is due by log time, outside the grace period."""
        if self.log_time_ms < self.grace_until_ms or not self._drop_left_overs() or self.heap[0][0] > self.log_time_ms:
            return None
        workflow_id = heapq.heappop(self.heap)[1]
        del self.queued[workflow_id]
        return workflow_id

    def _drop_left_overs(self) -> bool:
        """Take entries off the top that no longer count; whether any is left."""
        if len(self.heap) > 2 * len(self.queued) + _SPARE_ENTRIES:
            self.heap = [(due_ms, workflow_id) for workflow_id, due_ms in self.queued.items()]
            heapq.heapify(self.heap)
        while self.heap and self.queued.get(self.heap[0][1]) != self.heap[0][0]:
            heapq.heappop(self.heap)
        return bool(self.heap)

    def next_due_ms(self) -> int | None:
        """The moment at which a record is needed for a deadline to fire; None when nothing waits."""
        due_ms = max(self.heap[0][0], self.grace_until_ms) if self._drop_left_overs() else None
        limits_due_ms = self.limits.due_ms
        if limits_due_ms is None:
            return due_ms
        return limits_due_ms if due_ms is None else min(due_ms, limits_due_ms)

    def advance(self, timestamp_ms: int, *, gap_ms: int, grace_ms: int) -> None:
        """Take in a record's LogAppendTime.

        Log time never goes back. After a takeover, or a gap while deadlines were waiting (an outage: with deadlines the
        owner ticks more often than that), reports may still be queued in workers' producers: deadlines wait.
        """
        now_ms = max(timestamp_ms, self.log_time_ms)
        if self.is_fresh or (self.heap and now_ms - self.log_time_ms > gap_ms):
            self.grace_until_ms = now_ms + grace_ms
        self.is_fresh = False
        self.log_time_ms = now_ms

    def clocks(self) -> Clocks:
        return Clocks(self.log_time_ms, self.grace_until_ms, self.is_fresh)

    def go_back(self, clocks: Clocks) -> None:
        """Forget what reading records has moved on; they are read again."""
        self.log_time_ms, self.grace_until_ms, self.is_fresh = clocks
        self.rebuild_heap()

    def finish(self, execution: Execution, encoded: Mapping[bytes, bytes]) -> None:
        """Move an ended workflow out of memory. ``encoded``: states that were just encoded, by key."""
        workflow = execution.workflow
        workflow_id = workflow.workflow_id
        self.queued.pop(workflow_id, None)
        value = encoded.get(workflow_id.encode()) or WORKFLOW_STATE.encode(workflow)
        self.store.put_workflow(workflow_id, value, workflow.ended_at_ms or self.log_time_ms)
        for task in execution.tasks.values():
            value = encoded.get(task.task_id.encode()) or TASK_STATE.encode(task)
            self.store.put_task(workflow_id, task.task_id, value)

    def close(self) -> None:
        self.store.close()


def assembled(workflow: WorkflowState, snapshots: Mapping[str, WorkflowDef], tasks: Iterable[TaskState]) -> Execution:
    """A workflow with the latest attempt of each reference, of those tasks that belong to its present run."""
    execution = Execution(workflow=workflow, tasks=Map(), definition=snapshots[workflow.definition_hash])
    for task in present(workflow, tasks):
        execution = execution.with_task(task)
    return execution


def waiting_for_topic(executions: Iterable[Execution]) -> list[tuple[str, str, str, str, str]]:
    """(domain, task type, workflow id, reference, task id) of every task whose queue has no topic yet."""
    return [
        (task.domain, task.task_type, task.workflow_id, task.reference, task.task_id)
        for execution in executions
        for task in execution.tasks.values()
        if task.waiting_for is not None and task.waiting_for.value == "topic" and not task.is_terminal
    ]
