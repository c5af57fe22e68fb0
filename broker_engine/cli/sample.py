"""What `broker-engine dev` runs when it is given no workers: a task and a workflow to try the engine with."""

from __future__ import annotations

from typing import Any

from broker_engine.worker import task


@task(name="greet", ownerEmail="dev@example.com", retryCount=3, retryDelaySeconds=1, responseTimeoutSeconds=30)
def greet(name: str = "world") -> dict[str, str]:
    """Say hello."""
    return {"greeting": f"Hello, {name}!"}


WORKFLOW: dict[str, Any] = {
    "name": "greeting",
    "version": 1,
    "description": "Greets somebody.",
    "ownerEmail": "dev@example.com",
    "tasks": [
        {"name": "greet", "taskReferenceName": "greet", "inputParameters": {"name": "${workflow.input.name}"}},
    ],
    "outputParameters": {"greeting": "${greet.output.greeting}"},
}
