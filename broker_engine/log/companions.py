"""Companion topics of a group's reader: partition p of each comes and goes with partition p of the subscribed topic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from broker_engine.log.ports import TopicPartition


def together(partitions: Iterable[TopicPartition], companions: Sequence[str]) -> list[TopicPartition]:
    """Partitions of the topic, each with its companions."""
    return [TopicPartition(topic, tp.partition) for tp in partitions for topic in (tp.topic, *companions)]


def own(partitions: Iterable[TopicPartition], companions: Sequence[str]) -> list[TopicPartition]:
    """The topic's own among partitions with companions, in order."""
    return [tp for tp in sorted(partitions) if tp.topic not in companions]
