"""Noticing that a worker is lost: ten seconds without a sign of life, told to the partitions where its work runs.

Silence is measured on ``<ns>.workers`` itself. When a worker misses its word, a probe (a tombstone of ours) is appended
there; its LogAppendTime, once read back, is the time, and everything before it has been read. So a decider that lags
or a broker that was away makes nobody seem silent. After a gap in the topic's log time (an outage) nobody is judged for
one session time-out: the workers' words come first. A partition that was just taken over hears of losses after its own
grace period, as of deadlines.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import structlog

from broker_engine.decider.domains import LIVE_MS
from broker_engine.decider.losses import lost_tasks
from broker_engine.errors import LogError
from broker_engine.log.ports import Delivery, Log
from broker_engine.model.commands import WorkerLost
from broker_engine.model.status import IN_HAND
from broker_engine.runtime.clock import BrokerClock
from broker_engine.runtime.partition import Partition
from broker_engine.runtime.pollers import Pollers
from broker_engine.topics import Namespace, Topic
from broker_engine.wire.commands import encode_command
from broker_engine.wire.signing import Signer

_log = structlog.get_logger(__name__)

#: How often silence is looked for.
_EVERY_MS = 1_000
#: A worker speaks every three seconds; one that has missed its word is asked after.
_MISSED_MS = 3_500
#: Between two probes.
_PROBE_EVERY_MS = 2_000
#: So long after a loss, starts of the worker may still come up in a partition's backlog: it is looked at again.
_LOOK_AGAIN_MS = 60_000
_LOOK_EVERY_MS = 5_000
#: Partitions that are taken over later are told of older losses, too (the presence of workers is kept as long).
_REMEMBER_MS = 60 * 60 * 1_000
#: More losses than this are not remembered.
_MAX_LOST = 10_000


class _Loss(NamedTuple):
    #: The end of the ten seconds of silence.
    at_ms: int
    noticed_ms: int


class Losses:
    """Judges the workers for the partitions of one session."""

    def __init__(
        self, log: Log, namespace: Namespace, signer: Signer, pollers: Pollers, clock: BrokerClock, *, grace_ms: int
    ) -> None:
        self._writer = log.writer(client_id=f"{namespace.name}.losses")
        self._workers = namespace.topic(Topic.WORKERS)
        self._commands = namespace.topic(Topic.COMMANDS)
        self._signer = signer
        self._pollers = pollers
        self._clock = clock
        self._grace_ms = grace_ms
        self._lost: dict[str, _Loss] = {}
        self._next_ms = self._next_probe_ms = self._next_look_ms = 0
        #: Partitions that know of all that is in ``_lost``.
        self._told: set[int] = set()

    def serve(self, partitions: Collection[Partition]) -> None:
        """Look for silence once a second, and tell the partitions of it."""
        now_ms = self._clock.now_ms()
        if now_ms < self._next_ms:
            return
        self._next_ms = now_ms + _EVERY_MS
        workers = self._pollers.workers()
        if workers and min(workers.values()) < now_ms - _MISSED_MS and now_ms >= self._next_probe_ms:
            self._next_probe_ms = now_ms + _PROBE_EVERY_MS
            self._probe()
        time_ms = self._pollers.log_time_ms
        if time_ms >= self._pollers.gap_at_ms + self._grace_ms:
            self._judge(workers, time_ms)
        if self._lost:
            self._tell(partitions, now_ms)
        self._writer.poll(0.0)

    def close(self) -> None:
        self._writer.close()

    def _probe(self) -> None:
        self._send(self._workers, 0, b"probe", None)

    def _judge(self, workers: Mapping[str, int], time_ms: int) -> None:
        for worker_id, seen_ms in workers.items():
            loss = self._lost.get(worker_id)
            if seen_ms > time_ms - LIVE_MS:
                self._lost.pop(worker_id, None)
            elif loss is None or loss.at_ms != seen_ms + LIVE_MS:
                _log.warning("losses.worker_lost", worker=worker_id, silent_ms=time_ms - seen_ms)
                self._lost[worker_id] = _Loss(seen_ms + LIVE_MS, time_ms)
                self._told.clear()
            elif time_ms - loss.noticed_ms > _LOOK_AGAIN_MS:
                self._pollers.forget(worker_id)
        for worker_id, loss in list(self._lost.items()):
            if time_ms - loss.noticed_ms > _REMEMBER_MS or len(self._lost) > _MAX_LOST:
                del self._lost[worker_id]

    def _tell(self, partitions: Collection[Partition], now_ms: int) -> None:
        newest_ms = max(loss.noticed_ms for loss in self._lost.values())
        if now_ms >= self._next_look_ms and now_ms - newest_ms <= _LOOK_AGAIN_MS:
            self._told.clear()
        self._told &= {partition.number for partition in partitions}
        for partition in partitions:
            if partition.number in self._told or _waits_for_reports(partition, now_ms):
                continue
            self._told.add(partition.number)
            self._next_look_ms = now_ms + _LOOK_EVERY_MS
            for worker_id in set(self._taken_with(partition)):
                key = f"lost-{partition.number}"
                command = WorkerLost(key=key, worker_id=worker_id, lost_at_ms=self._lost[worker_id].at_ms)
                self._send(self._commands, partition.number, key.encode(), encode_command(command, self._signer))

    def _taken_with(self, partition: Partition) -> Iterator[str]:
        """The lost workers on which something of this partition ran."""
        for execution in partition.live.values():
            for task in execution.live_tasks():
                if task.phase not in IN_HAND or task.worker_id not in self._lost:
                    continue
                if lost_tasks(execution, task.worker_id, self._lost[task.worker_id].at_ms):
                    yield task.worker_id

    def _send(self, topic: str, partition: int, key: bytes, value: bytes | None) -> None:
        def delivered(delivery: Delivery) -> None:
            if delivery.error is not None:
                _log.warning("losses.not_sent", topic=topic, error=str(delivery.error))

        try:
            self._writer.send(topic, partition, key, value, on_delivery=delivered)
        except LogError as error:  # the next look sends it again
            _log.warning("losses.not_sent", topic=topic, error=str(error))


def _waits_for_reports(partition: Partition, now_ms: int) -> bool:
    """Whether the partition was just taken over: what workers have queued comes first."""
    return now_ms < partition.grace_until_ms or (partition.is_fresh and partition.next_due_ms() is not None)
