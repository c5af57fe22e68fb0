"""Short forms for looking at an in-memory engine: who is where, and what stands on its topics."""

from __future__ import annotations

from collections.abc import Iterator

from broker_engine.log.memory.partitions import Outcome, Transaction
from broker_engine.log.ports import CommittedOffset, Record, TopicPartition
from broker_engine.model.commands import AnyCommand
from broker_engine.model.state import TaskState, WorkflowState
from broker_engine.testing import Engine
from broker_engine.topics import Topic, partition_of
from broker_engine.wire.codecs import DELAYED_COMMAND, SCHEDULED_TASK
from broker_engine.wire.commands import decode_command
from broker_engine.wire.records import DelayedCommand, ScheduledTask


def name_in(partition: int, prefix: str = "w", partitions: int = 2) -> str:
    """An id that belongs to a partition."""
    return next(f"{prefix}{n}" for n in range(1_000) if partition_of(f"{prefix}{n}", partitions) == partition)


def names_in(partition: int, count: int, prefix: str = "w", partitions: int = 2) -> list[str]:
    fitting = (f"{prefix}{n}" for n in range(100_000) if partition_of(f"{prefix}{n}", partitions) == partition)
    return [name for _, name in zip(range(count), fitting, strict=False)]


def dead_letters(engine: Engine) -> list[dict[str, str]]:
    """The headers of every dead letter."""
    return [{name: value.decode() for name, value in record.headers} for record in engine.records(Topic.DEAD_LETTERS)]


def commands(engine: Engine, kind: type[AnyCommand] | None = None) -> list[tuple[AnyCommand, Record]]:
    """Every readable command, with its record."""
    found = []
    for record in engine.records(Topic.COMMANDS):
        command = decode_command(record.value, engine.signer, at_ms=record.timestamp_ms, offset=record.offset)
        if kind is None or isinstance(command, kind):
            found.append((command, record))
    return found


def schedules(engine: Engine, task_type: str = "work") -> list[ScheduledTask]:
    """Every committed hand-out of a queue."""
    topic = engine.namespace.schedule("default", task_type)
    return [SCHEDULED_TASK.decode(record.value) for record in engine.records(topic)]


def delays(engine: Engine, tier: str = "last") -> list[DelayedCommand]:
    return [DELAYED_COMMAND.decode(record.value) for record in engine.records(engine.namespace.delay(tier))]


def transactions(engine: Engine) -> Iterator[Transaction]:
    """Every transaction that has left something on the log."""
    seen: set[int] = set()
    for topic in engine.log.cluster.topics.values():
        for partition in topic.partitions:
            for entry in partition.entries:
                if entry.transaction is not None and id(entry.transaction) not in seen:
                    seen.add(id(entry.transaction))
                    yield entry.transaction


def aborted(engine: Engine) -> int:
    return sum(transaction.outcome is Outcome.ABORTED for transaction in transactions(engine))


def committed(engine: Engine, partition: int = 0) -> CommittedOffset:
    """What the engine's group has committed for a partition of ``commands``."""
    tp = TopicPartition(engine.namespace.topic(Topic.COMMANDS), partition)
    return engine.log.cluster.group(engine.namespace.engine_group).offsets[tp]


def workflow(engine: Engine, workflow_id: str) -> WorkflowState:
    return engine.workflow(workflow_id).workflow


def attempts(engine: Engine, workflow_id: str) -> tuple[TaskState, ...]:
    return engine.workflow(workflow_id).tasks


def last(engine: Engine, workflow_id: str) -> TaskState:
    return attempts(engine, workflow_id)[-1]
