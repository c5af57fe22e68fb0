"""Forgetting finished workflows: tombstones for what ended before the retention time, in bounded batches.

Not a delay: the owner of a partition walks its local store by end time when it has nothing else to do. The run that
is counted is the last one; a workflow id that runs again is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from broker_engine.decider.identity import task_id
from broker_engine.model.state import TaskState, WorkflowState
from broker_engine.runtime.outbox import Outbox, OutRecord
from broker_engine.runtime.partition import Partition
from broker_engine.topics import Topic
from broker_engine.wire.codecs import TASK_STATE, WORKFLOW_STATE

#: Workflows per batch: a transaction of a few hundred records, some milliseconds.
BATCH = 50
#: How long an idempotency key is remembered (the stated horizon of D10).
IDEMPOTENCY_RETENTION_MS = 30 * 24 * 60 * 60 * 1_000


@dataclass(slots=True)
class Retired:
    """What a batch removes: tombstones for the log, and what to change locally once they are committed."""

    records: list[OutRecord] = field(default_factory=list)
    #: (ended at, workflow id) of the index entries that were looked at.
    seen: list[tuple[int, str]] = field(default_factory=list)
    #: Workflows whose entry was too early, with their record: to be looked at again later.
    kept: list[tuple[WorkflowState, bytes]] = field(default_factory=list)
    #: Workflow id and stored task ids of what goes.
    gone: dict[str, list[str]] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)

    def settle(self, partition: Partition) -> None:
        """The tombstones are committed: forget locally."""
        store = partition.store
        for ended_at_ms, workflow_id in self.seen:
            store.remove_ended(ended_at_ms, workflow_id)
        for workflow, value in self.kept:
            store.put_workflow(workflow.workflow_id, value, workflow.ended_at_ms or partition.log_time_ms)
        for workflow_id, task_ids in self.gone.items():
            store.remove_workflow(workflow_id)
            for each in task_ids:
                store.remove_task(workflow_id, each)
        for key in self.keys:
            partition.idempotency.pop(key, None)
        store.flush()


def retire(partition: Partition, outbox: Outbox, retention_ms: int, now_ms: int) -> Retired | None:
    """The next batch of a partition, None when nothing is due.

    ``now_ms`` is the broker's estimated time: the log time of an idle partition stands still, and forgetting decides
    nothing.
    """
    horizon_ms = now_ms - retention_ms
    batch = Retired(
        seen=partition.store.ended_before(horizon_ms, BATCH),
        keys=_forgotten_keys(partition, now_ms),
    )
    if not batch.seen and not batch.keys:
        return None
    for _, workflow_id in batch.seen:
        value = partition.store.workflow(workflow_id)
        if value is None or workflow_id in partition.live:
            continue
        workflow = WORKFLOW_STATE.decode(value)
        if (workflow.ended_at_ms or 0) > horizon_ms:
            # Restored with the moment of its record, which may lie before the end of its last run.
            batch.kept.append((workflow, value))
            continue
        batch.gone[workflow_id], every = stored_tasks(partition, workflow)
        batch.records += [outbox.tombstone(Topic.TASK_STATE, each, partition.number) for each in every]
        batch.records.append(outbox.tombstone(Topic.WORKFLOW_STATE, workflow_id, partition.number))
    batch.records += [outbox.tombstone(Topic.IDEMPOTENCY, key, partition.number) for key in batch.keys]
    return batch


def _forgotten_keys(partition: Partition, now_ms: int) -> list[str]:
    horizon_ms = now_ms - IDEMPOTENCY_RETENTION_MS
    found = (key for key, entry in partition.idempotency.items() if entry.created_at_ms < horizon_ms)
    return [key for _, key in zip(range(BATCH), found, strict=False)]


def stored_tasks(partition: Partition, workflow: WorkflowState) -> tuple[list[str], list[str]]:
    """The ids of an ended workflow's tasks: those in the local store, and all that have a record."""
    ids = partition.store.task_ids(workflow.workflow_id)
    return ids, sorted({*ids, *_earlier_attempts(partition, workflow, ids)})


def _earlier_attempts(partition: Partition, workflow: WorkflowState, ids: list[str]) -> Iterator[str]:
    """The ids of attempts before the stored ones; they can be derived, so nobody had to keep them."""
    for each in ids:
        value = partition.store.task(workflow.workflow_id, each)
        if value is None:
            continue
        task: TaskState = TASK_STATE.decode(value)
        for attempt in range(task.attempt):
            yield task_id(
                workflow_id=workflow.workflow_id,
                incarnation=workflow.incarnation,
                run=task.run,
                reference=task.reference,
                iteration=task.iteration,
                attempt=attempt,
            )
