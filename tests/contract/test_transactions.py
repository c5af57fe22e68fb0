"""What the engine's promises rest on: a transaction happens once, as a whole, or not at all."""

from __future__ import annotations

import os

import pytest

from broker_engine.errors import Fenced, RecordTooLarge, Retriable, TransactionAborted
from broker_engine.log.ports import CommittedOffset, Isolation, TopicPartition
from tests.contract.conftest import Bench


def test_records_of_a_transaction_appear_together_after_its_commit(bench: Bench) -> None:
    topic = bench.topic(partitions=2)
    member = bench.sole_member(bench.topic())
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    writer = bench.transactions()

    writer.begin()
    writer.send(topic, 0, b"k", b"one")
    writer.send(topic, 1, b"k", b"two")
    readers = bench.reader(first), bench.reader(second)
    assert all(bench.nothing_comes(r) for r in readers)
    writer.commit({}, member.group())

    assert [bench.values(r, tp) for r, tp in zip(readers, (first, second), strict=True)] == [
        [b"one"],
        [b"two"],
    ]


def test_records_of_an_aborted_transaction_are_never_read_committed(bench: Bench) -> None:
    topic = bench.topic()
    tp = TopicPartition(topic, 0)
    member = bench.sole_member(bench.topic())
    writer = bench.transactions()
    writer.begin()
    writer.send(topic, 0, b"k", b"dropped")
    bench.until(lambda: bench.admin.end_offsets([tp], Isolation.UNCOMMITTED)[tp] == 1)
    writer.abort()
    writer.begin()
    writer.send(topic, 0, b"k", b"kept")
    writer.commit({}, member.group())

    assert bench.values(bench.reader(tp), tp) == [b"kept"]
    everything = bench.reader(tp, isolation=Isolation.UNCOMMITTED)
    assert bench.values(everything, tp) == [b"dropped", b"kept"]


def test_last_stable_offset_waits_for_an_open_transaction_and_the_high_watermark_does_not(
    bench: Bench,
) -> None:
    topic = bench.topic()
    tp = TopicPartition(topic, 0)
    writer = bench.transactions()
    bench.write(topic, b"before")
    writer.begin()
    writer.send(topic, 0, b"k", b"open")
    bench.until(lambda: bench.admin.end_offsets([tp], Isolation.UNCOMMITTED)[tp] == 2)
    bench.write(topic, b"after")

    assert bench.admin.end_offsets([tp], Isolation.UNCOMMITTED) == {tp: 3}
    assert bench.admin.end_offsets([tp], Isolation.COMMITTED) == {tp: 1}
    assert [r.value for r in bench.take(bench.reader(tp), 1)] == [b"before"]
    uncommitted = bench.reader(tp, isolation=Isolation.UNCOMMITTED)
    assert bench.values(uncommitted, tp) == [b"before", b"open", b"after"]


def test_consumed_offsets_and_their_metadata_commit_with_the_records(bench: Bench) -> None:
    source, group = bench.topic(), bench.name()
    tp = TopicPartition(source, 0)
    member = bench.sole_member(source, group)
    writer = bench.transactions()

    writer.begin()
    writer.commit({tp: CommittedOffset(5, "slot-1")}, member.group())
    committed = CommittedOffset(5, "slot-1")
    assert bench.stable(group, tp) == committed

    member.close()
    assert bench.admin.committed(group, [tp], require_stable=False) == {tp: committed}


def test_offsets_of_a_dead_transaction_stay_pending_until_its_id_is_initialised(
    bench: Bench,
) -> None:
    source, target, group = bench.topic(), bench.topic(), bench.name()
    tp = TopicPartition(source, 0)
    member = bench.sole_member(source, group)
    member.commit({tp: CommittedOffset(3, "before")})
    writer = bench.transactions()
    writer.begin()
    writer.send(target, 0, b"k", b"never")
    bench.die_before_commit(writer, {tp: CommittedOffset(7, "pending")}, member)

    with pytest.raises(Retriable):
        bench.admin.committed(group, [tp], require_stable=True)
    before = {tp: CommittedOffset(3, "before")}
    assert bench.admin.committed(group, [tp], require_stable=False) == before

    bench.transactions(writer.transactional_id)
    assert bench.stable(group, tp) == before[tp]
    end = TopicPartition(target, 0)
    assert bench.values(bench.reader(end), end) == []


def test_initialising_an_id_fences_its_earlier_holder_and_ends_its_transaction(
    bench: Bench,
) -> None:
    topic = bench.topic()
    tp = TopicPartition(topic, 0)
    member = bench.sole_member(bench.topic())
    zombie = bench.transactions()
    zombie.begin()
    zombie.send(topic, 0, b"k", b"of the zombie")
    bench.until(lambda: bench.admin.end_offsets([tp], Isolation.UNCOMMITTED)[tp] == 1)

    successor = bench.transactions(zombie.transactional_id)
    with pytest.raises(Fenced):
        zombie.commit({}, member.group())
    successor.begin()
    successor.send(topic, 0, b"k", b"of the successor")
    successor.commit({}, member.group())

    assert bench.values(bench.reader(tp), tp) == [b"of the successor"]


def test_transaction_with_offsets_of_a_member_that_left_is_fenced_and_frees_its_partitions(
    bench: Bench,
) -> None:
    source, target = bench.topic(), bench.topic()
    tp, end = TopicPartition(source, 0), TopicPartition(target, 0)
    group = bench.name()
    member = bench.sole_member(source, group)
    membership = member.group()
    writer = bench.transactions()
    writer.begin()
    writer.send(target, 0, b"k", b"of the zombie")
    member.close()
    bench.sole_member(source, group)

    with pytest.raises(Fenced):
        writer.commit({tp: CommittedOffset(1)}, membership)

    assert bench.stable(group, tp) is None
    assert bench.values(bench.reader(end), end) == []


def test_transaction_without_offsets_of_a_member_that_left_commits(bench: Bench) -> None:
    """Why every transaction of the engine carries offsets."""
    source, target = bench.topic(), bench.topic()
    end = TopicPartition(target, 0)
    group = bench.name()
    member = bench.sole_member(source, group)
    membership = member.group()
    writer = bench.transactions()
    writer.begin()
    writer.send(target, 0, b"k", b"of the zombie")
    member.close()
    bench.sole_member(source, group)

    writer.commit({}, membership)

    assert bench.values(bench.reader(end), end) == [b"of the zombie"]


def test_record_over_the_topics_limit_aborts_the_transaction_and_the_next_one_works(
    bench: Bench,
) -> None:
    topic = bench.topic(max_message_bytes="20000")
    tp = TopicPartition(topic, 0)
    member = bench.sole_member(bench.topic())
    writer = bench.transactions()
    writer.begin()
    writer.send(topic, 0, b"k", b"beside it")
    writer.send(topic, 0, b"k", os.urandom(30_000))  # random: lz4 must not make it fit

    with pytest.raises(TransactionAborted) as caught:
        writer.commit({}, member.group())
    assert isinstance(caught.value.__cause__, RecordTooLarge)
    writer.abort()

    writer.begin()
    writer.send(topic, 0, b"k", b"next")
    writer.commit({}, member.group())
    assert bench.values(bench.reader(tp), tp) == [b"next"]


@pytest.mark.slow
def test_record_for_a_missing_topic_aborts_the_transaction(bench: Bench) -> None:
    """It takes a real client 15 s to say so: the reason to send only to topics known to exist."""
    member = bench.sole_member(bench.topic())
    writer = bench.transactions()
    writer.begin()
    writer.send(bench.name(), 0, b"k", b"v")

    with pytest.raises(TransactionAborted):
        writer.commit({}, member.group())
    writer.abort()

    writer.begin()
    writer.commit({}, member.group())


def test_membership_from_before_a_rebalance_aborts_the_transaction_and_a_new_one_commits(
    bench: Bench,
) -> None:
    source, group = bench.topic(partitions=2), bench.name()
    tp = TopicPartition(source, 0)
    first = bench.sole_member(source, group)
    writer = bench.transactions()
    before = first.group()
    second = bench.member(source, group, client_id="b")

    def both_hold_one() -> bool:
        for member in (first, second):
            member.read(1, 0.05)
        return len(first.assignment()) == len(second.assignment()) == 1

    bench.until(both_hold_one)
    (kept,) = first.assignment()

    writer.begin()
    with pytest.raises(TransactionAborted):
        writer.commit({tp: CommittedOffset(1)}, before)
    writer.abort()
    writer.begin()
    writer.commit({kept: CommittedOffset(1)}, first.group())
    assert bench.stable(group, kept) == CommittedOffset(1)


def test_aborting_or_committing_nothing_is_fine(bench: Bench) -> None:
    member = bench.sole_member(bench.topic())
    writer = bench.transactions()
    writer.begin()
    writer.abort()
    writer.begin()
    writer.commit({}, member.group())


def test_closing_a_writer_leaves_its_transaction_open(bench: Bench) -> None:
    """After a commit of unknown outcome nothing may be aborted: only the next `init` of the id decides."""
    topic = bench.topic()
    tp = TopicPartition(topic, 0)
    writer = bench.transactions()
    writer.begin()
    writer.send(topic, 0, b"k", b"open")
    bench.until(lambda: bench.admin.end_offsets([tp], Isolation.UNCOMMITTED)[tp] == 1)
    writer.close()
    writer.close()

    assert bench.nothing_comes(bench.reader(tp))
    assert bench.admin.end_offsets([tp], Isolation.COMMITTED) == {tp: 0}
    with pytest.raises(Fenced):
        writer.begin()
