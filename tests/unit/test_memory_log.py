"""The faults that only the log in memory can make, each as it was seen on a real cluster."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

import pytest

from broker_engine.errors import (
    Fenced,
    LogError,
    OutcomeUnknown,
    Retriable,
    TransactionAborted,
    UnknownTopic,
    Unreachable,
)
from broker_engine.log.memory import (
    Crashed,
    MemoryGroupReader,
    MemoryLog,
    MemoryReader,
    MemoryTransactionalWriter,
)
from broker_engine.log.ports import (
    BEGINNING,
    CommittedOffset,
    Delivery,
    Isolation,
    NewTopic,
    Record,
    TopicPartition,
)

IN = TopicPartition("in", 0)
OUT = TopicPartition("out", 0)
AT_ONE = {IN: CommittedOffset(1, "slot-1")}


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_000

    def __call__(self) -> int:
        return self.now_ms


def a_log(configs: Mapping[str, Mapping[str, str]] | None = None, **options: bool) -> MemoryLog:
    log = MemoryLog(Clock(), **options)
    configs = configs or {}
    log.admin().create([NewTopic(name=name, partitions=2, config=configs.get(name, {})) for name in ("in", "out")])
    return log


def a_member(log: MemoryLog, client_id: str = "a") -> MemoryGroupReader:
    member = log.group_reader("g", client_id=client_id)
    member.subscribe("in")
    member.read(10, 0)
    return member


def a_writer(log: MemoryLog, transactional_id: str = "slot-1") -> MemoryTransactionalWriter:
    writer = log.transactional_writer(transactional_id)
    writer.init()
    return writer


def an_open_transaction(log: MemoryLog, value: bytes = b"v") -> MemoryTransactionalWriter:
    writer = a_writer(log)
    writer.begin()
    writer.send("out", 0, b"k", value)
    return writer


def a_reader(log: MemoryLog, tp: TopicPartition = OUT) -> MemoryReader:
    reader = log.reader()
    reader.assign({tp: BEGINNING})
    return reader


def seen(log: MemoryLog, tp: TopicPartition = OUT) -> list[bytes | None]:
    return [r.value for r in a_reader(log, tp).read(100, 0)]


def committed(log: MemoryLog, *, require_stable: bool = True) -> CommittedOffset | None:
    return log.admin().committed("g", [IN], require_stable=require_stable)[IN]


def write(log: MemoryLog, *values: bytes, tp: TopicPartition = OUT) -> None:
    for value in values:
        log.writer(client_id="w").send(tp.topic, tp.partition, value[:1], value)


def test_lagging_lso_hides_records_of_a_commit_that_has_returned_while_its_offsets_show() -> None:
    log = a_log()
    member, writer = a_member(log), an_open_transaction(log)
    log.lag_lso = True

    writer.commit(AT_ONE, member.group())

    admin = log.admin()
    assert committed(log) == AT_ONE[IN]
    assert seen(log) == []
    assert admin.end_offsets([OUT], Isolation.COMMITTED) == {OUT: 0}
    assert admin.end_offsets([OUT], Isolation.UNCOMMITTED) == {OUT: 1}
    log.settle_lso()
    assert seen(log) == [b"v"]
    assert admin.end_offsets([OUT], Isolation.COMMITTED) == {OUT: 2}


def test_lagging_offsets_stay_pending_until_they_settle() -> None:
    log = a_log()
    member, writer = a_member(log), an_open_transaction(log)
    log.lag_lso = log.lag_offsets = True

    writer.commit(AT_ONE, member.group())

    assert committed(log, require_stable=False) is None
    with pytest.raises(Retriable):
        committed(log)
    log.lag_lso = False
    assert committed(log) == AT_ONE[IN]


def test_next_transactions_of_a_writer_may_start_while_its_last_one_lags() -> None:
    log = a_log()
    member, writer = a_member(log), an_open_transaction(log, b"first")
    log.lag_lso = True
    writer.commit(AT_ONE, member.group())
    writer.begin()
    writer.send("out", 0, b"k", b"second")
    writer.abort()
    writer.begin()
    writer.send("out", 0, b"k", b"third")
    writer.commit(AT_ONE, member.group())

    log.lag_lso = False

    assert seen(log) == [b"first", b"third"]


def test_split_assignment_gives_a_partition_of_two_topics_to_different_members() -> None:
    log = a_log()
    log.split_assignment = True
    members = [log.group_reader("g", client_id=name) for name in "ab"]
    for member in members * 2:
        member.subscribe(("in", "out"))
    for member in members * 3:
        member.read(1, 0)

    holders = {tp: name for name, m in zip("ab", members, strict=True) for tp in m.assignment()}
    assert len(holders) == 4
    assert all(holders[TopicPartition("in", p)] != holders[TopicPartition("out", p)] for p in (0, 1))


@pytest.mark.parametrize(("offsets", "commits"), [({}, True), (AT_ONE, False)])
def test_zombie_commits_without_offsets_and_is_fenced_with_them(
    offsets: Mapping[TopicPartition, CommittedOffset], commits: bool
) -> None:
    log = a_log()
    zombie, writer = a_member(log), an_open_transaction(log)
    log.expire_session(zombie)
    successor = a_member(log, "b")
    assert IN in successor.assignment()

    if commits:
        writer.commit(offsets, zombie.group())
    else:
        with pytest.raises(Fenced):
            writer.commit(offsets, zombie.group())

    assert seen(log) == ([b"v"] if commits else [])


def test_member_whose_session_expired_hears_that_its_partitions_are_lost_and_joins_anew() -> None:
    log = a_log()
    heard: list[str] = []

    class Listener:
        def assigned(self, partitions: object) -> None:
            heard.append("assigned")

        def revoked(self, partitions: object) -> None:
            heard.append("revoked")

        def lost(self, partitions: object) -> None:
            heard.append("lost")

    member = log.group_reader("g", client_id="a")
    member.subscribe("in", Listener())
    member.read(1, 0)
    log.expire_session(member)
    with pytest.raises(Fenced):
        member.commit(AT_ONE)

    member.read(1, 0)

    assert heard == ["assigned", "lost", "assigned"]
    member.commit(AT_ONE)


@pytest.mark.parametrize("applied", [True, False])
def test_commit_of_unknown_outcome_happened_or_not_as_chosen(applied: bool) -> None:
    log = a_log()
    member, writer = a_member(log), an_open_transaction(log)
    log.make_next_commit_unknown(applied=applied)

    with pytest.raises(OutcomeUnknown):
        writer.commit(AT_ONE, member.group())
    writer.close()
    a_writer(log)

    assert seen(log) == ([b"v"] if applied else [])
    assert committed(log) == (AT_ONE[IN] if applied else None)


def test_held_transaction_blocks_readers_until_its_id_returns() -> None:
    log = a_log()
    member, writer = a_member(log), an_open_transaction(log)
    log.hold_transaction("slot-1")
    with pytest.raises(Crashed):
        writer.commit(AT_ONE, member.group())
    write(log, b"behind")

    assert seen(log) == []
    with pytest.raises(Retriable):
        committed(log)
    successor = a_writer(log)
    assert seen(log) == [b"behind"]
    assert committed(log) is None
    successor.begin()
    successor.commit(AT_ONE, member.group())


def test_expired_transaction_is_aborted_and_its_writer_fenced() -> None:
    log = a_log()
    member, writer = a_member(log), an_open_transaction(log)
    write(log, b"behind")

    log.expire_transactions()

    assert seen(log) == [b"behind"]
    with pytest.raises(Fenced):
        writer.commit(AT_ONE, member.group())


def test_member_whose_committed_offset_is_pending_reads_nothing_until_it_is_stable() -> None:
    log = a_log()
    write(log, b"0", b"1", tp=IN)
    first, writer = a_member(log), an_open_transaction(log)
    log.hold_transaction("slot-1")
    with pytest.raises(Crashed):
        writer.commit(AT_ONE, first.group())
    first.close()
    second = log.group_reader("g", client_id="b")
    second.subscribe("in")

    assert second.read(10, 0) == []
    with pytest.raises(Retriable):
        second.position(IN)
    a_writer(log)
    assert [r.value for r in second.read(10, 0)] == [b"0", b"1"]


@pytest.mark.parametrize("hook", ["before_commit", "on_commit"])
def test_crash_points_lie_on_either_side_of_the_commit(hook: str) -> None:
    log = a_log()
    member, writer = a_member(log), an_open_transaction(log)

    def crash(transactional_id: str) -> None:
        raise Crashed(transactional_id)

    setattr(log, hook, crash)
    with pytest.raises(Crashed, match="slot-1"):
        writer.commit(AT_ONE, member.group())
    a_writer(log)

    assert seen(log) == ([b"v"] if hook == "on_commit" else [])


def test_rewound_reader_delivers_its_last_records_again() -> None:
    log = a_log()
    write(log, b"a", b"b", b"c")
    reader = a_reader(log)
    reader.read(100, 0)

    reader.rewind(OUT, records=2)

    assert [r.value for r in reader.read(100, 0)] == [b"b", b"c"]


def test_absent_broker_queues_what_is_sent_and_stores_it_when_it_is_back() -> None:
    log = a_log()
    writer = log.writer(client_id="w")
    deliveries: list[Delivery] = []
    log.broker_down = True
    writer.send("out", 0, b"k", b"v", on_delivery=deliveries.append)

    assert writer.flush(0) == 1
    assert deliveries == []
    with pytest.raises(Unreachable):
        log.admin().topics()
    log.broker_down = False
    assert writer.flush(0) == 0
    assert [d.offset for d in deliveries] == [0]
    assert seen(log) == [b"v"]


def test_transaction_during_an_outage_aborts_once_the_broker_is_back() -> None:
    log = a_log()
    member, writer = a_member(log), an_open_transaction(log)
    log.broker_down = True
    writer.send("out", 0, b"k", b"queued")

    with pytest.raises(TransactionAborted):
        writer.commit(AT_ONE, member.group())
    with pytest.raises(Retriable):
        writer.abort()
    with pytest.raises(Retriable):
        member.commit(AT_ONE)
    assert member.read(10, 0) == []
    log.broker_down = False
    writer.abort()

    assert seen(log) == []


def test_removed_tombstones_leave_no_trace_but_the_gap() -> None:
    log = a_log({"out": {"cleanup.policy": "compact"}})
    writer = log.writer(client_id="w")
    for key, value in ((b"a", b"1"), (b"b", b"1"), (b"a", None), (b"c", b"1")):
        writer.send("out", 0, key, value)

    log.compact("out")
    assert [(r.offset, r.value) for r in a_reader(log).read(9, 0)] == [(1, b"1"), (2, None), (3, b"1")]
    log.compact("out", remove_tombstones=True)
    assert [r.offset for r in a_reader(log).read(9, 0)] == [1, 3]
    assert log.admin().end_offsets([OUT], Isolation.COMMITTED) == {OUT: 4}


def test_compaction_leaves_what_is_not_stable_alone() -> None:
    log = a_log({"out": {"cleanup.policy": "compact"}})
    write(log, b"k-old")
    writer = an_open_transaction(log)
    write(log, b"k-new")
    log.compact("out")
    writer.abort()

    assert seen(log) == [b"k-old", b"k-new"]


def test_compacted_topic_refuses_a_record_without_a_key() -> None:
    log = a_log({"out": {"cleanup.policy": "compact"}})
    deliveries: list[Delivery] = []
    writer = log.writer(client_id="w")
    writer.send("out", 0, None, b"v", on_delivery=deliveries.append)
    writer.poll()

    assert isinstance(deliveries[0].error, LogError)


def test_log_append_time_is_the_brokers_clock_and_create_time_the_senders() -> None:
    log = MemoryLog(lambda: 5_000, sender_clock=lambda: 3_000)
    log_time = {"message.timestamp.type": "LogAppendTime"}
    log.admin().create(
        [NewTopic(name="in", partitions=1, config=log_time), NewTopic(name="out", partitions=1)],
    )
    write(log, b"v", tp=IN)
    write(log, b"v", tp=OUT)

    (at_broker,), (at_sender,) = (a_reader(log, tp).read(1, 0) for tp in (IN, OUT))

    assert (at_broker.timestamp_ms, at_sender.timestamp_ms) == (5_000, 3_000)


def test_reading_with_a_fake_clock_does_not_wait() -> None:
    start = time.perf_counter()

    assert a_reader(a_log()).read(10, 60.0) == []

    assert time.perf_counter() - start < 5


def test_blocking_log_wakes_a_reader_in_another_thread() -> None:
    log = a_log(blocks=True)
    reader = a_reader(log)
    taken: list[list[Record]] = []
    thread = threading.Thread(target=lambda: taken.append(reader.read(10, 30.0)))
    thread.start()
    write(log, b"v")
    thread.join(30)

    assert [r.value for r in taken[0]] == [b"v"]


def test_reading_a_deleted_topic_is_an_error() -> None:
    log = a_log()
    reader = a_reader(log)
    log.admin().delete(["out"])

    with pytest.raises(UnknownTopic):
        reader.read(1, 0)


def test_same_acts_give_the_same_log() -> None:
    def run() -> list[tuple[int, bytes | None]]:
        log = a_log()
        first, second = a_member(log, "a"), a_member(log, "b")
        writer = a_writer(log)
        for number in range(20):
            write(log, b"%d" % number, tp=TopicPartition("in", number % 2))
        for _ in range(6):
            for member in (first, second):
                records = member.read(3, 0)
                writer.begin()
                for record in records:
                    writer.send("out", 0, record.key, record.value)
                at = {tp: CommittedOffset(member.position(tp)) for tp in member.assignment()}
                writer.commit(at, member.group())
        return [(r.offset, r.value) for r in a_reader(log).read(100, 0)]

    assert run() == run()
    assert sorted(value or b"" for _, value in run()) == sorted(b"%d" % n for n in range(20))
