"""Taking a partition over so that two owners can never both write: fence, read offsets, restore, claim.

Each process slot has one transactional id, stable over restarts. The offset commit of a partition carries the slot
of its owner in its metadata (``ownership.Mark``), and whether that owner handed it over cleanly. Whoever takes a
partition that was not released runs ``init_transactions`` with the old owner's id: that ends its open transaction
and fences its producer. Not when a live group member carries that slot: it is well and merely lost the partition;
its next transaction fails by the group generation that every transaction carries.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from broker_engine.errors import Retriable
from broker_engine.log.ports import Admin, CommittedOffset, Log, TopicPartition
from broker_engine.runtime.ownership import Mark
from broker_engine.runtime.partition import Partition
from broker_engine.runtime.restore import Restorer
from broker_engine.topics import Namespace, Topic

_log = structlog.get_logger(__name__)

#: Pending offsets of a crashed transaction are settled by the fence, at the latest by the transaction time-out.
_STABLE_SECONDS = 90.0
_PAUSE_SECONDS = 0.05


def member_id(namespace: Namespace, slot: str) -> str:
    """The client id of a slot's group member, by which others see that the slot is alive."""
    return f"{namespace.engine_group}.{slot}"


class Takeover:
    """The slow part of a takeover, to be run in a thread: everything before the claim."""

    def __init__(
        self, log: Log, namespace: Namespace, slot: str, number: int, folder: Path, stopping: Callable[[], bool]
    ) -> None:
        self._log = log
        self._namespace = namespace
        self._slot = slot
        self._number = number
        self._folder = folder
        self._stopping = stopping
        self._tp = TopicPartition(namespace.topic(Topic.COMMANDS), number)

    def run(self) -> Partition:
        """Fence the previous owner, read the committed offset, restore.

        Raises:
            UnsafeSettings: the log and the state do not fit together.
            LogError: Kafka did not answer; try again.
        """
        admin = self._log.admin()
        try:
            self._fence_previous(admin)
            lanes = [TopicPartition(topic, self._number) for topic in self._namespace.start_lanes()]
            committed = self._committed(admin, [self._tp, *lanes])
        finally:
            admin.close()
        return Restorer(self._log, self._namespace, self._number, self._folder, self._stopping).run(committed)

    def _fence_previous(self, admin: Admin) -> None:
        found = admin.committed(self._namespace.engine_group, [self._tp], require_stable=False)[self._tp]
        mark = Mark.of(found)
        if mark is None or mark.is_released:
            return
        previous = mark.slot
        if previous == self._slot:
            return  # our own id: this process's init has fenced it
        members = {member.client_id for member in admin.members(self._namespace.engine_group)}
        if member_id(self._namespace, previous) in members:
            return
        writer = self._log.transactional_writer(self._namespace.transactional_id(previous))
        try:
            writer.init()
        finally:
            writer.close()
        _log.warning("takeover.fenced", partition=self._number, previous_slot=previous)

    def _committed(
        self, admin: Admin, partitions: list[TopicPartition]
    ) -> Mapping[TopicPartition, CommittedOffset | None]:
        deadline = time.monotonic() + _STABLE_SECONDS
        while True:
            try:
                return admin.committed(self._namespace.engine_group, partitions, require_stable=True)
            except Retriable:
                if self._stopping() or time.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE_SECONDS)


def claim(partition: Partition, tp: TopicPartition, slot: str) -> dict[TopicPartition, CommittedOffset]:
    """The commit that ends a takeover: the unchanged offset under the own slot.

    Without it the metadata would name the last committer, not the owner, until the first transaction.
    """
    return {tp: Mark(slot, False, partition.position, partition.log_time_ms).commit()}


def release(partition: Partition, tp: TopicPartition, slot: str) -> dict[TopicPartition, CommittedOffset]:
    """The commit of a clean hand-over."""
    return {tp: Mark(slot, True, partition.position, partition.log_time_ms).commit()}
