"""How long a decider takes from its start until it decides, with many finished workflows and no local folder.

    python -m tests.benchmarks.restore BOOTSTRAP [WORKFLOWS] [VERSIONS]      prints one JSON line

The states are written straight to the compacted topics, as a run would have left them: one workflow state and one task
state per workflow, each in as many versions as given (1: compaction has caught up; 2 and 3: it has not).
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import orjson

from broker_engine.config import KafkaSettings, Settings
from broker_engine.decider.definition_tree import from_snapshot
from broker_engine.log.confluent import ConfluentLog
from broker_engine.model.state import TaskState, WorkflowState
from broker_engine.model.status import Phase, TaskStatus, WorkflowStatus
from broker_engine.runtime.namespace import ensure
from broker_engine.runtime.processor import Processor
from broker_engine.topics import Namespace, Topic
from broker_engine.wire.codecs import SNAPSHOT, TASK_STATE, WORKFLOW_STATE
from broker_engine.wire.records import DefinitionSnapshot
from broker_engine.wire.signing import Signer
from tests.benchmarks.product import INPUT, OUTPUT, quiet

PARTITIONS = 8


def write_states(log: ConfluentLog, namespace: Namespace, workflows: int, versions: int) -> None:
    definition = from_snapshot({"name": "one", "tasks": [{"name": "noop", "taskReferenceName": "r"}]})
    writer = log.writer(client_id="restore", linger_ms=5)
    document = orjson.dumps(definition.document)
    for number in range(PARTITIONS):
        snapshot = SNAPSHOT.encode(DefinitionSnapshot(definition.content_hash, "one", 1, document))
        writer.send(namespace.topic(Topic.SNAPSHOTS), number, definition.content_hash.encode(), snapshot)
    workflow_topic, task_topic = namespace.topic(Topic.WORKFLOW_STATE), namespace.topic(Topic.TASK_STATE)
    now, given, made = int(time.time() * 1000), orjson.dumps(INPUT), orjson.dumps(OUTPUT)
    for _ in range(versions):
        for number in range(workflows):
            workflow_id, task_id = f"workflow-{number:032d}", str(uuid.UUID(int=number))
            partition = log.partition_of(workflow_id, PARTITIONS)
            workflow = WorkflowState(
                status=WorkflowStatus.COMPLETED,
                workflow_id=workflow_id,
                incarnation=f"{namespace.name}.commands/{partition}/{number}",
                name="one",
                version=1,
                definition_hash=definition.content_hash,
                input=given,
                output=made,
                created_at_ms=now,
                updated_at_ms=now,
                ended_at_ms=now,
            )
            task = TaskState(
                phase=Phase.SUCCEEDED,
                status=TaskStatus.COMPLETED,
                task_id=task_id,
                workflow_id=workflow_id,
                workflow_name="one",
                run=0,
                reference="r",
                task_type="noop",
                domain="default",
                seq=1,
                input=given,
                output=made,
                first_scheduled_at_ms=now,
                scheduled_at_ms=now,
                updated_at_ms=now,
                ended_at_ms=now,
            )
            writer.send(workflow_topic, partition, workflow_id.encode(), WORKFLOW_STATE.encode(workflow))
            writer.send(task_topic, partition, task_id.encode(), TASK_STATE.encode(task))
            if number % 1_000 == 0:
                writer.poll(0.0)
    writer.flush(60.0)
    writer.close()


def main(bootstrap: str, workflows: int = 200_000, versions: int = 1) -> dict[str, Any]:
    quiet()
    namespace, log = Namespace(f"restore-{uuid.uuid4().hex[:8]}"), ConfluentLog(bootstrap)
    ensure(log, namespace, partitions=PARTITIONS, signer=Signer(None), now_ms=int(time.time() * 1000))
    write_states(log, namespace, workflows, versions)
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(
            kafka=KafkaSettings(bootstrap_servers=bootstrap), namespace=namespace.name, data_dir=Path(folder)
        )
        processor = Processor(log, namespace, settings, partitions=PARTITIONS)
        thread = threading.Thread(target=processor.run)
        started = time.perf_counter()
        thread.start()
        while len(processor.active) < PARTITIONS:
            time.sleep(0.01)
        seconds = time.perf_counter() - started
        processor.stop()
        thread.join()
    admin = log.admin()
    admin.delete([topic for topic in admin.topics() if topic.startswith(f"{namespace.name}.")])
    return {"workflows": workflows, "records": 2 * versions * workflows, "seconds": round(seconds, 1)}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], *(int(argument) for argument in sys.argv[2:4]))))
