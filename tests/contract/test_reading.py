"""What a reader with assigned partitions sees, and where it stands."""

from __future__ import annotations

import os

import pytest

from broker_engine.errors import LogError, RecordTooLarge
from broker_engine.log.ports import BEGINNING, END, Delivery, Isolation, TopicPartition
from tests.contract.conftest import PATIENCE, Bench


def test_headers_keys_and_absent_values_survive_each_way_of_writing(bench: Bench) -> None:
    topic = bench.topic()
    tp = TopicPartition(topic, 0)
    headers = (("a", b"1"), ("a", b""), ("b", b"\x00\xff"))
    plain = bench.log.writer(client_id="w")
    plain.send(topic, 0, None, b"plain", headers)
    plain.send(topic, 0, b"", None)
    assert plain.flush(PATIENCE) == 0
    plain.close()
    member = bench.sole_member(bench.topic())
    writer = bench.transactions()
    writer.begin()
    writer.send(topic, 0, b"k", b"in a transaction", headers)
    writer.commit({}, member.group())

    records = bench.take(bench.reader(tp, headers=True), 3)

    assert [(r.key, r.value, r.headers) for r in records] == [
        (None, b"plain", headers),
        (b"", None, ()),
        (b"k", b"in a transaction", headers),
    ]
    assert [r.headers for r in bench.take(bench.reader(tp), 3)] == [(), (), ()]


def test_delivery_report_tells_the_log_append_time_that_readers_see(bench: Bench) -> None:
    topic = bench.topic(message_timestamp_type="LogAppendTime")
    tp = TopicPartition(topic, 0)
    writer = bench.log.writer(client_id="w")
    deliveries: list[Delivery] = []
    for number in range(100):
        writer.send(topic, 0, b"k", b"%d" % number, on_delivery=deliveries.append)
    assert writer.flush(PATIENCE) == 0
    writer.close()

    records = bench.take(bench.reader(tp), 100)

    assert [d.error for d in deliveries] == [None] * 100
    assert [(d.offset, d.timestamp_ms) for d in deliveries] == [(r.offset, r.timestamp_ms) for r in records]


def test_record_over_the_topics_limit_is_reported_and_the_others_arrive(bench: Bench) -> None:
    topic = bench.topic(max_message_bytes="20000")
    writer = bench.log.writer(client_id="w")
    deliveries: list[Delivery] = []
    for value in (b"a", os.urandom(30_000), b"b"):
        writer.send(topic, 0, b"k", value, on_delivery=deliveries.append)
        assert writer.flush(PATIENCE) == 0
    writer.close()

    assert [type(d.error) for d in deliveries] == [type(None), RecordTooLarge, type(None)]
    records = bench.take(bench.reader(TopicPartition(topic, 0)), 2)
    assert [r.value for r in records] == [b"a", b"b"]


def test_record_over_the_clients_limit_is_refused_at_once(bench: Bench) -> None:
    writer = bench.log.writer(client_id="w")
    with pytest.raises(RecordTooLarge):
        writer.send(bench.topic(), 0, b"k", bytes(65 * 1024 * 1024))
    writer.close()


def test_position_before_the_first_read_is_where_the_reader_was_assigned(bench: Bench) -> None:
    topic = bench.topic()
    tp = TopicPartition(topic, 0)
    bench.write(topic, b"a", b"b", b"c")

    positions = [bench.reader(tp, at).position(tp) for at in (BEGINNING, 1, END)]

    assert positions == [0, 1, 3]


def test_reader_assigned_to_the_end_sees_only_what_comes_after(bench: Bench) -> None:
    topic = bench.topic()
    tp = TopicPartition(topic, 0)
    bench.write(topic, b"before")
    reader = bench.reader(tp, END)
    bench.write(topic, b"after")

    assert [r.value for r in bench.take(reader, 1)] == [b"after"]


@pytest.mark.parametrize("isolation", list(Isolation))
@pytest.mark.parametrize("ending", ["commit", "abort"])
def test_position_moves_past_markers_and_aborted_records_at_the_tail(
    bench: Bench, isolation: Isolation, ending: str
) -> None:
    """Or a catch-up to the high watermark would wait for ever."""
    topic = bench.topic()
    tp = TopicPartition(topic, 0)
    member = bench.sole_member(bench.topic())
    writer = bench.transactions()
    writer.begin()
    writer.send(topic, 0, b"k", b"v")
    writer.commit({}, member.group())
    if ending == "abort":
        writer.begin()
        writer.send(topic, 0, b"k", b"dropped")
        bench.until(lambda: bench.admin.end_offsets([tp], Isolation.UNCOMMITTED)[tp] == 3)
        writer.abort()
    expected_end = 2 if ending == "commit" else 4
    bench.until(lambda: bench.admin.end_offsets([tp], Isolation.COMMITTED)[tp] == expected_end)

    for start in (BEGINNING, 1, expected_end):
        reader = bench.reader(tp, start, isolation=isolation)
        bench.values(reader, tp)
        assert reader.position(tp) == expected_end


def test_position_of_a_partition_emptied_by_retention_is_its_end(bench: Bench, log_bootstrap: str | None) -> None:
    topic = bench.topic()
    tp = TopicPartition(topic, 0)
    bench.write(topic, b"a", b"b", b"c")
    bench.truncate(topic, 0, 3, log_bootstrap)

    reader = bench.reader(tp)

    assert bench.admin.begin_offsets([tp]) == bench.admin.end_offsets([tp], Isolation.COMMITTED)
    assert bench.values(reader, tp) == []
    assert reader.position(tp) == 3


def test_reader_below_the_log_start_goes_on_with_the_earliest_record(bench: Bench, log_bootstrap: str | None) -> None:
    topic = bench.topic()
    tp = TopicPartition(topic, 0)
    bench.write(topic, b"a", b"b", b"c")
    bench.truncate(topic, 0, 2, log_bootstrap)

    assert [r.value for r in bench.take(bench.reader(tp, 0), 1)] == [b"c"]


def test_read_takes_no_more_than_asked(bench: Bench) -> None:
    topic = bench.topic()
    bench.write(topic, *(b"%d" % n for n in range(10)))
    reader = bench.reader(TopicPartition(topic, 0))

    sizes = []
    while sum(sizes) < 10:
        sizes.append(len(reader.read(3, 1.0)))

    assert max(sizes) <= 3


def test_paused_partition_is_silent_and_loses_nothing(bench: Bench) -> None:
    topic = bench.topic(partitions=2)
    paused, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    reader = bench.log.reader()
    reader.assign({paused: BEGINNING, other: BEGINNING})
    bench.write(topic, b"1", b"2", b"3", partition=0)
    bench.take(reader, 1)

    reader.pause([paused])
    bench.write(topic, b"other", partition=1)
    seen = bench.take(reader, 1)
    assert [r.value for r in seen] == [b"other"]
    assert bench.nothing_comes(reader)
    assert reader.position(paused) == 1

    reader.resume([paused])
    assert [r.value for r in bench.take(reader, 2)] == [b"2", b"3"]
    reader.close()


def test_partition_paused_before_the_first_read_starts_where_it_was_assigned(
    bench: Bench,
) -> None:
    topic = bench.topic()
    tp = TopicPartition(topic, 0)
    bench.write(topic, b"0", b"1", b"2")
    reader = bench.reader(tp, 1)
    reader.pause([tp])
    assert bench.nothing_comes(reader)

    reader.resume([tp])

    assert [r.value for r in bench.take(reader, 2)] == [b"1", b"2"]


def test_seek_moves_backward_and_forward(bench: Bench) -> None:
    topic = bench.topic()
    tp = TopicPartition(topic, 0)
    bench.write(topic, *(b"%d" % n for n in range(5)))
    reader = bench.reader(tp)
    bench.take(reader, 5)

    reader.seek(tp, 1)
    assert reader.position(tp) == 1
    assert [r.value for r in bench.take(reader, 4)] == [b"1", b"2", b"3", b"4"]
    reader.seek(tp, 4)
    assert [r.value for r in bench.take(reader, 1)] == [b"4"]
    reader.seek(tp, BEGINNING)
    assert [r.value for r in bench.take(reader, 1)] == [b"0"]


def test_seek_of_a_paused_partition_counts_when_it_is_resumed(bench: Bench) -> None:
    topic = bench.topic()
    tp = TopicPartition(topic, 0)
    bench.write(topic, *(b"%d" % n for n in range(5)))
    reader = bench.reader(tp)
    bench.take(reader, 3)

    reader.pause([tp])
    reader.seek(tp, 1)
    assert reader.position(tp) == 1
    reader.resume([tp])

    assert [r.offset for r in bench.take(reader, 2)] == [1, 2]


def test_assigning_again_replaces_the_assignment(bench: Bench) -> None:
    topic = bench.topic(partitions=2)
    bench.write(topic, b"zero", partition=0)
    bench.write(topic, b"one", partition=1)
    reader = bench.reader(TopicPartition(topic, 0))
    bench.take(reader, 1)

    reader.assign({TopicPartition(topic, 1): 0})

    assert [r.value for r in bench.take(reader, 1)] == [b"one"]
    assert bench.nothing_comes(reader)


def test_position_is_the_new_start_after_assigning_or_seeking_again(bench: Bench) -> None:
    """Also where nothing is left to read, so that no record tells the client where it is."""
    topic = bench.topic()
    tp = TopicPartition(topic, 0)
    bench.write(topic, b"0", b"1", b"2")
    reader = bench.reader(tp)
    bench.values(reader, tp)
    positions = [reader.position(tp)]

    reader.assign({tp: 1})
    positions.append(reader.position(tp))
    bench.values(reader, tp)
    reader.seek(tp, END)
    positions.append(reader.position(tp))
    reader.seek(tp, 0)
    positions.append(reader.position(tp))
    reader.seek(tp, END)
    assert bench.values(reader, tp) == []
    positions.append(reader.position(tp))

    assert positions == [3, 1, 3, 0, 3]


def test_seeking_a_partition_that_is_not_assigned_is_an_error(bench: Bench) -> None:
    topic = bench.topic(partitions=2)

    with pytest.raises(LogError):
        bench.reader(TopicPartition(topic, 0)).seek(TopicPartition(topic, 1), 0)


@pytest.mark.slow
def test_compaction_keeps_the_last_value_of_each_key_and_tombstones(bench: Bench) -> None:
    topic = bench.topic(
        cleanup_policy="compact",
        segment_ms="500",
        min_cleanable_dirty_ratio="0.01",
        max_compaction_lag_ms="1000",
        delete_retention_ms="3600000",
    )
    tp = TopicPartition(topic, 0)
    bench.write(topic, b"a1", b"a2", key=b"a")
    bench.write(topic, b"b1", None, key=b"b")
    bench.write(topic, b"a3", key=b"a")
    writes = 0

    def is_compacted() -> bool:
        nonlocal writes
        writes += 1
        # The segment being written is never cleaned: a later record closes the one before.
        bench.write(topic, b"%d" % writes, key=b"later")
        bench.compact(topic)
        return bench.values(bench.reader(tp), tp)[:2] == [None, b"a3"]

    bench.until(is_compacted, 60.0)

    reader = bench.reader(tp)
    records = bench.take(reader, 2)
    assert [(r.offset, r.key, r.value) for r in records] == [(3, b"b", None), (4, b"a", b"a3")]
    assert bench.admin.begin_offsets([tp]) == {tp: 0}
