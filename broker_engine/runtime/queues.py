"""Which queues have their topic, and the one place that makes new ones.

A record sent to a missing topic inside a transaction stalls it for 15 s and aborts it, so the decider schedules only
to topics known here; other tasks wait (``waitingFor: topic``) until a thread has made the topic and woken them by a
command.

A queue has a topic of its own, or (``sharedQueue``) its hand-outs stand on the one that such task types of its domain
share. Which, is settled when the first topic is made: a queue with a topic of its own keeps it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import NamedTuple

import structlog

from broker_engine.errors import LogError
from broker_engine.log.ports import Log, NewTopic
from broker_engine.model.commands import QueueReady
from broker_engine.model.definitions import TaskDef
from broker_engine.topics import CONTROL_SPEC, SCHEDULE_SPEC, Namespace, Topic, partition_of
from broker_engine.wire.commands import encode_command
from broker_engine.wire.signing import Signer

_log = structlog.get_logger(__name__)

Queue = tuple[str, str]
#: (workflow id, reference, task id) of a task to be woken.
Waiter = tuple[str, str, str]

_RETRY_SECONDS = 1.0


class Home(NamedTuple):
    """The topic on which a queue's hand-outs stand."""

    topic: str
    partitions: int


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
        task_def: Callable[[str], TaskDef | None],
        executor: Executor,
    ) -> None:
        self._log = log
        self._namespace = namespace
        self._signer = signer
        self._partitions = partitions
        self._queue_partitions = queue_partitions
        self._task_def = task_def
        self._own: dict[Queue, Home] = {}
        #: By domain.
        self._shared: dict[str, Home] = {}
        #: Domains with their topic for what workers are told.
        self._controls: set[str] = set()
        self._executor = executor
        self._writer = log.writer(client_id=f"{namespace.name}.queues")
        self._is_closed = False

    def start(self) -> None:
        """Read what exists."""
        admin = self._log.admin()
        try:
            for topic, partitions in admin.topics().items():
                self._know(Home(topic, partitions))
        finally:
            admin.close()
        for domain in {domain for domain, _ in self._own} - self._controls:  # made by an earlier release
            self.request_control(domain)

    def exists(self, domain: str, task_type: str) -> bool:
        return (domain, task_type) in self._own or self._shared_home(domain, task_type) is not None

    def home(self, domain: str, task_type: str) -> Home:
        """Where hand-outs of a queue that exists go to."""
        home = self._own.get((domain, task_type)) or self._shared_home(domain, task_type)
        assert home is not None, "only queues that exist are scheduled to"
        return home

    def request(self, domain: str, task_type: str, waiter: Waiter | None = None) -> None:
        """Make a queue's topic if need be, and wake the waiter when it exists."""
        definition = self._task_def(task_type)
        partitions = (definition.queue_partitions if definition is not None else 0) or self._queue_partitions
        if definition is not None and definition.shared_queue and (domain, task_type) not in self._own:
            wanted = Home(self._namespace.shared_schedule(domain), self._queue_partitions)
        else:
            wanted = Home(self._namespace.schedule(domain, task_type), partitions)
        self._executor.submit(self._serve, wanted, waiter)

    def has_control(self, domain: str) -> bool:
        """Whether the workers of a domain can be told anything."""
        return domain in self._controls

    def request_control(self, domain: str) -> None:
        self._executor.submit(self._make_control, domain)

    def close(self) -> None:
        self._is_closed = True
        self._executor.shutdown(wait=True, cancel_futures=True)
        self._writer.close()

    def _shared_home(self, domain: str, task_type: str) -> Home | None:
        home = self._shared.get(domain)
        definition = None if home is None else self._task_def(task_type)
        return home if definition is not None and definition.shared_queue else None

    def _know(self, home: Home) -> None:
        queue, domain = self._namespace.queue_of(home.topic), self._namespace.shared_domain_of(home.topic)
        if queue is not None:
            self._own[queue] = home
        elif domain is not None:
            self._shared[domain] = home
        elif (told := self._namespace.control_domain(home.topic)) is not None:
            self._controls.add(told)

    def _is_known(self, topic: str) -> bool:
        queue, domain = self._namespace.queue_of(topic), self._namespace.shared_domain_of(topic)
        return queue in self._own or domain in self._shared

    def _serve(self, wanted: Home, waiter: Waiter | None) -> None:
        while not self._is_known(wanted.topic):
            if self._is_closed:
                return
            try:
                self._make(wanted)
            except LogError as error:
                _log.warning("queues.cannot_create", topic=wanted.topic, error=str(error))
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

    def _make(self, wanted: Home) -> None:
        """A queue's topic, and with the first of its domain the one for what its workers are told."""
        domain = self._namespace.domain_of(wanted.topic)
        control = self._namespace.control(domain)
        admin = self._log.admin()
        try:
            admin.create(
                [
                    NewTopic(name=control, partitions=CONTROL_SPEC.partitions or 1, config=CONTROL_SPEC.config),
                    NewTopic(name=wanted.topic, partitions=wanted.partitions, config=SCHEDULE_SPEC.config),
                ]
            )
            self._controls.add(domain)
            self._know(wanted._replace(partitions=admin.topics()[wanted.topic]))
        finally:
            admin.close()
        _log.info("queues.created", topic=wanted.topic)
