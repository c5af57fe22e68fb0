"""Queues as an operator sees them: what waits, who serves, how far behind they are. Read from the topics alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from broker_engine.log.ports import Admin, Isolation, Log, TopicPartition
from broker_engine.model.state import TaskState
from broker_engine.model.status import WaitingFor
from broker_engine.model.stops import Stop, stop_of_queue
from broker_engine.topics import Namespace
from broker_engine.wire.codecs import SCHEDULED_TASK
from broker_engine.worker.presence import LOST_MS
from broker_engine.worker.views import Heard, Views

Queue = tuple[str, str]
#: Up to here the records that a group has still to read are counted one by one. Offsets alone also count the markers of
#: transactions: an upper bound, twice the truth at worst.
MAX_COUNTED = 1_000


class Worker(NamedTuple):
    """A live worker of a queue, by its last word."""

    worker_id: str
    capacity: int
    free: int
    version: str
    heard_at_ms: int


@dataclass(slots=True)
class QueueView:
    """One queue at one moment (epoch milliseconds)."""

    domain: str
    task_type: str
    #: Live tasks that do not run, by what they wait for.
    waiting: dict[str, int] = field(default_factory=dict)
    #: Tasks that a worker has.
    running: int = 0
    #: Hand-outs that the queue's consumer group has not read; None while there is no topic.
    lag: int | None = None
    #: Whether ``lag`` was counted record by record; otherwise it is an upper bound.
    is_lag_exact: bool = True
    workers: list[Worker] = field(default_factory=list)
    #: When a worker was last heard of, good-byes included; None if not within the last hour.
    last_poll_ms: int | None = None
    #: Since when the oldest task on the queue has waited.
    oldest_waiting_ms: int | None = None
    #: Its pause.
    stop: Stop | None = None

    @property
    def name(self) -> str:
        return f"{self.domain}/{self.task_type}"

    @property
    def depth(self) -> int:
        return sum(self.waiting.values())

    @property
    def free(self) -> int:
        """Free slots of all its workers."""
        return sum(worker.free for worker in self.workers)


def waits_since_ms(task: TaskState) -> int:
    """Since when a task has been where it waits."""
    return task.handed_out_at_ms if task.handed_out_at_ms is not None else task.updated_at_ms


def in_order(tasks: Iterable[TaskState]) -> list[TaskState]:
    """The tasks of a queue in the order in which they will be taken, as far as that is known: what is on the queue by
    its hand-out, then what waits for something else."""
    return sorted(tasks, key=lambda task: (task.waiting_for is not WaitingFor.WORKER, waits_since_ms(task)))


class QueueViews:
    """Point-in-time views of the queues of one namespace."""

    def __init__(self, log: Log, namespace: Namespace, views: Views) -> None:
        self._log = log
        self._namespace = namespace
        self._views = views

    def all(self, now_ms: int) -> list[QueueView]:
        """Every queue that has a topic, a live task or a live worker; reads the task states of every partition."""
        queues: dict[Queue, QueueView] = {}
        for task in self._views.live_tasks():
            _count(_of(queues, (task.domain, task.task_type)), task)
        for heard in self._views.presence():
            _hear(_of(queues, (heard.presence.domain, heard.presence.task_types)), heard, now_ms)
        admin = self._log.admin()
        try:
            topics = admin.topics()
            for topic in topics:
                found = self._namespace.queue_of(topic)
                if found is not None:
                    _of(queues, found)
            shared = self._views.shared_types() if any(map(self._namespace.shared_domain_of, topics)) else frozenset()
            for queue in queues.values():
                self._look_at_lag(admin, topics, queue, is_shared=queue.task_type in shared)
        finally:
            admin.close()
        stops = self._views.stops()
        for queue in queues.values():
            queue.stop = stop_of_queue(stops, queue.domain, queue.task_type)
        return [queues[queue] for queue in sorted(queues)]

    def waiting(self, domain: str, task_type: str) -> list[TaskState]:
        """What waits on a queue, the head of the line first."""
        queue = (domain, task_type)
        return in_order(
            task
            for task in self._views.live_tasks()
            if (task.domain, task.task_type) == queue and task.waiting_for is not None
        )

    def _look_at_lag(self, admin: Admin, topics: Mapping[str, int], view: QueueView, *, is_shared: bool) -> None:
        topic = self._namespace.schedule(view.domain, view.task_type)
        group = self._namespace.worker_group(view.domain, view.task_type)
        if topic not in topics and is_shared:
            topic = self._namespace.shared_schedule(view.domain)
            group = self._namespace.shared_worker_group(view.domain, view.task_type)
        if topic not in topics:
            return
        tps = [TopicPartition(topic, number) for number in range(topics[topic])]
        ends = admin.end_offsets(tps, Isolation.COMMITTED)
        begins = admin.begin_offsets(tps)
        committed = admin.committed(group, tps, require_stable=False)
        starts = {tp: max(mark.offset if (mark := committed[tp]) else 0, begins[tp]) for tp in tps}
        behind = {tp: starts[tp] for tp in tps if starts[tp] < ends[tp]}
        view.lag = sum(ends[tp] - starts[tp] for tp in behind)
        view.is_lag_exact = view.lag <= MAX_COUNTED
        if behind and view.is_lag_exact:
            view.lag = self._counted(behind, ends, view.task_type)

    def _counted(self, behind: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], task_type: str) -> int:
        reader = self._log.reader()
        count = 0
        try:
            reader.assign(behind)
            while any(reader.position(tp) < ends[tp] for tp in behind):
                count += sum(
                    record.offset < ends[TopicPartition(record.topic, record.partition)]
                    and SCHEDULED_TASK.decode(record.value).task_type == task_type
                    for record in reader.read(MAX_COUNTED, 0.2)
                )
        finally:
            reader.close()
        return count


def _of(queues: dict[Queue, QueueView], queue: Queue) -> QueueView:
    return queues.setdefault(queue, QueueView(*queue))


def _count(view: QueueView, task: TaskState) -> None:
    if task.waiting_for is None:
        view.running += 1
        return
    view.waiting[task.waiting_for.value] = view.waiting.get(task.waiting_for.value, 0) + 1
    if task.waiting_for is WaitingFor.WORKER:
        since_ms = waits_since_ms(task)
        view.oldest_waiting_ms = since_ms if view.oldest_waiting_ms is None else min(view.oldest_waiting_ms, since_ms)


def _hear(view: QueueView, heard: Heard, now_ms: int) -> None:
    presence = heard.presence
    view.last_poll_ms = max(view.last_poll_ms or 0, heard.at_ms)
    if not presence.is_leaving and heard.at_ms > now_ms - LOST_MS:
        worker = Worker(presence.worker_id, presence.capacity, presence.free, presence.version, heard.at_ms)
        view.workers.append(worker)
