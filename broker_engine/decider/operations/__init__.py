"""Operations of people on whole workflows: try again, run again, skip, change variables.

An ended workflow that is taken up goes on under its id in its next run (D26); every task that runs again has a new id
(D24) and new clocks (D8). ``OPERATIONS`` is the list; to add one is a command, a function and a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from broker_engine.decider.draft import Draft
from broker_engine.decider.operations import changes, reruns, restarts, retries
from broker_engine.model.commands import (
    ChildRunsAgain,
    Command,
    Operation,
    RerunWorkflow,
    RestartWorkflow,
    RetryWorkflow,
    SkipTask,
    UpdateVariables,
)

#: By command: the function, which returns why nothing was changed.
OPERATIONS: Mapping[type[Command], Callable[[Draft, Any], str | None]] = {
    RetryWorkflow: retries.retry,
    ChildRunsAgain: retries.child_runs_again,
    RerunWorkflow: reruns.rerun,
    RestartWorkflow: restarts.restart,
    SkipTask: changes.skip_task,
    UpdateVariables: changes.update_variables,
}


def carry_out(draft: Draft, command: Operation) -> str | None:
    """Carry an operation out; returns why nothing was changed."""
    return OPERATIONS[type(command)](draft, command)
