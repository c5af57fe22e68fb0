"""A task's state without the engine: any Kafka consumer and any Avro library can read it."""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any

import fastavro
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from broker_engine.wire.schemas import schema_folder


def read_task(bootstrap: str, topic: str, task_id: str) -> dict[str, Any]:
    """The last record of a task on `<ns>.task-state`: five bytes of frame, then Avro by `schemas/task-state`."""
    schema = fastavro.parse_schema(json.loads((schema_folder() / "task-state" / "v1.avsc").read_text()))
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "peek",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
    state: Any = {}
    unread = len(partitions)
    while unread and (message := consumer.poll(10)) is not None:
        error, value = message.error(), message.value()
        if error is not None:
            unread -= error.code() == KafkaError._PARTITION_EOF
        elif message.key() == task_id.encode() and value is not None:
            state = fastavro.schemaless_reader(BytesIO(value[5:]), schema, None)
    consumer.close()
    return dict(state)
