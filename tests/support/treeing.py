"""Tasks of the tree on real Kafka; each tells a file that it ran."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from broker_engine.worker import TaskContext, task


@task(name="tree-work", retryCount=2, retryDelaySeconds=0, responseTimeoutSeconds=10)
def work(context: TaskContext, n: Any = None) -> dict[str, Any]:
    with (Path(os.environ["TREE_FOLDER"]) / "ran.log").open("a") as file:
        file.write(f"{context.reference}\n")
    return {"n": n}
