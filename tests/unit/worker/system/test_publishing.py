"""Records that workflows publish."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest

from broker_engine.log.memory import MemoryLog
from broker_engine.log.ports import BEGINNING, NewTopic, Record, TopicPartition
from broker_engine.testing import FakeClock
from broker_engine.worker import TaskFailed, TaskFailedForGood
from broker_engine.worker.system.publishing import Publishing
from tests.unit.worker.test_task import CONTEXT

TOPIC = "orders"


@pytest.fixture
def log() -> MemoryLog:
    log = MemoryLog(FakeClock())
    log.admin().create([NewTopic(name=TOPIC, partitions=4)])
    return log


@pytest.fixture
def publishing(log: MemoryLog) -> Publishing:
    others = {"other:9092": MemoryLog(FakeClock())}
    return Publishing(log, others.__getitem__, client_id="test")


def records(log: MemoryLog) -> list[Record]:
    reader = log.reader(headers=True)
    reader.assign({TopicPartition(TOPIC, number): BEGINNING for number in range(4)})
    return reader.read(100, 0.1)


def request(**fields: Any) -> dict[str, Any]:
    return {"kafka_request": {"topic": TOPIC, "value": {"n": 1}, **fields}}


def test_a_record_is_written_where_the_output_says(log: MemoryLog, publishing: Publishing) -> None:
    output = publishing.kafka_publish(request(key="order-1", headers={"source": "shop"}))

    (record,) = records(log)
    assert (record.key, orjson.loads(record.value or b""), record.headers) == (
        b"order-1",
        {"n": 1},
        (("source", b"shop"),),
    )
    place = (record.topic, record.partition, record.offset)
    assert (output["topic"], output["partition"], output["offset"]) == place
    assert record.partition == log.partition_of("order-1", 4), "where Java's client would put it"


@pytest.mark.parametrize(
    ("serializer", "key", "expected"),
    [
        ("org.apache.kafka.common.serialization.StringSerializer", 7, b"7"),
        ("org.apache.kafka.common.serialization.LongSerializer", "7", b"\0\0\0\0\0\0\0\7"),
        ("org.apache.kafka.common.serialization.IntegerSerializer", -2, b"\xff\xff\xff\xfe"),
        ("Long", 1, b"\0\0\0\0\0\0\0\1"),
    ],
)
def test_keys_are_serialized_as_java_does(
    log: MemoryLog, publishing: Publishing, serializer: str, key: object, expected: bytes
) -> None:
    publishing.kafka_publish(request(key=key, keySerializer=serializer))

    assert records(log)[0].key == expected


def test_records_without_a_key_go_round_the_partitions(log: MemoryLog, publishing: Publishing) -> None:
    partitions = {publishing.kafka_publish(request())["partition"] for _ in range(4)}

    assert partitions == {0, 1, 2, 3}


def test_an_event_carries_the_input_and_the_workflow(log: MemoryLog, publishing: Publishing) -> None:
    context = replace(CONTEXT)

    output = publishing.event({"sink": f"kafka:{TOPIC}", "total": 3}, context)

    (record,) = records(log)
    assert record.key == context.workflow_id.encode()
    assert orjson.loads(record.value or b"") == {"total": 3, "workflowInstanceId": context.workflow_id}
    assert output["event_produced"] == f"kafka:{TOPIC}"


@pytest.mark.parametrize("sink", [None, "kafka:", "sqs:orders", 5])
def test_a_sink_that_is_not_known_is_refused(publishing: Publishing, sink: object) -> None:
    with pytest.raises(TaskFailedForGood, match="give kafka:<topic>") as failed:
        publishing.event({"sink": sink}, replace(CONTEXT))

    assert failed.value.code == "UNKNOWN_SINK"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"topic": None}, "kafka_request.topic is missing"),
        ({"value": None}, "kafka_request.value is missing"),
        ({"headers": "x"}, "kafka_request.headers must be an object"),
        ({"key": 1, "keySerializer": "XmlSerializer"}, "keySerializer XmlSerializer is not one of"),
        ({"key": "x", "keySerializer": "LongSerializer"}, "key 'x' does not fit LongSerializer"),
        ({"key": 2**40, "keySerializer": "IntegerSerializer"}, "does not fit IntegerSerializer"),
        ({"requestTimeoutMs": 0}, "requestTimeoutMs must be 1 to"),
    ],
)
def test_what_describes_no_record_is_never_tried_again(
    publishing: Publishing, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(TaskFailedForGood) as failed:
        publishing.kafka_publish(request(**fields))

    assert failed.value.code == "KAFKA_REQUEST"
    assert message in str(failed.value)


def test_a_missing_topic_is_a_failure_that_may_pass(publishing: Publishing) -> None:
    with pytest.raises(TaskFailed, match="there is no topic absent on this cluster") as failed:
        publishing.kafka_publish(request(topic="absent"))

    assert not isinstance(failed.value, TaskFailedForGood)
    assert failed.value.code == "UNKNOWN_TOPIC"


def test_another_cluster_is_used_where_one_is_named(publishing: Publishing) -> None:
    with pytest.raises(TaskFailed, match="there is no topic orders on this cluster"):
        publishing.kafka_publish(request(bootStrapServers="other:9092"))
