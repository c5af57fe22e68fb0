"""Which WorkflowTask of its workflow's definition an attempt belongs to, wherever that stands in the tree.

A step inside a loop is looked up without the iterations in its name (``charge__2__5`` belongs to ``charge``); the steps
of a FORK_JOIN_DYNAMIC, and what a DYNAMIC step turned out to be, are found in the rows of the tasks that brought them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import orjson

from broker_engine.model.state import TaskState

Document = dict[str, Any]

_ITERATION = re.compile(r"__\d+$")


class Snapshot:
    """A workflow's definition as it was at its start, with what its tasks have brought since.

    Args:
        definition: the snapshot as stored; None when there is none (any more): no step is found then.
        rows: attempts of the workflow; only those that brought steps are looked at.
    """

    def __init__(self, definition: bytes | None, rows: Iterable[TaskState] = ()) -> None:
        parsed = {} if definition is None else orjson.loads(definition)
        self.document: Document | None = {k: v for k, v in parsed.items() if v is not None} or None
        self._steps = {step["taskReferenceName"]: step for step in _tree(parsed.get("tasks"))}
        for row in rows:
            self._extend(row)

    def step_of(self, task: TaskState) -> Document | None:
        """The WorkflowTask of an attempt, with the task definition in force as ``taskDefinition``."""
        found = self._find(task.reference)
        step = None if found is None else found[0]
        if step is None or step.get("type") != "DYNAMIC" or task.definition is None:
            return step
        return {**step, "taskDefinition": orjson.loads(task.definition)}

    def _find(self, reference: str) -> tuple[Document, str] | None:
        """A step, and the iterations that its own reference does not have."""
        base = reference
        while (step := self._steps.get(base)) is None:
            shorter = _ITERATION.sub("", base)
            if shorter == base:
                return None
            base = shorter
        return step, reference.removeprefix(base)

    def _extend(self, row: TaskState) -> None:
        if row.definition is None or (found := self._find(row.reference)) is None:
            return
        step, suffix = found
        if step.get("type") == "FORK_JOIN_DYNAMIC":
            for forked in _tree([one["task"] for one in orjson.loads(row.definition)]):
                self._steps[forked["taskReferenceName"] + suffix] = forked


def _tree(listed: Any) -> Iterator[Document]:
    """The steps of a list and of all lists inside them."""
    for step in listed if isinstance(listed, list) else ():
        if isinstance(step, dict) and "taskReferenceName" in step:
            yield step
            for inner in _lists(step):
                yield from _tree(inner)


def _lists(step: Mapping[str, Any]) -> Iterator[Any]:
    yield from (step.get("decisionCases") or {}).values()
    yield step.get("defaultCase")
    yield from step.get("forkTasks") or ()
    yield step.get("loopOver")
