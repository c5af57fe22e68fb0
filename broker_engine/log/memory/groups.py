"""Consumer groups of the log in memory: members, a balanced assignment, committed offsets.

Cooperative, as the real one: a partition that moves is first given back by its owner, when that owner
reads, and only then taken by its new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from broker_engine.errors import Fenced, Retriable, TransactionAborted
from broker_engine.log.memory.partitions import Transaction
from broker_engine.log.ports import CommittedOffset, TopicPartition


@dataclass(frozen=True, slots=True)
class Membership:
    """Proof of membership at one moment (ports.Group)."""

    group: str
    member: str
    generation: int


@dataclass(eq=False)
class GroupMember:
    """A member as the coordinator knows it."""

    name: str
    client_id: str
    topics: tuple[str, ...]


@dataclass(eq=False)
class GroupState:
    """What a group's coordinator keeps."""

    name: str
    members: dict[str, GroupMember] = field(default_factory=dict)
    generation: int = 0
    #: Who should hold each partition, and who does.
    target: dict[TopicPartition, str] = field(default_factory=dict)
    owner: dict[TopicPartition, str] = field(default_factory=dict)
    offsets: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    pending: dict[Transaction, dict[TopicPartition, CommittedOffset]] = field(default_factory=dict)
    #: Fault: with several subscribed topics, partition p of each goes to a different member.
    is_split: bool = False
    _joined: int = 0

    def join(self, client_id: str, topics: tuple[str, ...], counts: Mapping[str, int]) -> str:
        self._joined += 1
        member = f"{client_id}-{self._joined}"
        self.members[member] = GroupMember(member, client_id, topics)
        self.rebalance(counts)
        return member

    def leave(self, member: str, counts: Mapping[str, int]) -> None:
        """The member is gone: it left, or its session expired."""
        if self.members.pop(member, None) is not None:
            self.owner = {tp: name for tp, name in self.owner.items() if name != member}
            self.rebalance(counts)

    def rebalance(self, counts: Mapping[str, int]) -> None:
        """Share the partitions out anew: balanced, keeping what can be kept, members in joining order."""
        self.generation += 1
        self.target = {}
        subscribed = dict.fromkeys(topic for m in self.members.values() for topic in m.topics)
        for turn, topic in enumerate(subscribed):
            able = [m.name for m in self.members.values() if topic in m.topics]
            if self.is_split and len(subscribed) > 1:
                shift = turn
                share = {TopicPartition(topic, p): able[(p + shift) % len(able)] for p in range(counts.get(topic, 0))}
            else:
                share = self._sticky_share(topic, counts.get(topic, 0), able)
            self.target |= share

    def _sticky_share(self, topic: str, count: int, able: Sequence[str]) -> dict[TopicPartition, str]:
        partitions = [TopicPartition(topic, p) for p in range(count)]
        quota = {m: count // len(able) + (i < count % len(able)) for i, m in enumerate(able)}
        share: dict[TopicPartition, str] = {}
        for tp in partitions:
            holder = self.owner.get(tp, "")
            if quota.get(holder, 0) > 0:
                share[tp] = holder
                quota[holder] -= 1
        for tp in partitions:
            if tp not in share:
                share[tp] = max(able, key=lambda m: quota[m])
                quota[share[tp]] -= 1
        return share

    def to_give_back(self, member: str) -> list[TopicPartition]:
        return sorted(tp for tp, name in self.owner.items() if name == member and self.target.get(tp) != name)

    def give_back(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            del self.owner[tp]

    def take(self, member: str) -> list[TopicPartition]:
        """Give the member the partitions meant for it that nobody holds any more."""
        free = [tp for tp, name in self.target.items() if name == member and tp not in self.owner]
        self.owner |= dict.fromkeys(free, member)
        return sorted(free)

    def owned(self, member: str) -> list[TopicPartition]:
        return sorted(tp for tp, name in self.owner.items() if name == member)

    def check(self, membership: Membership) -> None:
        """As the coordinator checks offsets: an unknown member is fenced, an old generation repeats."""
        if membership.member not in self.members:
            raise Fenced("The member is unknown to its group (UNKNOWN_MEMBER_ID).")
        if membership.generation != self.generation:
            raise TransactionAborted("The group has rebalanced since (ILLEGAL_GENERATION).")

    def stable(self, tp: TopicPartition) -> CommittedOffset | None:
        """The committed offset, unless a transaction may still change it."""
        if any(tp in offsets for offsets in self.pending.values()):
            raise Retriable(f"{tp} has pending offsets (UNSTABLE_OFFSET_COMMIT).")
        return self.offsets.get(tp)
