"""Starts that were read and wait for their turn: lanes, so that no tenant waits behind another one's flood.

New workflows stand on topics of their own (``<ns>.starts.<lane>``, the lane by tenant), partition p of each beside
partition p of ``commands``. They are decided by budget: what runs comes first, and the lanes take turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from broker_engine.log.ports import Record, TopicPartition

#: Starts decided in one turn at most; a turn of them takes some 100 ms.
MAX_STARTS = 250
#: What is held of one partition of one lane before it is paused, in records and bytes, and when it is read on.
MAX_WAITING = 1_000
MAX_WAITING_BYTES = 4 * 1024 * 1024
RESUME_BELOW = 250


class Lanes:
    """Buffers of one process, one per lane and partition."""

    def __init__(self, topics: Mapping[str, int]) -> None:
        #: Lane by topic.
        self.topics = topics
        self._waiting: dict[TopicPartition, deque[Record]] = {}
        self._bytes: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def of(self, number: int) -> list[TopicPartition]:
        """The lanes beside a partition of ``commands``."""
        return [TopicPartition(topic, number) for topic in self.topics]

    def sort(self, records: list[Record]) -> list[Record]:
        """Keep the starts among what was read; returns the rest."""
        rest = [record for record in records if record.topic not in self.topics]
        if len(rest) == len(records):
            return records
        for record in records:
            if record.topic in self.topics:
                tp = TopicPartition(record.topic, record.partition)
                self._waiting.setdefault(tp, deque()).append(record)
                self._bytes[tp] = self._bytes.get(tp, 0) + len(record.value or b"")
        return rest

    def take(self, budget: int) -> list[Record]:
        """The next starts, one of each lane and partition in turn."""
        taken: list[Record] = []
        while self._waiting and len(taken) < budget:
            for tp in list(self._waiting):
                queue = self._waiting.pop(tp)
                taken.append(record := queue.popleft())
                self._bytes[tp] -= len(record.value or b"")
                if queue:
                    self._waiting[tp] = queue  # behind the others
                if len(taken) == budget:
                    break
        return taken

    def drop(self, number: int) -> None:
        """Forget what was read of a partition: it is read again, or somebody else's now."""
        for tp in self.of(number):
            self._waiting.pop(tp, None)
            self._bytes.pop(tp, None)
            self._paused.discard(tp)

    def to_pause(self) -> list[TopicPartition]:
        """Lanes that are full now; they count as paused from here on."""
        full = [
            tp
            for tp, queue in self._waiting.items()
            if tp not in self._paused and (len(queue) >= MAX_WAITING or self._bytes[tp] >= MAX_WAITING_BYTES)
        ]
        self._paused.update(full)
        return full

    def to_resume(self) -> list[TopicPartition]:
        """Paused lanes with room again; they count as resumed from here on."""
        ready = [tp for tp in self._paused if len(self._waiting.get(tp, ())) <= RESUME_BELOW]
        self._paused.difference_update(ready)
        return ready

    def waits(self, partitions: Iterable[TopicPartition]) -> bool:
        """Whether a start of these waits here."""
        return any(tp in self._waiting for tp in partitions)
