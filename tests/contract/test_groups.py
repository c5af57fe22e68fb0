"""How partitions are shared between members, and what a member may still do when it is out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from broker_engine.errors import Fenced
from broker_engine.log.ports import CommittedOffset, GroupReader, TopicPartition
from tests.contract.conftest import Bench, Listener


def all_of(topic: str, partitions: int) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(topic, p) for p in range(partitions))


def settle(bench: Bench, members: Sequence[GroupReader], partitions: int) -> None:
    """Let the members read until every partition has a holder and nobody holds more than a share."""
    share = -(-partitions // len(members))

    def is_settled() -> bool:
        for member in members:
            member.read(1, 0.05)
        held = [len(m.assignment()) for m in members]
        return sum(held) == partitions and max(held) <= share

    bench.until(is_settled, 30.0)


def test_partitions_of_a_listening_member_start_paused(bench: Bench) -> None:
    topic, listener = bench.topic(partitions=2), Listener()
    bench.write(topic, b"v")
    member = bench.member(topic, bench.name(), listener=listener)

    settle(bench, [member], 2)

    assert listener.events == [("assigned", all_of(topic, 2))]
    assert bench.nothing_comes(member)
    assert [member.position(tp) for tp in all_of(topic, 2)] == [0, 0]
    member.resume(member.assignment())
    assert [r.value for r in bench.take(member, 1)] == [b"v"]


def test_listening_member_reads_on_from_where_it_seeks(bench: Bench) -> None:
    topic, group = bench.topic(), bench.name()
    (tp,) = all_of(topic, 1)
    bench.write(topic, *(b"%d" % n for n in range(6)))
    member = bench.member(topic, group, listener=Listener())
    settle(bench, [member], 1)

    member.seek(tp, 4)
    assert member.position(tp) == 4
    member.resume([tp])

    assert [r.value for r in bench.take(member, 2)] == [b"4", b"5"]


def test_resumed_member_without_a_seek_starts_at_the_committed_offset(bench: Bench) -> None:
    topic, group = bench.topic(), bench.name()
    (tp,) = all_of(topic, 1)
    bench.write(topic, *(b"%d" % n for n in range(6)))
    earlier = bench.sole_member(topic, group)
    earlier.commit({tp: CommittedOffset(3)})
    earlier.close()
    member = bench.member(topic, group, listener=Listener())
    settle(bench, [member], 1)

    assert member.position(tp) == 3
    member.resume([tp])

    assert bench.take(member, 1)[0].value == b"3"


def test_member_without_a_listener_starts_at_once_at_the_committed_offset(bench: Bench) -> None:
    topic, group = bench.topic(), bench.name()
    (tp,) = all_of(topic, 1)
    bench.write(topic, b"0", b"1")
    first = bench.member(topic, group)
    assert [r.value for r in bench.take(first, 2)] == [b"0", b"1"]
    first.commit({tp: CommittedOffset(1, "text")})
    first.close()

    second = bench.member(topic, group)

    assert [r.value for r in bench.take(second, 1)] == [b"1"]
    stored = bench.admin.committed(group, [tp], require_stable=True)
    assert stored == {tp: CommittedOffset(1, "text")}


def test_one_subscribed_topic_is_balanced_over_two_members(bench: Bench) -> None:
    topic, group = bench.topic(partitions=8), bench.name()
    first_hears, second_hears = Listener(), Listener()
    first = bench.member(topic, group, client_id="one", listener=first_hears)
    settle(bench, [first], 8)
    second = bench.member(topic, group, client_id="two", listener=second_hears)
    settle(bench, [first, second], 8)

    assert first.assignment() | second.assignment() == set(all_of(topic, 8))
    kinds = [kind for kind, _ in first_hears.events]
    assert kinds == ["assigned", "revoked"]
    # Cooperative: what the first keeps, it is never told about.
    assert set(first_hears.events[1][1]) == second.assignment()
    assert {m.client_id: frozenset(m.partitions) for m in bench.admin.members(group)} == {
        "one": first.assignment(),
        "two": second.assignment(),
    }

    second.close()
    settle(bench, [first], 8)
    assert first.assignment() == set(all_of(topic, 8))


def test_commit_while_partitions_are_revoked_succeeds(bench: Bench) -> None:
    topic, group = bench.topic(partitions=2), bench.name()
    members: list[GroupReader] = []

    def commit(partitions: Sequence[TopicPartition]) -> None:
        if len(members) == 2:  # not when the test is over and the members close
            members[0].commit({tp: CommittedOffset(9, "released") for tp in partitions})

    members.append(bench.member(topic, group, client_id="one", listener=Listener(commit)))
    settle(bench, members, 2)
    members.append(bench.member(topic, group, client_id="two"))
    settle(bench, members, 2)

    (moved,) = members.pop().assignment()
    assert bench.admin.committed(group, [moved], require_stable=True) == {moved: CommittedOffset(9, "released")}


def test_closing_member_is_told_to_give_its_partitions_back(bench: Bench) -> None:
    topic, listener = bench.topic(), Listener()
    member = bench.member(topic, bench.name(), listener=listener)
    settle(bench, [member], 1)

    member.close()
    member.close()

    assert listener.events[1:] == [("revoked", all_of(topic, 1))]


def test_member_that_is_not_in_its_group_cannot_commit(bench: Bench) -> None:
    topic = bench.topic()
    (tp,) = all_of(topic, 1)
    member = bench.sole_member(topic)
    bench.throw_out(member)

    with pytest.raises(Fenced):
        member.commit({tp: CommittedOffset(1)})


def test_asynchronous_commit_arrives(bench: Bench) -> None:
    topic, group = bench.topic(), bench.name()
    (tp,) = all_of(topic, 1)
    member = bench.sole_member(topic, group)

    member.commit({tp: CommittedOffset(2, "later")}, asynchronous=True)

    def has_arrived() -> bool:
        member.read(1, 0.02)
        found = bench.admin.committed(group, [tp], require_stable=True)
        return found == {tp: CommittedOffset(2, "later")}

    bench.until(has_arrived)


def test_membership_of_a_reader_that_has_not_joined_is_refused(bench: Bench) -> None:
    """The broker would take offsets of a member without a name unchecked."""
    member = bench.member(bench.topic(), bench.name())

    with pytest.raises(Fenced):
        member.group()


def test_commit_while_closing_succeeds(bench: Bench) -> None:
    """A clean release: the next owner need not wait for a session to end."""
    topic, group = bench.topic(), bench.name()
    (tp,) = all_of(topic, 1)

    def release(partitions: Sequence[TopicPartition]) -> None:
        member.commit({tp: CommittedOffset(4, "released") for tp in partitions})

    member = bench.member(topic, group, listener=Listener(release))
    settle(bench, [member], 1)

    member.close()

    assert bench.admin.committed(group, [tp], require_stable=True) == {tp: CommittedOffset(4, "released")}


def test_companion_partitions_come_and_go_with_the_topics_own(bench: Bench) -> None:
    """Subscribed to, partition p of two topics would go to different members."""
    topic, beside, listener = bench.topic(partitions=4), bench.topic(partitions=4), Listener()
    bench.write(beside, b"early")
    group = bench.name()
    first = bench.member(topic, group, client_id="a", listener=listener, companions=[beside])
    settle(bench, [first], 8)
    assert listener.events == [("assigned", all_of(topic, 4))]
    assert bench.nothing_comes(first), "companions start paused, too"

    second = bench.member(topic, group, client_id="b", listener=Listener(), companions=[beside])
    settle(bench, [first, second], 8)

    for member in (first, second):
        held = member.assignment()
        assert {tp.partition for tp in held if tp.topic == topic} == {tp.partition for tp in held if tp.topic == beside}
    (revoked,) = [partitions for name, partitions in listener.events if name == "revoked"]
    assert {tp.topic for tp in revoked} == {topic}
    theirs = sorted({tp.partition for tp in second.assignment()})
    for number in theirs:
        bench.write(beside, b"late %d" % number, partition=number)
    second.resume(second.assignment())
    found = {r.value for r in bench.take(second, 2 + (0 in theirs))}
    assert found - {b"early"} == {b"late %d" % number for number in theirs}


def test_offsets_of_companions_are_committed_like_others(bench: Bench) -> None:
    topic, beside, group = bench.topic(), bench.topic(), bench.name()
    bench.write(beside, b"0", b"1", b"2")
    member = bench.member(topic, group, companions=[beside])
    settle(bench, [member], 2)
    (tp,) = all_of(beside, 1)
    member.commit({tp: CommittedOffset(2)})
    member.close()

    heir = bench.member(topic, group, client_id="b", companions=[beside])

    assert [r.value for r in bench.take(heir, 1)] == [b"2"]
