"""The whole engine in one object: nodes, delay tiers, workers and a client on one log in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson

from broker_engine.decider.definition_tree import single_task_workflow
from broker_engine.errors import LogError, NoAnswer
from broker_engine.log.ports import BEGINNING, Delivery, Isolation, Record, TopicPartition
from broker_engine.model.commands import (
    AllowStarts,
    AnyCommand,
    CancelTask,
    MoveTask,
    PauseTask,
    PauseWorkflow,
    PutTaskDef,
    PutWorkflowDef,
    ReleaseWorkflow,
    ResumeTask,
    ResumeWorkflow,
    StartWorkflow,
    StopStarts,
    TerminateWorkflow,
)
from broker_engine.model.stops import queue_key
from broker_engine.runtime.delays import TierLoop
from broker_engine.runtime.namespace import ensure
from broker_engine.testing.clock import FakeClock
from broker_engine.testing.node import Node
from broker_engine.testing.steps import SteppedLog
from broker_engine.testing.worker import Behaviour, Handler, SteppedWorker
from broker_engine.topics import DELAY_TIERS, Namespace, Topic, lane_of, partition_of
from broker_engine.wire.codecs import REPLY
from broker_engine.wire.commands import encode_command
from broker_engine.wire.records import ScheduledTask
from broker_engine.wire.signing import Signer
from broker_engine.worker.replies import Answered, raise_for
from broker_engine.worker.views import Views, WorkflowView

JsonObject = Mapping[str, Any]
#: So many rounds without a new record, and nothing more happens until time passes.
_QUIET_ROUNDS = 3
#: A run that takes more rounds than this does not come to rest.
_MAX_ROUNDS = 100_000
_CLIENT = "client"
_COMMAND_LIFETIME_MS = 60_000


class Engine:
    """An engine in memory that moves only when told to.

    Args:
        partitions: P of its namespace.
        nodes: how many decider processes it begins with.
        key: the namespace key; None for an open namespace.
        settings: further settings of the deciders (``config.Settings``).
    """

    def __init__(self, *, partitions: int = 2, nodes: int = 1, key: str | None = "secret", **settings: Any) -> None:
        self.clock = FakeClock()
        self.log = SteppedLog(self.clock)
        self.namespace = Namespace("test")
        self.partitions = partitions
        self.signer = Signer(key)
        self._key = key
        self._settings = settings
        self._folder = tempfile.TemporaryDirectory(prefix="broker-engine-")
        ensure(self.log, self.namespace, partitions=partitions, signer=self.signer, now_ms=self.clock.now_ms())
        self.nodes = [self.node(str(number)) for number in range(nodes)]
        self.tiers = {tier: self.tier(tier) for tier in DELAY_TIERS}
        self.workers: list[SteppedWorker] = []
        self._writer = self.log.writer(client_id=_CLIENT)
        self._commands = 0
        self._replies = self.log.reader()
        replies = TopicPartition(self.namespace.topic(Topic.REPLIES), partition_of(_CLIENT, partitions))
        self._replies.assign({replies: BEGINNING})
        #: Answers to the client's commands, by command id.
        self.answers: dict[str, Answered] = {}
        self.views = Views(self.log, self.namespace, partitions)

    # --- processes

    def node(self, slot: str) -> Node:
        """A new decider process, which is not stepped unless it is added to ``nodes``."""
        return Node(
            self.log,
            self.namespace,
            self.clock,
            slot,
            partitions=self.partitions,
            key=self._key,
            folder=Path(self._folder.name) / f"node-{slot}",
            **self._settings,
        )

    def tier(self, tier: str) -> TierLoop:
        """A new process that serves one delay tier."""
        loop = TierLoop(self.log, self.namespace, tier, self.signer, client_id=f"delays.{tier}", clock=self.clock)
        loop.open()
        return loop

    def serve(
        self,
        task_type: str,
        handler: Handler = lambda _input, _work: {},
        *,
        takes_ms: Callable[[ScheduledTask], int] = lambda _work: 0,
        behaves: Callable[[ScheduledTask], Behaviour] = lambda _work: Behaviour.ANSWERS,
    ) -> SteppedWorker:
        """A worker of a task type; its handler raises the SDK's errors to fail."""
        worker = SteppedWorker(
            self.log,
            self.namespace,
            self.partitions,
            self.clock,
            task_type,
            handler,
            f"worker-{len(self.workers)}",
            takes_ms=takes_ms,
            behaves=behaves,
        )
        self.workers.append(worker)
        return worker

    # --- time

    def step(self) -> None:
        """One step of every process."""
        for node in self.nodes:
            self.step_node(node)
        for tier, loop in self.tiers.items():
            if not any(part.end for part in self.log.cluster.topics[self.namespace.delay(tier)].partitions):
                continue  # nothing was ever sent there
            try:
                loop.step()
            except LogError:
                loop.close()
                self.tiers[tier] = self.tier(tier)
        for worker in self.workers:
            worker.step()
        self._hear()

    def step_node(self, node: Node) -> None:
        """One step of a decider."""
        node.step()

    def run(self, seconds: float = 0.0) -> None:
        """Step until nothing more happens, then let time pass from one due moment to the next."""
        end_ms = self.clock.now_ms() + round(seconds * 1_000)
        self._settle()
        while (now_ms := self.clock.now_ms()) < end_ms:
            due_ms = min((moment for moment in self._moments() if moment > now_ms), default=end_ms)
            self.clock.advance(min(due_ms, end_ms) - now_ms)
            self._settle()

    def _settle(self) -> None:
        quiet, seen = 0, self.appended
        for _ in range(_MAX_ROUNDS):
            self.step()
            quiet, seen = (quiet + 1, seen) if self.appended == seen else (0, self.appended)
            if quiet >= _QUIET_ROUNDS and all(node.is_settled or not node.is_up for node in self.nodes):
                return
        raise AssertionError("the engine does not come to rest")

    @property
    def appended(self) -> int:
        """How many records and markers were ever written."""
        return sum(partition.end for topic in self.log.cluster.topics.values() for partition in topic.partitions)

    def _moments(self) -> Iterator[int]:
        for node in self.nodes:
            if node.session is not None:
                due_ms = node.session._ticker.next_due_ms(node.partitions.values())
                if due_ms is not None:
                    yield due_ms
        for loop in self.tiers.values():
            if loop._heap:
                yield loop._heap[0][0]
        for worker in self.workers:
            due_ms = worker.next_due_ms()
            if due_ms is not None:
                yield due_ms

    # --- client

    def send(self, command: AnyCommand, partition: int | None = None) -> Delivery:
        """Put a command on the log, signed."""
        return self.send_bytes(
            command.key.encode(),
            encode_command(command, self.signer),
            partition_of(command.key, self.partitions) if partition is None else partition,
            self.namespace.starts(lane_of(command.tenant)) if isinstance(command, StartWorkflow) else None,
        )

    def send_bytes(
        self, key: bytes | None, value: bytes | None, partition: int = 0, topic: str | None = None
    ) -> Delivery:
        """Put anything on the log of commands, or on another topic."""
        deliveries: list[Delivery] = []
        topic = topic or self.namespace.topic(Topic.COMMANDS)
        self._writer.send(topic, partition, key, value, on_delivery=deliveries.append)
        self._writer.poll()
        return deliveries[0]

    def asked(self) -> dict[str, Any]:
        """The fields of a command that wants an answer (found in ``answers`` under its command id)."""
        self._commands += 1
        return {
            "command_id": f"command-{self._commands}",
            "expires_at_ms": self.clock.now_ms() + _COMMAND_LIFETIME_MS,
            "reply_to": _CLIENT,
            "operator": "user:test",
        }

    def ask(self, command: AnyCommand) -> str:
        """Send a command made with ``asked``, run until it is answered, and return the answer.

        Raises:
            BadRequest: it was refused.
            NoAnswer: nothing happens any more and there is no answer.
        """
        assert command.command_id is not None, "make it with asked()"
        self.send(command)
        self.run()
        answer = self.answers.get(command.command_id)
        if answer is None:
            raise NoAnswer
        raise_for(answer)
        return answer.message

    def register_task(self, definition: JsonObject) -> None:
        command = PutTaskDef(key=str(definition["name"]), document=orjson.dumps(definition), **self.asked())
        self.ask(command)

    def register_workflow(self, definition: JsonObject) -> None:
        command = PutWorkflowDef(key=str(definition["name"]), document=orjson.dumps(definition), **self.asked())
        self.ask(command)

    def start(
        self,
        name: str,
        data: JsonObject | None = None,
        *,
        workflow_id: str | None = None,
        task_to_domain: Mapping[str, str] | None = None,
    ) -> str:
        """Start a workflow by its definition's name; returns its id when it has started."""
        return self.ask(_in_domains(self._start(name, data, workflow_id), task_to_domain))

    def start_task(
        self,
        task_type: str,
        data: JsonObject | None = None,
        *,
        workflow_id: str | None = None,
        task_to_domain: Mapping[str, str] | None = None,
    ) -> str:
        """Start one task alone."""
        definition = orjson.dumps(single_task_workflow(task_type))
        command = self._start(task_type, data, workflow_id, definition=definition)
        return self.ask(_in_domains(command, task_to_domain))

    def submit(self, name: str, data: JsonObject | None = None, *, workflow_id: str | None = None) -> str:
        """Send a start without running anything; returns the id that it will have."""
        command = self._start(name, data, workflow_id)
        self.send(command)
        return command.key

    def submit_task(self, task_type: str, data: JsonObject | None = None, *, workflow_id: str | None = None) -> str:
        """As ``submit``, for one task alone."""
        command = self._start(task_type, data, workflow_id, definition=orjson.dumps(single_task_workflow(task_type)))
        self.send(command)
        return command.key

    def terminate(self, workflow_id: str, reason: str | None = None) -> None:
        self.ask(TerminateWorkflow(key=workflow_id, reason=reason, **self.asked()))

    def move(self, workflow_id: str, domain: str, reference: str | None = None) -> None:
        """Move a waiting task (the newest, or that of a reference) to another domain."""
        tasks = self.workflow(workflow_id).tasks
        task = [task for task in tasks if reference in (None, task.reference)][-1]
        about: dict[str, Any] = {"reference": task.reference, "task_id": task.task_id, "hand_out": task.hand_out}
        self.ask(MoveTask(key=workflow_id, domain=domain, **about, **self.asked()))

    def cancel_task(self, workflow_id: str, reference: str, reason: str | None = None) -> str:
        """As the client's; these five return what came of it."""
        return self.ask(CancelTask(key=workflow_id, reference=reference, reason=reason, **self.asked()))

    def pause_task(self, workflow_id: str, reference: str, reason: str | None = None) -> str:
        return self.ask(PauseTask(key=workflow_id, reference=reference, reason=reason, **self.asked()))

    def resume_task(self, workflow_id: str, reference: str) -> str:
        return self.ask(ResumeTask(key=workflow_id, reference=reference, **self.asked()))

    def pause(self, workflow_id: str, reason: str | None = None) -> str:
        return self.ask(PauseWorkflow(key=workflow_id, reason=reason, **self.asked()))

    def resume(self, workflow_id: str) -> str:
        return self.ask(ResumeWorkflow(key=workflow_id, **self.asked()))

    def pause_queue(self, task_type: str, domain: str | None = None, reason: str | None = None) -> None:
        self.ask(StopStarts(key=queue_key(task_type, domain), reason=reason, **self.asked()))

    def resume_queue(self, task_type: str, domain: str | None = None) -> None:
        self.ask(AllowStarts(key=queue_key(task_type, domain), **self.asked()))

    def release(self, workflow_id: str) -> None:
        self.ask(ReleaseWorkflow(key=workflow_id, **self.asked()))

    def _start(
        self, name: str, data: JsonObject | None, workflow_id: str | None, definition: bytes | None = None
    ) -> StartWorkflow:
        asked = self.asked()
        key = workflow_id or f"workflow-{self._commands}"
        payload = orjson.dumps(dict(data or {}))
        return StartWorkflow(key=key, name=name, input=payload, definition=definition, **asked)

    def _hear(self) -> None:
        for record in self._replies.read(1_000, 0.0):
            if record.key == _CLIENT.encode():
                reply = REPLY.decode(record.value)
                if reply.command_id is not None:
                    self.answers[reply.command_id] = Answered(reply.status, reply.message)

    # --- looking

    def workflow(self, workflow_id: str) -> WorkflowView:
        """A workflow with all its attempts, from the compacted topics."""
        return self.views.workflow(workflow_id)

    def records(
        self, topic: Topic | str, partition: int | None = None, isolation: Isolation = Isolation.COMMITTED
    ) -> list[Record]:
        """Every record of a topic that is visible now."""
        name = self.namespace.topic(topic) if isinstance(topic, Topic) else topic
        count = len(self.log.cluster.topics[name].partitions)
        numbers = range(count) if partition is None else [partition]
        found: list[Record] = []
        for number in numbers:
            reader = self.log.reader(isolation=isolation, headers=True)
            reader.assign({TopicPartition(name, number): BEGINNING})
            while records := reader.read(10_000, 0.0):
                found += records
            reader.close()
        return found

    def close(self) -> None:
        """Release the folders. Idempotent."""
        for node in self.nodes:
            node.kill()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _in_domains(command: StartWorkflow, task_to_domain: Mapping[str, str] | None) -> StartWorkflow:
    return command if task_to_domain is None else replace(command, task_to_domain=orjson.dumps(dict(task_to_domain)))
