"""Questions to the cluster, and making topics."""

from __future__ import annotations

import pytest

from broker_engine.errors import LogError, UnknownTopic, Unreachable
from broker_engine.log.memory.partitions import BROKER_DEFAULTS
from broker_engine.log.ports import Isolation, Log, NewTopic, TopicPartition
from tests.contract.conftest import Bench


def test_created_topic_is_there_at_once_with_its_configuration(bench: Bench) -> None:
    name = bench.topic(partitions=3, retention_ms="86400001")

    assert bench.admin.topics()[name] == 3
    config = bench.admin.configs([name])[name]
    assert config["retention.ms"] == "86400001"
    assert config.items() >= {**BROKER_DEFAULTS, "retention.ms": "86400001"}.items()


def test_creating_an_existing_topic_leaves_it_as_it_is(bench: Bench) -> None:
    name = bench.topic(partitions=2)
    other = bench.name()

    bench.admin.create(
        [NewTopic(name=name, partitions=5), NewTopic(name=other, partitions=1)],
    )

    topics = bench.admin.topics()
    assert (topics[name], topics[other]) == (2, 1)


def test_topics_that_differ_only_by_dot_and_underscore_are_refused(bench: Bench) -> None:
    base = bench.name()
    bench.admin.create([NewTopic(name=f"{base}.a", partitions=1)])

    with pytest.raises(LogError):
        bench.admin.create([NewTopic(name=f"{base}_a", partitions=1)])


def test_deleted_topic_is_gone_and_deleting_again_is_fine(bench: Bench) -> None:
    name = bench.topic()

    bench.admin.delete([name])
    bench.admin.delete([name, bench.name()])

    assert name not in bench.admin.topics()


def test_offsets_and_configuration_of_an_unknown_topic_are_an_error(bench: Bench) -> None:
    name = bench.name()
    tp = TopicPartition(name, 0)

    with pytest.raises(UnknownTopic):
        bench.admin.end_offsets([tp], Isolation.COMMITTED)
    with pytest.raises(UnknownTopic):
        bench.admin.begin_offsets([tp])
    with pytest.raises(UnknownTopic):
        bench.admin.configs([name])


def test_unknown_group_has_no_members_and_no_offsets(bench: Bench) -> None:
    tp = TopicPartition(bench.topic(), 0)

    assert bench.admin.members(bench.name()) == []
    assert bench.admin.committed(bench.name(), [tp], require_stable=True) == {tp: None}


def test_questions_about_nothing_are_answered(bench: Bench) -> None:
    assert bench.admin.end_offsets([], Isolation.COMMITTED) == {}
    assert bench.admin.begin_offsets([]) == {}
    assert bench.admin.configs([]) == {}
    assert bench.admin.committed(bench.name(), [], require_stable=True) == {}
    bench.admin.create([])
    bench.admin.delete([])


@pytest.mark.slow
def test_absent_broker_is_said_so(unreachable: Log) -> None:
    with pytest.raises(Unreachable):
        unreachable.admin().end_offsets([TopicPartition("t", 0)], Isolation.COMMITTED)
    with pytest.raises(Unreachable):
        unreachable.transactional_writer("id").init(timeout=1.0)


def test_absent_broker_leaves_readers_empty_and_writers_waiting(unreachable: Log) -> None:
    reader = unreachable.reader()
    reader.assign({TopicPartition("t", 0): 0})
    writer = unreachable.writer(client_id="w")
    writer.send("t", 0, b"k", b"v")

    assert reader.read(10, 0.2) == []
    assert writer.flush(0.2) == 1
