"""Which queues have their topic, and the one place that makes new ones.

A record sent to a missing topic inside a transaction stalls it for 15 s and aborts it, so the decider schedules only
to topics known here; other tasks wait (``waitingFor: topic``) until a thread has made the topic and woken them by a
command.
"""

from __future__ import annotations

import time
from concurrent.futures import Executor

import structlog

from broker_engine.errors import LogError
from broker_engine.log.ports import Log, NewTopic
from broker_engine.model.commands import QueueReady
from broker_engine.topics import CONTROL_SPEC, SCHEDULE_SPEC, Namespace, Topic, partition_of
from broker_engine.wire.commands import encode_command
from broker_engine.wire.signing import Signer

_log = structlog.get_logger(__name__)

Queue = tuple[str, str]
#: (workflow id, reference, task id) of a task to be woken.
Waiter = tuple[str, str, str]

_RETRY_SECONDS = 1.0


class Queues:
    """Known queues (decider.context.Queues), by (domain, task type)."""

    def __init__(
        self,
        log: Log,
        namespace: Namespace,
        signer: Signer,
        *,
        partitions: int,
        queue_partitions: int,
        executor: Executor,
    ) -> None:
        self._log = log
        self._namespace = namespace
        self._signer = signer
        self._partitions = partitions
        self._queue_partitions = queue_partitions
        self._known: dict[Queue, int] = {}
        #: Domains with their topic for what workers are told.
        self._controls: set[str] = set()
        self._executor = executor
        self._writer = log.writer(client_id=f"{namespace.name}.queues")
        self._is_closed = False

    def start(self) -> None:
        """Read what exists."""
        self._refresh()
        for domain in {domain for domain, _ in self._known} - self._controls:  # made by an earlier release
            self.request_control(domain)

    def exists(self, domain: str, task_type: str) -> bool:
        return (domain, task_type) in self._known

    def partition_count(self, domain: str, task_type: str) -> int:
        return self._known[domain, task_type]

    def request(self, domain: str, task_type: str, waiter: Waiter | None = None) -> None:
        """Make a queue's topic if need be, and wake the waiter when it exists."""
        self._executor.submit(self._serve, (domain, task_type), waiter)

    def has_control(self, domain: str) -> bool:
        """Whether the workers of a domain can be told anything."""
        return domain in self._controls

    def request_control(self, domain: str) -> None:
        self._executor.submit(self._make_control, domain)

    def close(self) -> None:
        self._is_closed = True
        self._executor.shutdown(wait=True, cancel_futures=True)
        self._writer.close()

    def _refresh(self) -> None:
        admin = self._log.admin()
        try:
            for name, partitions in admin.topics().items():
                found = self._namespace.queue_of(name)
                if found is not None:
                    self._known[found] = partitions
                domain = self._namespace.control_domain(name)
                if domain is not None:
                    self._controls.add(domain)
        finally:
            admin.close()

    def _serve(self, made: Queue, waiter: Waiter | None) -> None:
        while made not in self._known:
            if self._is_closed:
                return
            try:
                self._make(made)
            except LogError as error:
                _log.warning("queues.cannot_create", queue="/".join(made), error=str(error))
                time.sleep(_RETRY_SECONDS)
        if waiter is not None:
            self._wake(*waiter)

    def _wake(self, workflow_id: str, reference: str, task_id: str) -> None:
        command = QueueReady(key=workflow_id, reference=reference, task_id=task_id, hand_out=0)
        self._writer.send(
            self._namespace.topic(Topic.COMMANDS),
            partition_of(workflow_id, self._partitions),
            workflow_id.encode(),
            encode_command(command, self._signer),
        )
        self._writer.poll(0.0)

    def _make_control(self, domain: str) -> None:
        name = self._namespace.control(domain)
        admin = self._log.admin()
        try:
            admin.create([NewTopic(name=name, partitions=CONTROL_SPEC.partitions or 1, config=CONTROL_SPEC.config)])
            self._controls.add(domain)
        except LogError as error:
            _log.warning("queues.cannot_create", queue=name, error=str(error))
        finally:
            admin.close()

    def _make(self, made: Queue) -> None:
        name, control = self._namespace.schedule(*made), self._namespace.control(made[0])
        admin = self._log.admin()
        try:
            admin.create(
                [
                    NewTopic(name=control, partitions=CONTROL_SPEC.partitions or 1, config=CONTROL_SPEC.config),
                    NewTopic(name=name, partitions=self._queue_partitions, config=SCHEDULE_SPEC.config),
                ]
            )
            self._controls.add(made[0])
            self._known[made] = admin.topics()[name]
        finally:
            admin.close()
        _log.info("queues.created", topic=name)
