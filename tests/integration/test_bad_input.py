"""Bad input on real Kafka: a sentence for whoever sent it, and nothing stops."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from broker_engine.config import KafkaSettings, Settings
from broker_engine.errors import BadRequest, PayloadTooLarge, UnsafeSettings
from broker_engine.log.confluent import ConfluentLog
from broker_engine.log.ports import NewTopic
from broker_engine.model.commands import TerminateWorkflow
from broker_engine.model.limits import MAX_PAYLOAD_BYTES
from broker_engine.runtime.namespace import ensure
from broker_engine.topics import Namespace, Topic, partition_of
from broker_engine.wire.commands import encode_command
from broker_engine.wire.signing import Signer
from broker_engine.worker import task
from tests.support.roles import KEY, RunningEngine, running_engine, until

pytestmark = pytest.mark.kafka

ALONE = {"name": "copy", "tasks": [{"name": "copy", "taskReferenceName": "a", "inputParameters": "${workflow.input}"}]}


@task(name="copy", retryCount=0)
def copy(size: int = 0) -> dict[str, str]:
    return {"pad": "x" * size}


def test_bad_records_and_payloads_stop_nothing(bootstrap: str, namespace: str, tmp_path: Path) -> None:
    with running_engine(bootstrap, namespace, tmp_path, partitions=2) as engine:
        engine.work(copy)
        until(lambda: "copy" in engine.client.task_definitions(), what="the registration")
        _payloads(engine)
        _definitions(engine)
        _unknown_task_type(engine)
        _records(engine)


def _payloads(engine: RunningEngine) -> None:
    """Over the limit: refused before anything is sent, or the end of the task with a sentence."""
    with pytest.raises(PayloadTooLarge, match="pass a reference"):
        engine.client.start_task("copy", {"pad": "x" * MAX_PAYLOAD_BYTES})
    view = engine.client.wait(engine.client.start_task("copy", {"size": MAX_PAYLOAD_BYTES}), 60)
    assert view.status == "FAILED"
    assert "the limit is" in (view.tasks[-1].reason or "")
    view = engine.client.wait(engine.client.start_task("copy", {"size": MAX_PAYLOAD_BYTES - 100}), 60)
    assert view.status == "COMPLETED"


def _definitions(engine: RunningEngine) -> None:
    """Every violation is listed, not the first one."""
    with pytest.raises(BadRequest) as refused:
        engine.client.register_task({"name": "bad", "retryCount": -1, "responseTimeoutSeconds": 0})
    assert {violation.path for violation in refused.value.violations} == {"retryCount", "responseTimeoutSeconds"}


def _unknown_task_type(engine: RunningEngine) -> None:
    """It waits, visibly, until a worker comes."""
    workflow_id = engine.client.start_task("nobody-serves-this")

    def waits() -> bool:
        (found,) = engine.client.get(workflow_id).tasks
        return (found.phase, found.waiting_for) == ("QUEUED", "worker")

    until(waits, what="the task on its queue")
    assert engine.client.get(workflow_id).status == "RUNNING"


def _records(engine: RunningEngine) -> None:
    """Garbage, an unsigned command and one on the wrong partition: dead letters that say why."""
    topic = engine.namespace.topic(Topic.COMMANDS)
    victim = engine.client.start_task("nobody-serves-this", workflow_id="victim")
    own = partition_of(victim, 2)
    writer = engine.log.writer(client_id="test")
    writer.send(topic, own, b"k", b"garbage")
    writer.send(topic, own, victim.encode(), encode_command(TerminateWorkflow(key=victim), Signer(None)))
    stray = TerminateWorkflow(key=victim)
    writer.send(topic, 1 - own, victim.encode(), encode_command(stray, Signer(KEY)))
    assert writer.flush(30) == 0
    writer.close()

    def letters() -> list[str]:
        records = engine.records(Topic.DEAD_LETTERS)
        reasons = [dict(record.headers)["reason"].decode() for record in records]
        return reasons if len(reasons) >= 3 else []

    reasons = until(letters, what="three dead letters")
    assert any("not a framed Avro record" in reason for reason in reasons)
    assert any("not signed" in reason for reason in reasons)
    assert any("does not belong to partition" in reason for reason in reasons)
    assert engine.client.get(victim).status == "RUNNING"
    assert engine.client.wait(engine.client.start_task("copy"), 60).status == "COMPLETED"


@pytest.mark.parametrize(
    ("partitions", "config", "sentence"),
    [
        (3, {}, "has 3 partitions, the namespace was made with 2"),
        (2, {"message.timestamp.type": "CreateTime"}, "message.timestamp.type=CreateTime, it must be LogAppendTime"),
        (2, {"message.timestamp.type": "LogAppendTime", "retention.ms": "60000"}, "it must be at least"),
    ],
)
def test_an_unsafe_topic_is_refused_at_the_start(
    bootstrap: str, namespace: str, partitions: int, config: dict[str, str], sentence: str
) -> None:
    log, names = ConfluentLog(bootstrap), Namespace(namespace)
    admin = log.admin()
    admin.create([NewTopic(name=names.topic(Topic.COMMANDS), partitions=partitions, config=config)])
    admin.close()

    with pytest.raises(UnsafeSettings, match=sentence):
        ensure(log, names, partitions=2, signer=Signer(KEY), now_ms=time.time_ns() // 1_000_000)


def test_settings_hide_the_key(tmp_path: Path) -> None:
    settings = Settings(kafka=KafkaSettings(), namespace_key=KEY, data_dir=tmp_path)  # type: ignore[arg-type]

    assert KEY not in str(settings.shown())
