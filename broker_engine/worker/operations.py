"""Operations on whole workflows, as a client calls them: take up what has ended, skip, change variables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from broker_engine.model.commands import (
    AnyCommand,
    RemoveWorkflow,
    RerunWorkflow,
    RestartWorkflow,
    RetryWorkflow,
    SkipTask,
    UpdateVariables,
)

JsonObject = Mapping[str, Any]


class WorkflowOperations(ABC):
    """Methods of ``Client``. Each raises NotFound for an unknown workflow, and Conflict where the workflow's state does
    not allow it (the message says what to do instead)."""

    @abstractmethod
    def ask(self, kind: Callable[..., AnyCommand], key: str, **fields: Any) -> str:
        """Send a command of any kind and return what came of it."""

    def retry(self, workflow_id: str, *, resume_sub_workflows: bool = False) -> None:
        """Try again what failed in a workflow that has ended; what was done stays done.

        Failed sub-workflows are started anew, or with ``resume_sub_workflows`` go on where they failed.
        """
        self.ask(RetryWorkflow, workflow_id, resume_children=resume_sub_workflows)

    def rerun(
        self,
        workflow_id: str,
        task_id: str | None = None,
        *,
        reference: str | None = None,
        task_input: JsonObject | None = None,
        workflow_input: JsonObject | None = None,
        correlation_id: str | None = None,
    ) -> None:
        """Run an ended workflow again from a task on, or (none named) from the beginning; other branches stay as they
        are. With the task's ``reference`` an id of an earlier attempt will do, too.

        Raises:
            BadRequest: its present run has no such task.
        """
        self.ask(
            RerunWorkflow,
            workflow_id,
            task_id=task_id,
            reference=reference,
            task_input=_json(task_input),
            workflow_input=_json(workflow_input),
            correlation_id=correlation_id,
        )

    def restart(self, workflow_id: str, *, use_latest: bool = False) -> None:
        """Run an ended workflow again from the beginning, by its own definition or the newest one."""
        self.ask(RestartWorkflow, workflow_id, use_latest=use_latest)

    def skip_task(
        self, workflow_id: str, reference: str, *, input: JsonObject | None = None, output: JsonObject | None = None
    ) -> None:
        """Jump over a task that has not begun, when it is reached; ``output`` stands in place of its own."""
        self.ask(SkipTask, workflow_id, reference=reference, input=_json(input), output=_json(output))

    def remove(self, workflow_id: str) -> None:
        """Forget an ended workflow now instead of at the end of its retention: its records become tombstones."""
        self.ask(RemoveWorkflow, workflow_id)

    def update_variables(self, workflow_id: str, variables: JsonObject) -> None:
        """Put values into the variables of a running workflow; others stay."""
        self.ask(UpdateVariables, workflow_id, variables=orjson.dumps(dict(variables)))


def _json(value: JsonObject | None) -> bytes | None:
    return None if value is None else orjson.dumps(dict(value))
