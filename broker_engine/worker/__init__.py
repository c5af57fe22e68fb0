"""The SDK: write workers with ``@task`` and ``Worker``, steer the engine with ``Client``."""

from broker_engine.worker.client import Client
from broker_engine.worker.connect import connect
from broker_engine.worker.context import (
    InProgress,
    Superseded,
    TaskCanceled,
    TaskContext,
    TaskFailed,
    TaskFailedForGood,
    TaskPaused,
)
from broker_engine.worker.steps import StepRetry
from broker_engine.worker.task import TaskWorker, task
from broker_engine.worker.views import WorkflowView
from broker_engine.worker.worker import Worker

__all__ = [
    "Client",
    "InProgress",
    "StepRetry",
    "Superseded",
    "TaskCanceled",
    "TaskContext",
    "TaskFailed",
    "TaskFailedForGood",
    "TaskPaused",
    "TaskWorker",
    "Worker",
    "WorkflowView",
    "connect",
    "task",
]
