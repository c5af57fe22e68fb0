"""What one neighbour's flood costs the other: two domains on the same partitions, and two tenants' starts.

    python -m tests.benchmarks.neighbours [--kafka HOST:PORT] [--backlog N] [--starts N] [--samples N]

*Domains*: the quiet domain's p50 from submit to done, before and while the loud domain is fed at half of the measured
capacity with a backlog of at least N hand-outs. Each domain has a worker process of its own; the loud one works as
fast as it is fed, so that its backlog stays. *Tenants*: how long a start of one tenant waits for its answer while N
starts of another one are queued. Everything shares the machine with the broker: the last line, JSON, names its load.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import statistics
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.synchronize import Event
from typing import Any

from broker_engine.log.confluent import ConfluentLog
from broker_engine.log.ports import END, Isolation, TopicPartition
from broker_engine.runtime.namespace import ensure
from broker_engine.topics import Namespace, Topic
from broker_engine.wire.signing import Signer
from broker_engine.worker import Client, Worker, task
from tests.benchmarks.product import INPUT, KEY, OUTPUT, _completed, decider, quiet
from tests.benchmarks.run import broker

PARTITIONS = 8
LOUD, QUIET = "loud", "quiet"
#: How many the loud worker runs at a time; with the length of one run this makes its pace.
LOUD_CONCURRENCY = 100
#: Workflows that the capacity is measured with.
CAPACITY_SAMPLE = 3_000


@task(name="noop", ownerEmail="bench@example.com")
def noop(pad: str) -> dict[str, str]:
    return OUTPUT


def worker(bootstrap: str, name: str, domain: str, seconds: float, stop: Event) -> None:
    """A worker process of one domain; each task takes so long."""
    quiet()

    def run(pad: str) -> dict[str, str]:
        time.sleep(seconds)
        return OUTPUT

    slow = task(name="noop", domain=domain, concurrency=LOUD_CONCURRENCY)(run)
    served = slow if seconds else replace(noop, domain=domain)
    running = Worker(ConfluentLog(bootstrap), [served], namespace=Namespace(name), grace_seconds=0.1)

    def watch() -> None:
        stop.wait()
        running.stop()

    threading.Thread(target=watch, daemon=True).start()
    running.run()


def feed(bootstrap: str, name: str, per_second: float, stop: Event) -> None:
    """Start workflows of the loud domain at an even pace."""
    quiet()
    with Client(ConfluentLog(bootstrap), Namespace(name), key=KEY) as client:
        began, sent = time.perf_counter(), 0
        while not stop.wait(0.02):
            due = int((time.perf_counter() - began) * per_second)
            for _ in range(sent, due):
                submit(client, LOUD)
            sent = max(sent, due)


def submit(client: Client, whose: str, workflow_id: str | None = None) -> None:
    client.start_async(
        "one", INPUT, workflow_id=workflow_id, tenant=whose, task_to_domain={"*": whose}, wants_answer=False
    )


class Bench:
    """A namespace with one decider process, and workers that are started and stopped."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap, self.name = bootstrap, f"bench-{uuid.uuid4().hex[:8]}"
        self.namespace, self.log = Namespace(self.name), ConfluentLog(bootstrap)
        ensure(self.log, self.namespace, partitions=PARTITIONS, signer=Signer(KEY), now_ms=int(time.time() * 1000))
        self._roles: list[tuple[Any, Event]] = []
        self._report: Any
        ready, stop = mp.Event(), mp.Event()
        self._report = mp.Queue()  # kept: a process that comes up still looks for it
        self._run(decider, ready, stop, self._report, arguments=(PARTITIONS,), stop=stop)
        assert ready.wait(60), "the decider did not take its partitions over"
        self.client = Client(self.log, self.namespace, key=KEY, timeout=60)
        self.client.register_task(noop.definition or {})
        step = {"name": "noop", "taskReferenceName": "r", "inputParameters": {"pad": "${workflow.input.pad}"}}
        self.client.register_workflow({"name": "one", "tasks": [step]})
        self.reader = self.log.reader()
        topic = self.namespace.topic(Topic.WORKFLOW_STATE)
        self.reader.assign({TopicPartition(topic, number): END for number in range(PARTITIONS)})

    def work(self, domain: str, seconds: float = 0.0) -> Event:
        """A worker process; set the event to stop it."""
        stop = mp.Event()
        self._run(worker, stop, arguments=(domain, seconds), stop=stop)
        return stop

    def feed(self, per_second: float) -> Event:
        stop = mp.Event()
        self._run(feed, stop, arguments=(per_second,), stop=stop)
        return stop

    def _run(self, target: Any, *last: Any, arguments: tuple[Any, ...], stop: Event) -> None:
        role = mp.Process(target=target, args=(self.bootstrap, self.name, *arguments, *last), daemon=True)
        role.start()
        self._roles.append((role, stop))

    def latency_ms(self, samples: int) -> float:
        """p50 of the quiet domain from submit to done, one workflow at a time."""
        found = []
        while self.reader.read(10_000, 0.0):
            pass
        for number in range(samples):
            workflow_id = f"{QUIET}-{uuid.uuid4()}"
            began = time.perf_counter()
            submit(self.client, QUIET, workflow_id)
            self.client.flush()
            while not any(
                record.key == workflow_id.encode() and _completed(record.value, workflow_id)
                for record in self.reader.read(1_000, 1.0)
            ):
                pass
            if number >= samples // 10:  # the first ones warm up
                found.append((time.perf_counter() - began) * 1_000)
        return statistics.median(found)

    def capacity(self) -> float:
        """One-task workflows per second in the quiet domain, all submitted at once."""
        wanted = {f"capacity-{number}".encode() for number in range(CAPACITY_SAMPLE)}
        began = time.perf_counter()
        for key in wanted:
            submit(self.client, QUIET, key.decode())
        self.client.flush()
        while wanted:
            wanted -= {record.key or b"" for record in self.reader.read(1_000, 0.2) if _completed(record.value)}
        return CAPACITY_SAMPLE / (time.perf_counter() - began)

    def backlog(self) -> int:
        """Hand-outs that the loud domain's workers have not read (offsets; a transaction's marker counts, too)."""
        topic, group = self.namespace.schedule(LOUD, "noop"), self.namespace.worker_group(LOUD, "noop")
        admin = self.log.admin()
        try:
            tps = [TopicPartition(topic, number) for number in range(admin.topics().get(topic, 0))]
            ends = admin.end_offsets(tps, Isolation.COMMITTED)
            committed = admin.committed(group, tps, require_stable=False)
            return sum(ends[tp] - (mark.offset if (mark := committed[tp]) else 0) for tp in tps)
        finally:
            admin.close()

    def settled_backlog(self) -> int:
        """The loud domain's backlog once its worker and its feeder are both at it."""
        first = self.backlog()
        deadline = time.monotonic() + 60
        while self.backlog() == first:
            assert time.monotonic() < deadline, "nothing moves in the loud domain"
            time.sleep(0.2)
        time.sleep(5)
        return self.backlog()

    def unread_starts(self, tenant_topic: str) -> int:
        """Starts of a lane that are not decided yet."""
        tps = [TopicPartition(tenant_topic, number) for number in range(PARTITIONS)]
        admin = self.log.admin()
        try:
            ends = admin.end_offsets(tps, Isolation.COMMITTED)
            committed = admin.committed(self.namespace.engine_group, tps, require_stable=False)
            return sum(ends[tp] - (mark.offset if (mark := committed[tp]) else 0) for tp in tps)
        finally:
            admin.close()

    def close(self) -> None:
        for _, stop in self._roles:
            stop.set()
        for role, _ in self._roles:
            role.join(20)
            if role.is_alive():
                role.kill()
        self.client.close()
        self.reader.close()
        admin = self.log.admin()
        admin.delete([topic for topic in admin.topics() if topic.startswith(f"{self.name}.")])
        admin.close()


@contextmanager
def bench(bootstrap: str) -> Iterator[Bench]:
    running = Bench(bootstrap)
    try:
        yield running
    finally:
        running.close()


def domains(bootstrap: str, backlog: int, samples: int) -> dict[str, Any]:
    """The quiet domain before and beside a flood of the loud one."""
    with bench(bootstrap) as running:
        running.work(QUIET)
        running.latency_ms(20)  # the worker has joined its queue
        capacity = running.capacity()
        before_ms = running.latency_ms(samples)
        for _ in range(backlog * 12 // 10):
            submit(running.client, LOUD)
        running.client.flush()
        while running.backlog() < backlog * 12 // 10:
            time.sleep(0.5)
        running.work(LOUD, LOUD_CONCURRENCY / (capacity / 2))
        running.feed(capacity / 2)
        begins_with = running.settled_backlog()
        during_ms = running.latency_ms(samples)
        ends_with = running.backlog()
    return {
        "capacity_per_s": round(capacity),
        "loud_per_s": round(capacity / 2),
        "backlog": [begins_with, ends_with],
        "quiet_p50_before_ms": round(before_ms, 1),
        "quiet_p50_during_ms": round(during_ms, 1),
        "rise_percent": round((during_ms / before_ms - 1) * 100),
    }


def tenants(bootstrap: str, starts: int, samples: int) -> dict[str, Any]:
    """Starts of the quiet tenant behind a queue of the loud one's."""
    with bench(bootstrap) as running:
        for _ in range(starts):
            submit(running.client, LOUD)
        running.client.flush(120)
        lane = next(topic for topic in running.namespace.start_lanes() if running.unread_starts(topic))
        queued = running.unread_starts(lane)
        waits = []
        for _ in range(samples):
            began = time.perf_counter()
            running.client.start("one", INPUT, tenant=QUIET)
            waits.append(time.perf_counter() - began)
            time.sleep(0.2)
        left = running.unread_starts(lane)
    return {
        "queued_of_the_other": [queued, left],
        "start_waits_p50_s": round(statistics.median(waits), 2),
        "start_waits_max_s": round(max(waits), 2),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kafka", metavar="HOST:PORT", help="a running broker (default: an own one)")
    parser.add_argument("--backlog", type=int, default=10_000, help="of the loud domain (default: 10000)")
    parser.add_argument("--starts", type=int, default=100_000, help="of the loud tenant (default: 100000)")
    parser.add_argument("--samples", type=int, default=200, help="workflows per p50 (default: 200)")
    parser.add_argument("--only", choices=("domains", "tenants"), help="one of the two")
    options = parser.parse_args(arguments)
    quiet()
    result: dict[str, Any] = {}
    with broker(options.kafka) as bootstrap:
        if options.only != "tenants":
            result["domains"] = domains(bootstrap, options.backlog, options.samples)
            print(f"domains {json.dumps(result['domains'])}", flush=True)
        if options.only != "domains":
            result["tenants"] = tenants(bootstrap, options.starts, 20)
            print(f"tenants {json.dumps(result['tenants'])}", flush=True)
    result["load"] = [round(load, 1) for load in os.getloadavg()]
    print(json.dumps(result))


if __name__ == "__main__":
    mp.set_start_method("spawn")
    main()
