"""The table of what system workers do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from broker_engine.log.ports import Log
from broker_engine.model.limits import SYSTEM_DOMAIN
from broker_engine.worker.context import TaskContext
from broker_engine.worker.system import calls
from broker_engine.worker.system.publishing import Publishing
from broker_engine.worker.system.scripts import Scripts
from broker_engine.worker.system.transforms import Transforms
from broker_engine.worker.task import TaskWorker, task

#: Of one operator, in one process.
CONCURRENCY = 10


class Resources:
    """What the functions share: processes and producers, made when first used."""

    def __init__(self, log: Log, connect: Callable[[str], Log], client_id: str) -> None:
        self.scripts = Scripts()
        self.transforms = Transforms()
        self.publishing = Publishing(log, connect, client_id=client_id)

    def close(self) -> None:
        self.scripts.close()
        self.transforms.close()
        self.publishing.close()


#: By task type: the function, from the input and what is shared.
SYSTEM_TASKS: Mapping[str, Callable[[Resources], Callable[[Mapping[str, Any], TaskContext], dict[str, Any]]]] = {
    "INLINE": lambda shared: lambda data, _context: shared.scripts.evaluate(data),
    "LAMBDA": lambda shared: lambda data, _context: shared.scripts.evaluate_lambda(data),
    "SWITCH": lambda shared: lambda data, _context: shared.scripts.evaluate(data),
    "DECISION": lambda shared: lambda data, _context: shared.scripts.evaluate(data),
    "DO_WHILE": lambda shared: lambda data, _context: shared.scripts.evaluate(data),
    "JSON_JQ_TRANSFORM": lambda shared: lambda data, _context: shared.transforms(data),
    "HTTP": lambda _: lambda data, _context: calls.call(data),
    "KAFKA_PUBLISH": lambda shared: lambda data, _context: shared.publishing.kafka_publish(data),
    "EVENT": lambda shared: shared.publishing.event,
}


def system_tasks(resources: Resources) -> list[TaskWorker]:
    """Every system task as a worker of domain ``system``."""
    return [_worker(name, make(resources)) for name, make in SYSTEM_TASKS.items()]


def _worker(name: str, function: Callable[[Mapping[str, Any], TaskContext], dict[str, Any]]) -> TaskWorker:
    def run(data: dict[str, Any], context: TaskContext) -> dict[str, Any]:
        return function(data, context)

    return task(name=name, domain=SYSTEM_DOMAIN, concurrency=CONCURRENCY)(run)
