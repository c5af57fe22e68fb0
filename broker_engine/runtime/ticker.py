"""Ticks: plain commands that carry nothing but their log time, so that deadlines of a quiet partition fire.

A deadline fires when a record of its partition with log time at or past it has been read. If none comes by itself, the
owner appends a Tick at the estimated moment, at most one outstanding. While deadlines wait, a Tick also goes out every
few seconds: a longer gap in log time then means an outage.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker_engine.errors import LogError
from broker_engine.log.ports import Delivery, Log
from broker_engine.model.commands import Tick
from broker_engine.runtime.clock import BrokerClock
from broker_engine.runtime.partition import Partition
from broker_engine.topics import Namespace, Topic
from broker_engine.wire.commands import encode_command
from broker_engine.wire.signing import Signer

#: Below the gap that is taken for an outage (turn.GAP_MS), with room for a slow loop.
KEEP_ALIVE_MS = 3_000
#: A tick that came back short of its moment (a clock was set back) is followed by the next one not sooner than this.
_PAUSE_MS = 20
#: A tick that was lost (not even its failure came back) is sent again after this.
_LOST_MS = 10_000


class Ticker:
    """Sends ticks for the partitions of one processor."""

    def __init__(self, log: Log, namespace: Namespace, signer: Signer, clock: BrokerClock) -> None:
        self._writer = log.writer(client_id=f"{namespace.name}.ticks")
        self._topic = namespace.topic(Topic.COMMANDS)
        self._signer = signer
        self._clock = clock
        self._sent_ms: dict[int, int] = {}

    def next_due_ms(self, partitions: Iterable[Partition]) -> int | None:
        """When ``serve`` has something to do next."""
        moments = [moment for p in partitions if (moment := self._moment(p)) is not None]
        return min(moments, default=None)

    def serve(self, partitions: Iterable[Partition]) -> None:
        """Tick every partition that needs it now."""
        now_ms = self._clock.now_ms()
        for partition in partitions:
            moment = self._moment(partition)
            if moment is not None and moment <= now_ms:
                self._tick(partition, now_ms)
        self._writer.poll(0.0)

    def _moment(self, partition: Partition) -> int | None:
        due_ms = partition.next_due_ms()
        if due_ms is None:
            return None
        sent_ms = self._sent_ms.get(partition.number, 0)
        if partition.tick_outstanding:
            return sent_ms + _LOST_MS
        if partition.is_fresh:
            return 0  # the first record after a takeover begins the grace period
        return max(min(due_ms, partition.log_time_ms + KEEP_ALIVE_MS), sent_ms + _PAUSE_MS)

    def _tick(self, partition: Partition, now_ms: int) -> None:
        # The key only has to be stable: a tick concerns the partition, not a workflow.
        key = f"tick-{partition.number}"

        def delivered(delivery: Delivery) -> None:
            if delivery.error is not None:
                partition.tick_outstanding = False

        partition.tick_outstanding = True
        self._sent_ms[partition.number] = now_ms
        value = encode_command(Tick(key=key), self._signer)
        try:
            self._writer.send(self._topic, partition.number, key.encode(), value, on_delivery=delivered)
        except LogError:
            partition.tick_outstanding = False

    def close(self) -> None:
        self._writer.close()
