"""Notices what waits in a domain that nobody polls while another domain of its list has a worker (D13).

A look costs one question per *bucket* of waiting tasks (runtime/choosers.py), however much waits. Nothing is decided
here: each task that is to go elsewhere gets a ``RerouteTask`` command, and the decider looks at its state again.

Silence is measured on ``<ns>.workers`` itself, as for lost workers: a probe that was read back proves that everything
before it has been read. When that topic was read is no proof of what is the case now, so nothing is done while its last
record is old.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import structlog

from broker_engine.decider.domains import LIVE_MS
from broker_engine.decider.transfers import live_choice
from broker_engine.errors import LogError
from broker_engine.log.ports import Delivery, Log, Writer
from broker_engine.model.commands import RerouteTask
from broker_engine.model.state import TaskState
from broker_engine.runtime.clock import BrokerClock
from broker_engine.runtime.partition import Partition
from broker_engine.runtime.pollers import Pollers
from broker_engine.topics import Namespace, Topic
from broker_engine.wire.commands import encode_command
from broker_engine.wire.signing import Signer

_log = structlog.get_logger(__name__)

#: How often is looked. With a probe on its way in between, a re-route comes within two seconds.
_EVERY_MS = 500
#: More than this is not re-routed in one look at a partition: the loop has other things to do.
MAX_AT_ONCE = 500
#: The signs of life must have been read up to here; a domain to go to has a worker that speaks every three seconds.
_STALE_MS = 5_000
_PROBE_EVERY_MS = 500


class Rerouting:
    """Looks for the partitions of one session."""

    def __init__(
        self, log: Log, namespace: Namespace, signer: Signer, pollers: Pollers, clock: BrokerClock, *, grace_ms: int
    ) -> None:
        self._log = log
        self._name = namespace.name
        self._workers = namespace.topic(Topic.WORKERS)
        self._commands = namespace.topic(Topic.COMMANDS)
        self._signer = signer
        self._pollers = pollers
        self._clock = clock
        self._grace_ms = grace_ms
        #: Made when it is first needed: most namespaces never re-route anything.
        self._writer: Writer | None = None
        self._next_ms = self._next_probe_ms = 0

    def serve(self, partitions: Collection[Partition]) -> None:
        """Look twice a second."""
        now_ms = self._clock.now_ms()
        if now_ms < self._next_ms:
            return
        self._next_ms = now_ms + _EVERY_MS
        if self._writer is not None:
            self._writer.poll(0.0)
        time_ms = self._pollers.log_time_ms
        if now_ms - time_ms > _STALE_MS or time_ms < self._pollers.gap_at_ms + self._grace_ms:
            self._probe_if_silent(partitions, now_ms)
            return
        for partition in partitions:
            if not partition.is_fresh and now_ms >= partition.grace_until_ms:  # else starts that were sent come first
                self._look(partition, time_ms)
        self._probe_if_silent(partitions, now_ms)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _look(self, partition: Partition, time_ms: int) -> None:
        left = MAX_AT_ONCE
        for bucket in partition.choosers.buckets:
            heard_ms = self._pollers.last_heard_ms(bucket.domain, bucket.task_type)
            if heard_ms is not None and heard_ms > time_ms - LIVE_MS:
                continue
            target = live_choice(bucket.choices, bucket.task_type, self._pollers, time_ms)
            if target is None:
                continue
            for task in partition.choosers.take(bucket, partition.live, left):
                left -= self._reroute(partition, task, target, time_ms, heard_ms)
            if left <= 0:
                return

    def _reroute(self, partition: Partition, task: TaskState, target: str, time_ms: int, heard_ms: int | None) -> bool:
        """Send the command; False when it is too early, or cannot be sent: the task is found again at the next look."""
        since_ms = heard_ms if heard_ms is not None else task.handed_out_at_ms or task.updated_at_ms
        if since_ms > time_ms - LIVE_MS:  # nobody ever polled there: its workers get as long to come up
            partition.choosers.note(partition.live[task.workflow_id])
            return False
        silent = f"no worker has polled domain {task.domain} for {(time_ms - since_ms) / 1_000:.0f} s"
        command = RerouteTask(
            key=task.workflow_id,
            reference=task.reference,
            task_id=task.task_id,
            hand_out=task.hand_out,
            domain=target,
            reason=f"{silent}: re-routed to {target}",
        )
        _log.info("rerouting.sent", task_id=task.task_id, domain=task.domain, to=target)

        def delivered(delivery: Delivery) -> None:
            execution = partition.live.get(task.workflow_id)
            if delivery.error is not None and execution is not None:
                partition.choosers.note(execution)

        value = encode_command(command, self._signer)
        is_sent = self._send(self._commands, partition.number, task.workflow_id.encode(), value, delivered)
        if not is_sent:
            partition.choosers.note(partition.live[task.workflow_id])
        return is_sent

    def _probe_if_silent(self, partitions: Collection[Partition], now_ms: int) -> None:
        """Ask for the time of the workers' topic where only that is missing to call a domain silent."""
        if now_ms < self._next_probe_ms:
            return
        time_ms = self._pollers.log_time_ms
        queues = {(b.domain, b.task_type) for partition in partitions for b in partition.choosers.buckets}
        heard = (self._pollers.last_heard_ms(*queue) for queue in queues)
        if any(heard_ms is not None and time_ms < heard_ms + LIVE_MS <= now_ms for heard_ms in heard):
            self._next_probe_ms = now_ms + _PROBE_EVERY_MS
            self._send(self._workers, 0, b"probe", None, lambda _delivery: None)

    def _send(
        self, topic: str, partition: int, key: bytes, value: bytes | None, delivered: Callable[[Delivery], None]
    ) -> bool:
        if self._writer is None:
            self._writer = self._log.writer(client_id=f"{self._name}.rerouting")
        try:
            self._writer.send(topic, partition, key, value, on_delivery=delivered)
        except LogError as error:
            _log.warning("rerouting.not_sent", topic=topic, error=str(error))
            return False
        return True
