"""The delay role: records wait in tiered topics and come back as commands.

Each tier is a topic with one constant delay, so a partition's records come due in the order they stand. A record
waits in the largest tier that fits and hops on with the rest; below the smallest tier it sits in the *last hop*,
a heap in memory over a topic whose offsets are committed only up to the contiguous prefix that has fired. So the
truth is in the log, and a killed process fires some commands twice (harmless) and none never.

The loop of a tier sleeps until its next moment, never a fixed time; nothing fires early by the broker's clock.
"""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from broker_engine.errors import DecodeError, Fenced, LogError
from broker_engine.log.ports import CommittedOffset, Delivery, GroupReader, Log, Record, TopicPartition, Writer
from broker_engine.model.commands import DelayDue, ScheduleDue
from broker_engine.model.schedules import SCHEDULE_DELAY
from broker_engine.runtime.clock import BrokerClock, Clock, wall_clock_ms
from broker_engine.topics import DELAY_TIERS, LAST_HOP, Namespace, Topic, tier_for
from broker_engine.wire.codecs import DELAYED_COMMAND
from broker_engine.wire.commands import encode_command
from broker_engine.wire.records import DelayedCommand
from broker_engine.wire.signing import Signer

_log = structlog.get_logger(__name__)

#: Records of one partition held in memory; beyond it the partition is paused. The last hop holds everything that is
#: due within its 15 s, because a later record may be due earlier.
MAX_HELD = {LAST_HOP: 200_000}
MAX_HELD_OTHERS = 5_000
#: A burst goes out in batches of this size, with the group served in between.
FIRE_BATCH = 1_000
_READ_BATCH = 1_000
_MAX_WAIT_SECONDS = 0.1
_COMMIT_EVERY_MS = 500
_RETRY_SECONDS = 0.5


@dataclass(slots=True)
class Held:
    """What is held of one partition: the offsets that are still to fire, and the prefix that has fired."""

    next_offset: int | None = None
    waiting: deque[int] = field(default_factory=deque)
    fired: set[int] = field(default_factory=set)
    committed: int | None = None
    is_paused: bool = False

    def take(self, offset: int) -> None:
        self.waiting.append(offset)
        self.next_offset = offset + 1

    def done(self, offset: int) -> None:
        self.fired.add(offset)
        while self.waiting and self.waiting[0] in self.fired:
            self.fired.discard(self.waiting.popleft())

    @property
    def prefix(self) -> int | None:
        """The offset to commit: everything before it has fired."""
        return self.waiting[0] if self.waiting else self.next_offset


class TierLoop:
    """Serves one tier's topic."""

    def __init__(
        self, log: Log, namespace: Namespace, tier: str, signer: Signer, *, client_id: str, clock: Clock
    ) -> None:
        self._log = log
        self._namespace = namespace
        self._tier = tier
        self._tier_ms = DELAY_TIERS[tier]
        self._topic = namespace.delay(tier)
        self._commands = namespace.topic(Topic.COMMANDS)
        self._signer = signer
        self._client_id = client_id
        self._clock = BrokerClock(clock)
        self._max_held = MAX_HELD.get(tier, MAX_HELD_OTHERS)
        self._held: dict[int, Held] = {}
        #: (moment, partition, offset, what waits); entries of partitions that were lost are skipped.
        self._heap: list[tuple[int, int, int, DelayedCommand]] = []
        self._fresh: list[TopicPartition] = []
        self._last_commit_ms = 0
        self._writer: Writer
        self._reader: GroupReader
        self.fired = 0

    # --- the loop

    def run(self, stop: threading.Event) -> None:
        """Serve until stopped; Kafka's errors rebuild the loop's clients."""
        while not stop.is_set():
            try:
                self._serve(stop)
            except LogError as error:
                _log.warning("delays.rebuilds", tier=self._tier, error=str(error))
                stop.wait(_RETRY_SECONDS)

    def _serve(self, stop: threading.Event) -> None:
        self.open()
        try:
            while not stop.is_set():
                self.step()
            self._writer.flush(5.0)
            self._commit(now=True)
        finally:
            self.close()

    def open(self) -> None:
        """Join the tier's group with nothing held."""
        self._held.clear()
        self._heap.clear()
        self._fresh.clear()
        self._writer = self._log.writer(client_id=self._client_id)
        self._reader = self._log.group_reader(self._namespace.delays_group(self._tier), client_id=self._client_id)
        self._reader.subscribe(self._topic, self)

    def step(self) -> None:
        """One round of the loop: read, fire what is due, commit what has fired."""
        for record in self._reader.read(_READ_BATCH, self._wait()):
            self._take(record)
        self._balance()
        self._fire()
        self._writer.poll(0.0)
        self._commit()

    def close(self) -> None:
        self._writer.close()
        self._reader.close()

    def _wait(self) -> float:
        if not self._heap:
            return _MAX_WAIT_SECONDS
        return min(max((self._heap[0][0] - self._clock.now_ms()) / 1_000, 0.0), _MAX_WAIT_SECONDS)

    def _take(self, record: Record) -> None:
        held = self._held.get(record.partition)
        if held is None or (held.next_offset is not None and record.offset < held.next_offset):
            return
        self._clock.observe(record.timestamp_ms)
        held.take(record.offset)
        try:
            delayed = DELAYED_COMMAND.decode(record.value)
        except DecodeError as error:
            _log.error("delays.undecodable", topic=record.topic, partition=record.partition, offset=record.offset)
            _log.debug("delays.undecodable_reason", error=str(error))
            held.done(record.offset)
            return
        moment = delayed.due_at_ms
        if self._tier_ms:
            moment = min(moment, record.timestamp_ms + self._tier_ms)
        heapq.heappush(self._heap, (moment, record.partition, record.offset, delayed))

    def _fire(self) -> None:
        """Send everything whose moment has come, a bounded batch at a time."""
        now_ms = self._clock.now_ms()
        for _ in range(FIRE_BATCH):
            if not self._heap or self._heap[0][0] > now_ms:
                return
            moment, partition, offset, delayed = heapq.heappop(self._heap)
            if partition in self._held:
                self._send(moment, partition, offset, delayed, now_ms)

    def _send(self, moment: int, partition: int, offset: int, delayed: DelayedCommand, now_ms: int) -> None:
        held = self._held[partition]

        def delivered(delivery: Delivery) -> None:
            if delivery.error is not None:
                heapq.heappush(self._heap, (moment, partition, offset, delayed))
                return
            self.fired += 1
            self._clock.observe(delivery.timestamp_ms, is_new=True)
            held.done(offset)

        topic, value = self._next_stop(delayed, now_ms)
        self._writer.send(topic, partition, delayed.workflow_id.encode(), value, on_delivery=delivered)

    def _next_stop(self, delayed: DelayedCommand, now_ms: int) -> tuple[str, bytes]:
        rest_ms = delayed.due_at_ms - now_ms
        if rest_ms > 0:
            return self._namespace.delay(tier_for(rest_ms)), DELAYED_COMMAND.encode(delayed)
        return self._commands, encode_command(_due(delayed), self._signer)

    # --- the group

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        for tp in partitions:
            self._held[tp.partition] = Held()
        self._fresh += partitions

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self.lost(partitions)

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        for tp in partitions:
            self._held.pop(tp.partition, None)
        self._heap = [entry for entry in self._heap if entry[1] in self._held]
        heapq.heapify(self._heap)

    def _balance(self) -> None:
        """Begin new partitions, and hold each one's memory within its bound."""
        if self._fresh:
            self._reader.resume(self._fresh)
            self._fresh.clear()
        for number, held in self._held.items():
            is_full = len(held.waiting) >= self._max_held
            if is_full and not held.is_paused:
                self._reader.pause([TopicPartition(self._topic, number)])
            elif held.is_paused and not is_full:
                self._reader.resume([TopicPartition(self._topic, number)])
            held.is_paused = is_full

    def _commit(self, *, now: bool = False) -> None:
        now_ms = self._clock.now_ms()
        if not now and now_ms - self._last_commit_ms < _COMMIT_EVERY_MS:
            return
        self._last_commit_ms = now_ms
        offsets: Mapping[TopicPartition, CommittedOffset] = {
            TopicPartition(self._topic, number): CommittedOffset(prefix)
            for number, held in self._held.items()
            if (prefix := held.prefix) is not None and prefix != held.committed
        }
        if not offsets:
            return
        try:
            self._reader.commit(offsets, asynchronous=not now)
        except Fenced as error:
            _log.info("delays.commit_refused", tier=self._tier, error=str(error))
            return
        for tp, committed in offsets.items():
            self._held[tp.partition].committed = committed.offset


def _due(delayed: DelayedCommand) -> DelayDue | ScheduleDue:
    if delayed.task_id == SCHEDULE_DELAY:
        return ScheduleDue(key=delayed.workflow_id, generation=delayed.hand_out, due_at_ms=delayed.due_at_ms)
    return DelayDue(
        key=delayed.workflow_id,
        reference=delayed.reference,
        task_id=delayed.task_id,
        hand_out=delayed.hand_out,
        due_at_ms=delayed.due_at_ms,
    )


class Delays:
    """The delay role: one loop per tier, each in its thread."""

    def __init__(
        self, log: Log, namespace: Namespace, signer: Signer, *, client_id: str, clock: Clock = wall_clock_ms
    ) -> None:
        self._loops = [
            TierLoop(log, namespace, tier, signer, client_id=f"{client_id}.{tier}", clock=clock) for tier in DELAY_TIERS
        ]
        self._stop = threading.Event()

    def stop(self) -> None:
        self._stop.set()

    def run(self) -> None:
        """Serve all tiers until stopped."""
        threads = [threading.Thread(target=loop.run, args=(self._stop,), name="delays") for loop in self._loops]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
