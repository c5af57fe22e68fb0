"""Consumers: with assigned partitions, and as members of a group."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from broker_engine.errors import Fenced, LogError, Retriable
from broker_engine.log.companions import own, together
from broker_engine.log.confluent.client import (
    ADMIN_TIMEOUT,
    CONSUMER,
    RETRY_PAUSE,
    SEEK_TIMEOUT,
    Health,
    from_kafka,
    made,
    to_kafka,
    translate,
)
from broker_engine.log.ports import (
    BEGINNING,
    END,
    CommittedOffset,
    Group,
    Isolation,
    RebalanceListener,
    Record,
    TopicPartition,
)


class ConfluentReader:
    """ports.Reader, and what a group's reader shares with it."""

    def __init__(self, conf: Mapping[str, Any], isolation: Isolation, headers: bool) -> None:
        name = str(conf.get("client.id", "reader"))
        self._health = Health(name)
        self._isolation = isolation
        own = {
            "isolation.level": isolation.value,
            # Required by the client even without a group; nothing is ever committed under it.
            "group.id": conf.get("group.id", "broker-engine-no-group"),
        }
        self._consumer = made(Consumer, conf, CONSUMER, own, health=self._health)
        self._headers = headers
        self._closed = False
        self._assigned: frozenset[TopicPartition] = frozenset()
        self._paused: set[TopicPartition] = set()
        #: The next offset of each partition. Kept here, because the client's own position is unset before the first
        #: record and for a moment still the old one after an assignment.
        self._positions: dict[TopicPartition, int] = {}
        #: Set by rebalance callbacks: records taken in the same call may belong to partitions just
        #: given away.
        self._moved = False
        self._failure: LogError | None = None

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        self._positions = {tp: self._resolved(tp, at) for tp, at in positions.items()}
        self._paused.clear()
        self._assigned = frozenset(self._positions)
        try:
            self._consumer.assign([KafkaPartition(tp.topic, tp.partition, at) for tp, at in self._positions.items()])
        except KafkaException as error:
            raise translate(error.args[0]) from error

    def read(self, max_records: int, timeout: float) -> list[Record]:
        self._health.check()
        self._raise_failure()
        deadline = time.monotonic() + timeout
        try:
            while True:
                # consume(n, t) alone would wait for n records or t seconds, whichever is later to
                # come.
                first = self._consumer.poll(max(deadline - time.monotonic(), 0.0))
                if first is None:
                    return []
                messages = [first]
                if max_records > 1:
                    messages += self._consumer.consume(max_records - 1, 0)
                records = self._records(messages)
                if records:
                    return records
                self._raise_failure()
        except KafkaException as error:
            raise translate(error.args[0]) from error

    def position(self, tp: TopicPartition) -> int:
        if tp not in self._positions:  # a new partition of a group that was neither read nor sought
            self._positions[tp] = self._committed_or_begin(tp)
        return self._positions[tp]

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        wanted = self._assigned.intersection(partitions) - self._paused
        if wanted:
            self._paused |= wanted
            self._consumer.pause([KafkaPartition(*tp) for tp in wanted])

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in self._paused.intersection(partitions):
            where = self.position(tp)
            self._paused.discard(tp)
            self._consumer.resume([KafkaPartition(*tp)])
            # A resumed partition is otherwise fetched only when the broker thread next wakes: up to
            # 1 s (measured); with the seek after it, 2 ms.
            self.seek(tp, where)

    def seek(self, tp: TopicPartition, offset: int) -> None:
        if tp not in self._assigned:
            raise LogError(f"{tp} is not assigned to this reader.")
        offset = self._resolved(tp, offset)
        self._positions[tp] = offset
        deadline = time.monotonic() + SEEK_TIMEOUT
        while True:
            try:
                self._consumer.seek(KafkaPartition(tp.topic, tp.partition, offset))
            except KafkaException as error:
                # _STATE: a new partition whose start (the query for its committed offset) is still
                # under way.
                starting = error.args[0].code() in (KafkaError._STATE, KafkaError._PREV_IN_PROGRESS)
                if not starting:
                    raise translate(error.args[0]) from error
                if time.monotonic() >= deadline:
                    raise Retriable(f"{tp} did not start within {SEEK_TIMEOUT} s") from error
                time.sleep(RETRY_PAUSE / 5)
            else:
                return

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._consumer.close()

    def _records(self, messages: Sequence[Message]) -> list[Record]:
        """The records among the messages; ends of partitions are noted, errors kept for the next
        call.
        """
        self._health.answered()
        records = []
        with_headers = self._headers
        for m in messages:
            error = m.error()
            if error is not None:
                self._note(error, m)
                continue
            headers = _headers(m) if with_headers else ()
            records.append(
                Record(
                    m.topic(),  # type: ignore[arg-type]  # never None on a record without error
                    m.partition(),  # type: ignore[arg-type]  # as above
                    m.offset(),  # type: ignore[arg-type]  # as above
                    m.timestamp()[1],
                    m.key(),
                    m.value(),
                    headers,
                )
            )
        if self._moved:
            self._moved = False
            held = self._assigned - self._paused
            records = [r for r in records if (r.topic, r.partition) in held]
        last = {(r[0], r[1]): r[2] for r in records}
        for (topic, partition), offset in last.items():
            self._advance(TopicPartition(topic, partition), offset + 1)
        return records

    def _advance(self, tp: TopicPartition, position: int) -> None:
        self._positions[tp] = max(self._positions.get(tp, 0), position)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _note(self, error: KafkaError, message: Message) -> None:
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            tp = TopicPartition(message.topic() or "", message.partition() or 0)
            was_before_a_move = self._moved and tp in self._paused
            if tp in self._assigned and not was_before_a_move:
                self._advance(tp, message.offset() or 0)
            return
        # Outages are the client's to retry; a member thrown out hears of it through `lost`; a
        # reader without a group needs no rights on one.
        harmless = {
            KafkaError._MAX_POLL_EXCEEDED,
            KafkaError._ALL_BROKERS_DOWN,
            KafkaError._TRANSPORT,
            KafkaError._TIMED_OUT,
        }
        if not isinstance(self, ConfluentGroupReader):
            harmless.add(KafkaError.GROUP_AUTHORIZATION_FAILED)
        if code not in harmless and not error.retriable():
            self._failure = translate(error)

    def _resolved(self, tp: TopicPartition, offset: int) -> int:
        """A real offset for BEGINNING and END (as this reader's isolation sees it)."""
        if offset not in (BEGINNING, END):
            return offset
        deadline = time.monotonic() + ADMIN_TIMEOUT
        while True:
            try:
                first, last = self._consumer.get_watermark_offsets(KafkaPartition(*tp), ADMIN_TIMEOUT)
            except KafkaException as error:
                meaning = translate(error.args[0])
                # The metadata name a new topic's leader a moment before that broker knows of it.
                if not isinstance(meaning, Retriable) or time.monotonic() >= deadline:
                    raise meaning from error
                time.sleep(RETRY_PAUSE)
            else:
                return int(first if offset == BEGINNING else last)

    def _committed_or_begin(self, tp: TopicPartition) -> int:
        try:
            found = self._consumer.committed([KafkaPartition(*tp)], ADMIN_TIMEOUT)[0]
        except KafkaException as error:
            raise translate(error.args[0]) from error
        if found.error is not None:
            raise translate(found.error)
        return int(found.offset) if found.offset >= 0 else self._resolved(tp, BEGINNING)


class ConfluentGroupReader(ConfluentReader):
    """ports.GroupReader."""

    _listener: RebalanceListener | None = None
    _companions: Sequence[str] = ()

    def subscribe(self, topic: str, listener: RebalanceListener | None = None, companions: Sequence[str] = ()) -> None:
        self._listener, self._companions = listener, companions

        def on_assign(consumer: Consumer, partitions: list[KafkaPartition]) -> None:
            added = from_kafka(partitions)
            taken = together(added, companions)
            self._change(self._assigned.union(taken), taken)
            consumer.incremental_assign([KafkaPartition(*tp) for tp in taken])
            if added and self._listener is not None:
                consumer.pause([KafkaPartition(*tp) for tp in taken])
                self._paused.update(taken)
                self._listener.assigned(added)

        # At the end of a membership the client names all that was assigned, companions too.
        def on_revoke(consumer: Consumer, partitions: list[KafkaPartition]) -> None:
            removed = own(from_kafka(partitions), companions)
            given_up = together(removed, companions)
            if removed and self._listener is not None:
                self._listener.revoked(removed)
            self._change(self._assigned.difference(given_up), given_up)
            consumer.incremental_unassign([KafkaPartition(*tp) for tp in given_up])

        def on_lost(consumer: Consumer, partitions: list[KafkaPartition]) -> None:
            removed = own(from_kafka(partitions), companions)
            given_up = together(removed, companions)
            self._change(self._assigned.difference(given_up), given_up)
            if removed and self._listener is not None:
                self._listener.lost(removed)
            consumer.incremental_unassign([KafkaPartition(*tp) for tp in given_up])

        try:
            self._consumer.subscribe([topic], on_assign=on_assign, on_revoke=on_revoke, on_lost=on_lost)
        except KafkaException as error:
            raise translate(error.args[0]) from error

    def close(self) -> None:
        # The client's own close may have left the group before it tells of the revocation; a release committed in
        # that call must come before.
        listener, self._listener = self._listener, None
        try:
            held = own(self._assigned, self._companions)
            if not self._closed and held and listener is not None:
                listener.revoked(held)
        finally:
            super().close()

    def assignment(self) -> frozenset[TopicPartition]:
        return self._assigned

    def group(self) -> Group:
        # Without this check a member that has left would hand out a membership without a name, and
        # the broker takes offsets of nameless members unchecked: the fencing of the transaction
        # would be gone.
        if not self._consumer.memberid():
            raise Fenced("This member is not in its group any more; rebuild from the log.")
        membership: Group = self._consumer.consumer_group_metadata()
        return membership

    def commit(self, offsets: Mapping[TopicPartition, CommittedOffset], *, asynchronous: bool = False) -> None:
        self.group()
        positions = to_kafka(offsets)
        try:
            if asynchronous:
                self._consumer.commit(offsets=positions, asynchronous=True)
                return
            committed = self._consumer.commit(offsets=positions, asynchronous=False)
        except KafkaException as error:
            raise translate(error.args[0]) from error
        for partition in committed or ():
            if partition.error is not None:
                raise translate(partition.error)

    def _change(self, assigned: frozenset[TopicPartition], changed: Sequence[TopicPartition]) -> None:
        """The assignment is now another one: nothing known of the changed partitions holds any
        longer.
        """
        self._assigned = assigned
        self._moved = True
        self._paused.difference_update(changed)
        for tp in changed:
            self._positions.pop(tp, None)


def _headers(message: Message) -> tuple[tuple[str, bytes], ...]:
    found: Any = message.headers()  # declared as every form `produce` takes; read, it is this one
    return tuple((name, value or b"") for name, value in found or ())
