"""The two logs under one suite: what a test says here holds for a real cluster and for the one in memory.

The few acts that no port offers (a member thrown out, a process dead before its commit, the cleaner)
are methods of `Bench`, done in each log's own way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from broker_engine.errors import Retriable
from broker_engine.log.confluent import ConfluentLog
from broker_engine.log.memory import Crashed, MemoryLog
from broker_engine.log.ports import (
    BEGINNING,
    CommittedOffset,
    GroupReader,
    Isolation,
    Log,
    NewTopic,
    Reader,
    Record,
    TopicPartition,
    TransactionalWriter,
)

#: Generous: a busy machine must not fail a contract.
PATIENCE = 20.0


class Listener:
    """Writes down what a group reader tells."""

    def __init__(self, on_revoked: Callable[[Sequence[TopicPartition]], None] | None = None) -> None:
        self.events: list[tuple[str, tuple[TopicPartition, ...]]] = []
        self._on_revoked = on_revoked

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self.events.append(("assigned", tuple(sorted(partitions))))

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self.events.append(("revoked", tuple(sorted(partitions))))
        if self._on_revoked is not None:
            self._on_revoked(partitions)

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        self.events.append(("lost", tuple(sorted(partitions))))


class Bench:
    """A log, topics of its own, and short forms of what most tests do."""

    def __init__(self, log: Log, prefix: str) -> None:
        self.log = log
        self.prefix = prefix
        self.admin = log.admin()
        self._closing: list[Any] = []
        self._names = 0

    # ------------------------------------------------------------------------------------- things

    def name(self) -> str:
        self._names += 1
        return f"{self.prefix}-{self._names}"

    def topic(self, partitions: int = 1, **config: str) -> str:
        """A new topic; underscores in option names stand for dots."""
        name = self.name()
        settings = {option.replace("_", "."): value for option, value in config.items()}
        self.admin.create([NewTopic(name=name, partitions=partitions, config=settings)])
        return name

    def transactions(self, transactional_id: str | None = None) -> TransactionalWriter:
        writer = self.log.transactional_writer(transactional_id or self.name())
        self._closing.append(writer)
        writer.init()
        return writer

    def reader(
        self,
        tp: TopicPartition,
        offset: int = BEGINNING,
        *,
        isolation: Isolation = Isolation.COMMITTED,
        headers: bool = False,
    ) -> Reader:
        reader = self.log.reader(isolation=isolation, headers=headers)
        self._closing.append(reader)
        reader.assign({tp: offset})
        return reader

    def member(
        self,
        topic: str,
        group: str,
        *,
        client_id: str = "a",
        listener: Listener | None = None,
        companions: Sequence[str] = (),
    ) -> GroupReader:
        member = self.log.group_reader(group, client_id=client_id)
        self._closing.append(member)
        member.subscribe(topic, listener, companions)
        return member

    def sole_member(self, topic: str, group: str | None = None) -> GroupReader:
        """A member that holds every partition of the topic, unpaused."""
        member = self.member(topic, group or self.name())
        partitions = self.admin.topics()[topic]
        self.until(lambda: member.read(1, 0.05) == [] and len(member.assignment()) == partitions)
        return member

    def close(self) -> None:
        for thing in reversed(self._closing):
            thing.close()

    # --------------------------------------------------------------------------------------- acts

    def write(self, topic: str, *values: bytes | None, key: bytes = b"k", partition: int = 0) -> None:
        writer = self.log.writer(client_id="writer")
        for value in values:
            writer.send(topic, partition, key, value)
        assert writer.flush(PATIENCE) == 0
        writer.close()

    def until(self, is_so: Callable[[], bool], seconds: float = PATIENCE) -> None:
        deadline = time.monotonic() + seconds
        while not is_so():
            assert time.monotonic() < deadline, "it did not come true in time"

    def take(self, reader: Reader, count: int) -> list[Record]:
        """Exactly this many records, read one batch after another."""
        records: list[Record] = []

        def enough() -> bool:
            records.extend(reader.read(count - len(records), 0.2))
            return len(records) >= count

        self.until(enough)
        return records

    def values(self, reader: Reader, tp: TopicPartition) -> list[bytes | None]:
        """The values up to the partition's present high watermark."""
        end = self.admin.end_offsets([tp], Isolation.UNCOMMITTED)[tp]
        found: list[bytes | None] = []

        def at_end() -> bool:
            found.extend(r.value for r in reader.read(100, 0.05))
            return reader.position(tp) >= end

        self.until(at_end)
        return found

    def stable(self, group: str, tp: TopicPartition) -> CommittedOffset | None:
        """The committed offset once it is stable: a moment after the commit that returned."""
        found: list[CommittedOffset | None] = []

        def answers() -> bool:
            try:
                found.append(self.admin.committed(group, [tp], require_stable=True)[tp])
            except Retriable:
                return False
            return True

        self.until(answers)
        return found[0]

    def nothing_comes(self, reader: Reader) -> bool:
        return reader.read(10, 0.5) == []

    # ------------------------------------------------------------------- in each log's own way

    def throw_out(self, member: GroupReader) -> None:
        """The member is not in its group any more."""
        if isinstance(self.log, MemoryLog):
            self.log.expire_session(member)  # type: ignore[arg-type]  # a log's own reader
        else:
            consumer = member._consumer  # type: ignore[attr-defined]  # as above
            consumer.unsubscribe()
            self.until(lambda: consumer.poll(0.05) is None and not consumer.memberid())

    def die_before_commit(
        self,
        writer: TransactionalWriter,
        offsets: Mapping[TopicPartition, CommittedOffset],
        member: GroupReader,
    ) -> None:
        """The offsets reach the broker, the commit does not: they are pending from now on."""
        if isinstance(self.log, MemoryLog):
            self.log.hold_transaction(writer.transactional_id)
            with pytest.raises(Crashed):
                writer.commit(offsets, member.group())
        else:
            positions = [KafkaPartition(*tp, at.offset, at.metadata) for tp, at in offsets.items()]
            producer = writer._producer  # type: ignore[attr-defined]  # a log's own writer
            producer.flush(PATIENCE)
            producer.send_offsets_to_transaction(positions, member.group())

    def truncate(self, topic: str, partition: int, offset: int, bootstrap: str | None) -> None:
        if isinstance(self.log, MemoryLog):
            self.log.truncate(topic, partition, offset)
        else:
            admin = AdminClient({"bootstrap.servers": bootstrap})
            for future in admin.delete_records([KafkaPartition(topic, partition, offset)]).values():
                future.result(PATIENCE)

    def compact(self, topic: str) -> None:
        """Let the cleaner run over the topic; a real one cleans soon if the topic is set so."""
        if isinstance(self.log, MemoryLog):
            self.log.compact(topic)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.kafka)])
def log_bootstrap(request: pytest.FixtureRequest) -> str | None:
    """The broker's address, None for the log in memory."""
    return request.getfixturevalue("bootstrap") if request.param == "kafka" else None


@pytest.fixture
def log(log_bootstrap: str | None) -> Log:
    return MemoryLog(_now_ms) if log_bootstrap is None else ConfluentLog(log_bootstrap)


@pytest.fixture
def unreachable(log_bootstrap: str | None) -> Log:
    """A log of the same kind whose broker does not answer."""
    if log_bootstrap is not None:
        return ConfluentLog("127.0.0.1:1")
    memory = MemoryLog(_now_ms)
    memory.broker_down = True
    return memory


@pytest.fixture
def bench(log: Log, namespace: str) -> Iterator[Bench]:
    bench = Bench(log, namespace)
    yield bench
    bench.close()
