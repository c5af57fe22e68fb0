"""The operators of a workflow definition: one file per kind, one row in ``TASK_TYPES`` per operator.

A type that is not in the table is the type of a task that workers of the user's run.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker_engine.decider.task_types import dynamic, forks, loops, plain, scripts, switch, waits, workflows
from broker_engine.decider.task_types.base import Begun, How, ListEnd, Seen, TaskType

__all__ = ["SIMPLE", "TASK_TYPES", "Begun", "How", "ListEnd", "Seen", "TaskType"]

#: The type of a step that workers of the user's run.
SIMPLE = "SIMPLE"

TASK_TYPES: Mapping[str, TaskType] = {
    "SWITCH": switch.SWITCH,
    "DECISION": switch.DECISION,
    "FORK_JOIN": forks.FORK_JOIN,
    "FORK_JOIN_DYNAMIC": dynamic.FORK_JOIN_DYNAMIC,
    "JOIN": forks.JOIN,
    "DO_WHILE": loops.DO_WHILE,
    "DYNAMIC": dynamic.DYNAMIC,
    "EXCLUSIVE_JOIN": forks.EXCLUSIVE_JOIN,
    "SET_VARIABLE": plain.SET_VARIABLE,
    "TERMINATE": plain.TERMINATE,
    "NOOP": plain.NOOP,
    "WAIT": waits.WAIT,
    "HUMAN": waits.HUMAN,
    "PULL_WORKFLOW_MESSAGES": waits.PULL_WORKFLOW_MESSAGES,
    "INLINE": scripts.INLINE,
    "LAMBDA": scripts.LAMBDA,
    "JSON_JQ_TRANSFORM": scripts.JSON_JQ_TRANSFORM,
    "HTTP": scripts.HTTP,
    "KAFKA_PUBLISH": scripts.KAFKA_PUBLISH,
    "EVENT": scripts.EVENT,
    "SUB_WORKFLOW": workflows.SUB_WORKFLOW,
    "START_WORKFLOW": workflows.START_WORKFLOW,
}


def markdown_table() -> str:
    """The operators, for the docs."""
    rows = [f"| `{name}` | {kind.about} |" for name, kind in TASK_TYPES.items()]
    return "\n".join(["| operator | what it does |", "| --- | --- |", *rows])
