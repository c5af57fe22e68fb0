"""Notices the tasks whose queue was paused or resumed since they were put where they are (B9).

The stops of queues are definitions: every decision asks for them, so what is handed out follows them at once. What was
waiting before is found here and gets a command of its own, the oldest first; the decider looks at its state again.
Without a paused queue nothing is looked at, except once after a change and once after a takeover.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection
from dataclasses import dataclass

import structlog

from broker_engine.decider.queue_pauses import disagrees
from broker_engine.errors import LogError
from broker_engine.log.ports import Delivery, Log, Writer
from broker_engine.model.commands import QueueReady
from broker_engine.model.state import TaskState
from broker_engine.runtime.clock import BrokerClock
from broker_engine.runtime.definitions import DefinitionView
from broker_engine.runtime.partition import Partition
from broker_engine.topics import Namespace, Topic
from broker_engine.wire.commands import encode_command
from broker_engine.wire.signing import Signer

_log = structlog.get_logger(__name__)

#: How often is looked while there is something to do.
_EVERY_MS = 500
#: How often is looked while queues are paused and nothing has changed: a task may have been moved off such a queue.
_QUIET_EVERY_MS = 5_000
#: More than this is not sent in one look at a partition: the loop has other things to do.
MAX_AT_ONCE = 1_000
#: A turn that was decided before the change and is merged after it has ended by then, one way or the other.
_TURN_MS = 60_000


@dataclass(slots=True)
class _Seen:
    """What is known of one partition."""

    partition: Partition
    #: The changes of queues up to which all of its tasks have followed.
    changes: int = -1
    changed_at_ms: int | None = None
    again_ms: int = 0
    #: Own commands on their way to the log, and the last offset of those that have arrived.
    outstanding: int = 0
    sent_to: int = -1


class QueuePauses:
    """Looks for the partitions of one session. ``is_idle``: whether no turn waits to be merged."""

    def __init__(
        self,
        log: Log,
        namespace: Namespace,
        signer: Signer,
        definitions: DefinitionView,
        clock: BrokerClock,
        *,
        is_idle: Callable[[], bool],
    ) -> None:
        self._log = log
        self._name = namespace.name
        self._commands = namespace.topic(Topic.COMMANDS)
        self._signer = signer
        self._definitions = definitions
        self._clock = clock
        self._is_idle = is_idle
        self._seen: dict[int, _Seen] = {}
        #: Made when it is first needed: most namespaces never pause a queue.
        self._writer: Writer | None = None
        self._next_ms = 0

    def serve(self, partitions: Collection[Partition]) -> None:
        """Look at the partitions for which there is a reason to."""
        now_ms = self._clock.now_ms()
        if now_ms < self._next_ms:
            return
        self._next_ms = now_ms + _EVERY_MS
        if self._writer is not None:
            self._writer.poll(0.0)
        before, self._seen = self._seen, {}
        for partition in partitions:
            seen = before.get(partition.number)
            if seen is None or seen.partition is not partition:
                seen = _Seen(partition)
            self._seen[partition.number] = seen
            if self._has_reason(seen, now_ms):
                self._look(seen, now_ms)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _has_reason(self, seen: _Seen, now_ms: int) -> bool:
        if seen.outstanding or seen.partition.position <= seen.sent_to:
            return False  # what was sent is not decided yet
        if seen.changes != self._definitions.queue_changes:
            return True
        return bool(self._definitions.paused_queues) and now_ms >= seen.again_ms

    def _look(self, seen: _Seen, now_ms: int) -> None:
        changes = self._definitions.queue_changes
        if seen.changed_at_ms is None:
            seen.changed_at_ms = now_ms
        # Without any change no turn can have been decided before it.
        is_last = changes == 0 or self._is_idle() or now_ms >= seen.changed_at_ms + _TURN_MS
        found = self._disagreeing(seen.partition)
        if found:
            for task in heapq.nsmallest(MAX_AT_ONCE, found, key=lambda task: (task.scheduled_at_ms, task.task_id)):
                self._send(seen, task)
            _log.info("queue_pauses.sent", partition=seen.partition.number, tasks=min(len(found), MAX_AT_ONCE))
        elif is_last:
            seen.changes, seen.changed_at_ms = changes, None
        seen.again_ms = now_ms + _QUIET_EVERY_MS

    def _disagreeing(self, partition: Partition) -> list[TaskState]:
        stop_of = self._definitions.stop_of_queue
        return [
            task
            for execution in partition.live.values()
            if execution.workflow.quarantine is None
            for task in execution.tasks.values()
            if task.waiting_for is not None
            and disagrees(execution, task, is_paused=stop_of(task.domain, task.task_type) is not None)
        ]

    def _send(self, seen: _Seen, task: TaskState) -> None:
        """Send the command; what cannot be sent is found again at the next look."""
        command = QueueReady(
            key=task.workflow_id, reference=task.reference, task_id=task.task_id, hand_out=task.hand_out
        )

        def delivered(delivery: Delivery) -> None:
            seen.outstanding -= 1
            if delivery.error is None:
                seen.sent_to = max(seen.sent_to, delivery.offset)

        if self._writer is None:
            self._writer = self._log.writer(client_id=f"{self._name}.queue-pauses")
        value = encode_command(command, self._signer)
        seen.outstanding += 1
        try:
            key = task.workflow_id.encode()
            self._writer.send(self._commands, seen.partition.number, key, value, on_delivery=delivered)
        except LogError as error:
            seen.outstanding -= 1
            _log.warning("queue_pauses.not_sent", task_id=task.task_id, error=str(error))
