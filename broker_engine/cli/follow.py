"""Following one workflow's records as they are written."""

from __future__ import annotations

import time
from collections.abc import Iterator

from broker_engine.errors import NoAnswer, NotFound
from broker_engine.log.ports import BEGINNING, Isolation, Log, TopicPartition
from broker_engine.model.state import TaskState, WorkflowState
from broker_engine.topics import Namespace, Topic, partition_of
from broker_engine.wire.codecs import TASK_STATE, WORKFLOW_STATE
from broker_engine.worker.views import WorkflowView


def follow(log: Log, namespace: Namespace, partitions: int, workflow_id: str, timeout: float) -> Iterator[WorkflowView]:
    """Yield the workflow as it is, then every time it has changed, until it has ended.

    Raises:
        NotFound: there is none.
        NoAnswer: it has not ended within the time.
    """
    number = partition_of(workflow_id, partitions)
    workflows = TopicPartition(namespace.topic(Topic.WORKFLOW_STATE), number)
    tasks = TopicPartition(namespace.topic(Topic.TASK_STATE), number)
    admin = log.admin()
    try:
        ends = admin.end_offsets([workflows, tasks], Isolation.COMMITTED)
    finally:
        admin.close()
    deadline = time.monotonic() + timeout
    needle = workflow_id.encode()
    state: WorkflowState | None = None
    attempts: dict[str, TaskState] = {}
    is_told = False
    reader = log.reader()
    try:
        reader.assign({workflows: BEGINNING, tasks: BEGINNING})
        while True:
            for record in reader.read(5_000, 0.1):
                if record.value is None or needle not in record.value:
                    continue
                if record.topic == workflows.topic and record.key == needle:
                    state, is_told = WORKFLOW_STATE.decode(record.value), False
                elif record.topic == tasks.topic:
                    task = TASK_STATE.decode(record.value)
                    if task.workflow_id == workflow_id:
                        attempts[task.task_id], is_told = task, False
            if any(reader.position(tp) < end for tp, end in ends.items()):
                continue  # what was there at the start is not news
            if state is None:
                raise NotFound(f"there is no workflow {workflow_id}")
            if not is_told:
                is_told = True
                yield WorkflowView(state, tuple(sorted(attempts.values(), key=lambda task: (task.run, task.seq))))
                if state.status.is_terminal:
                    return
            if time.monotonic() > deadline:
                raise NoAnswer(f"workflow {workflow_id} has not ended within {timeout:g} s; it goes on")
    finally:
        reader.close()
