"""The product under the floor's load: one-task workflows, one decider and one worker process, defaults and a key.

    python -m tests.benchmarks.product BOOTSTRAP [TASKS] [PARTITIONS]      prints one JSON line

Submitted as fast as the client can (no answers asked for, as on the floor), done when a read-committed reader has seen
the workflow's COMPLETED record. Latency is measured before, one workflow at a time.
"""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import statistics
import sys
import tempfile
import threading
import time
import uuid
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from broker_engine.config import KafkaSettings, Settings
from broker_engine.log.confluent import ConfluentLog
from broker_engine.log.ports import END, TopicPartition
from broker_engine.model.status import WorkflowStatus
from broker_engine.runtime.namespace import ensure
from broker_engine.runtime.processor import Processor
from broker_engine.topics import Namespace, Topic
from broker_engine.wire.codecs import WORKFLOW_STATE
from broker_engine.wire.signing import Signer
from broker_engine.worker import Client, Worker, task

KEY = "benchmark"
OUTPUT = {"result": "y" * 80}
INPUT = {"pad": "x" * 180}


@task(name="noop", ownerEmail="bench@example.com")
def noop(pad: str) -> dict[str, str]:
    return OUTPUT


def quiet() -> None:
    import logging

    import structlog

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))


def decider(bootstrap: str, name: str, partitions: int, ready: Event, stop: Event, report: Any) -> None:
    quiet()
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(
            kafka=KafkaSettings(bootstrap_servers=bootstrap), namespace=name, namespace_key=KEY, data_dir=Path(folder)
        )
        processor = Processor(ConfluentLog(bootstrap), Namespace(name), settings, partitions=partitions)

        def watch() -> None:
            while len(processor.active) < partitions:
                time.sleep(0.02)
            ready.set()
            stop.wait()
            processor.stop()

        threading.Thread(target=watch, daemon=True).start()
        processor.run()
        report.put(
            {
                "decider_cpu_s": round(time.process_time(), 2),
                "transactions": processor.transactions,
                "records": processor.records,
            }
        )


def worker(bootstrap: str, name: str, stop: Event, report: Any) -> None:
    quiet()
    log = ConfluentLog(bootstrap)
    running = Worker(log, [noop], namespace=Namespace(name))

    def watch() -> None:
        stop.wait()
        running.stop()

    threading.Thread(target=watch, daemon=True).start()
    running.run()
    report.put({"worker_cpu_s": round(time.process_time(), 2)})


def main(bootstrap: str, tasks: int = 20_000, partitions: int = 8, latency_samples: int = 200) -> dict[str, Any]:
    quiet()
    name = f"bench-{uuid.uuid4().hex[:8]}"
    namespace, log = Namespace(name), ConfluentLog(bootstrap)
    ensure(log, namespace, partitions=partitions, signer=Signer(KEY), now_ms=int(time.time() * 1000))
    ready, stop, report = mp.Event(), mp.Event(), mp.Queue()
    roles = [
        mp.Process(target=decider, args=(bootstrap, name, partitions, ready, stop, report)),
        mp.Process(target=worker, args=(bootstrap, name, stop, report)),
    ]
    roles[0].start()
    assert ready.wait(60), "the decider did not take its partitions over"
    client = Client(log, namespace, key=KEY)
    client.register_task(noop.definition or {})
    client.register_workflow(
        {
            "name": "one",
            "tasks": [{"name": "noop", "taskReferenceName": "r", "inputParameters": {"pad": "${workflow.input.pad}"}}],
        }
    )
    roles[1].start()
    client.wait(client.start("one", INPUT), 60)  # the worker has joined its queue

    reader = log.reader()
    topic = namespace.topic(Topic.WORKFLOW_STATE)
    reader.assign({TopicPartition(topic, number): END for number in range(partitions)})
    latencies = []
    for number in range(latency_samples + 20):
        started = time.perf_counter()
        workflow_id = f"l{number}"
        client.start_async("one", INPUT, workflow_id=workflow_id, wants_answer=False)
        client.flush()
        while not any(_completed(record.value, workflow_id) for record in reader.read(100, 1.0)):
            pass
        latencies.append((time.perf_counter() - started) * 1000)
    latencies = sorted(latencies[20:])

    before = [cpu_seconds(role.pid) for role in roles]
    started = time.perf_counter()
    for number in range(tasks):
        client.start_async("one", INPUT, workflow_id=f"w{number}", wants_answer=False)
    client.flush()
    done = 0
    while done < tasks:
        done += sum(_completed(record.value) for record in reader.read(1_000, 0.1))
    seconds = time.perf_counter() - started
    decider_us, worker_us = (
        round((cpu_seconds(role.pid) - earlier) / tasks * 1e6) for role, earlier in zip(roles, before, strict=True)
    )
    stop.set()
    result: dict[str, Any] = {
        "tasks_per_s": round(tasks / seconds),
        "p50_ms": round(statistics.median(latencies), 1),
        "p95_ms": round(latencies[int(len(latencies) * 0.95)], 1),
        "p99_ms": round(latencies[int(len(latencies) * 0.99)], 1),
        "tasks": tasks,
        "partitions": partitions,
        "decider_us_per_workflow": decider_us,
        "worker_us_per_workflow": worker_us,
    }
    for _ in roles:
        result.update(report.get(timeout=60))
    for role in roles:
        role.join(30)
    workflows = tasks + latency_samples + 21
    result["records_per_workflow"] = round(result["records"] / workflows, 2)
    client.close()
    admin = log.admin()
    admin.delete([topic for topic in admin.topics() if topic.startswith(f"{name}.")])
    return result


def cpu_seconds(pid: int | None) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _completed(value: bytes | None, workflow_id: str | None = None) -> bool:
    state = WORKFLOW_STATE.decode(value)
    return state.status is WorkflowStatus.COMPLETED and workflow_id in (None, state.workflow_id)


if __name__ == "__main__":
    mp.set_start_method("spawn")
    print(json.dumps(main(sys.argv[1], *(int(a) for a in sys.argv[2:4]))))
