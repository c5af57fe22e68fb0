"""Workflows as trees, run with values: definitions as users write them, and workers that are functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import orjson

from broker_engine.decider import rounds
from broker_engine.decider.definition_tree import from_snapshot, parse_workflow_def
from broker_engine.model.commands import StartWorkflow
from broker_engine.model.decision import Send
from broker_engine.model.definitions import Dynamic
from broker_engine.model.state import Execution, TaskState, present
from broker_engine.model.status import Phase, WaitingFor
from broker_engine.runtime.partition import assembled
from broker_engine.wire.codecs import TASK_STATE
from tests.builders import Definitions, Story, asked

Json = dict[str, Any]
#: What a worker does with the input of a task: an output, or an exception.
Work = Callable[[Json], Any]


def simple(reference: str, **fields: Any) -> Json:
    """A step of a task type of its own name, whose definition never retries."""
    quick = {"name": reference, "retryCount": 0, "ownerEmail": "a@example.com"}
    return {"name": reference, "taskReferenceName": reference, "type": "SIMPLE", "taskDefinition": quick, **fields}


def operator(type_: str, reference: str, **fields: Any) -> Json:
    return {"name": reference, "taskReferenceName": reference, "type": type_, **fields}


def switch(reference: str, value: Any, cases: Mapping[str, list[Json]], default: list[Json] | None = None) -> Json:
    return operator(
        "SWITCH",
        reference,
        evaluatorType="value-param",
        expression="value",
        inputParameters={"value": value},
        decisionCases=dict(cases),
        defaultCase=default or [],
    )


def fork(reference: str, *branches: list[Json], join_on: list[str] | None = None, **join: Any) -> list[Json]:
    """A FORK_JOIN and its JOIN, which waits for the last task of each branch."""
    last = [branch[-1]["taskReferenceName"] for branch in branches]
    return [
        operator("FORK_JOIN", reference, forkTasks=list(branches)),
        operator("JOIN", f"{reference}_join", joinOn=join_on if join_on is not None else last, **join),
    ]


def loop(reference: str, body: list[Json], condition: str = "again", **fields: Any) -> Json:
    return operator("DO_WHILE", reference, loopOver=body, loopCondition=condition, **fields)


def each(reference: str, items: Any, body: list[Json], **fields: Any) -> Json:
    return operator("DO_WHILE", reference, loopOver=body, items=items, **fields)


def violations(*tasks: Json, **fields: Any) -> dict[str, str]:
    parsed = parse_workflow_def({"name": "tree", "tasks": list(tasks), **fields})
    return {violation.path: violation.message for violation in parsed.violations}


class Tree(Story):
    """A story about a workflow that is given as its document."""

    def __init__(self, *tasks: Json, **fields: Any) -> None:
        super().__init__()
        self.definition = from_snapshot({"name": "tree", "tasks": list(tasks), **fields})
        self.definitions = Definitions.of(self.definition)

    def begin(self, **data: Any) -> Tree:
        self.start(input=orjson.dumps(data))
        return self

    def row(self, reference: str) -> TaskState:
        return self.execution_now.tasks.get(reference) or self.left[reference]

    @property
    def rows(self) -> dict[str, TaskState]:
        """The latest attempt of every reference, those of rounds that are over included."""
        rows = {task.reference: task for task in self.left.values()}
        return rows | dict(self.execution_now.tasks)

    @property
    def starts(self) -> list[StartWorkflow]:
        """The workflows that the last decision starts."""
        return [out.command for out in self.now(Send) if isinstance(out.command, StartWorkflow)]

    def restored(self) -> Execution:
        """The execution from what stands on the topics: its definition, and the last record of every attempt."""
        now = self.execution_now
        execution = Execution(workflow=now.workflow, tasks=type(now.tasks)(), definition=self.definition)
        for row in present(now.workflow, self.stored):
            execution = execution.with_task(TASK_STATE.decode(TASK_STATE.encode(row)))
        return rounds.rebuilt(execution)[0]

    def output(self, reference: str) -> Any:
        return orjson.loads(self.row(reference).output or b"null")

    def input(self, reference: str) -> Any:
        return orjson.loads(self.row(reference).input)

    @property
    def statuses(self) -> dict[str, str]:
        rows = sorted(self.rows.values(), key=lambda task: task.seq)
        return {task.reference: task.status.value for task in rows}

    @property
    def waiting(self) -> list[str]:
        """What workers may take now, in the order in which it appeared."""
        assert self.execution is not None
        rows = self.execution.live_tasks()
        return [t.reference for t in rows if t.phase is Phase.QUEUED and t.waiting_for is WaitingFor.WORKER]

    @property
    def result(self) -> tuple[str, Any]:
        """Status and output of the workflow."""
        return self.workflow.status.value, orjson.loads(self.workflow.output or b"null")

    @property
    def stored(self) -> list[TaskState]:
        """The last record of every attempt of every run."""
        return list({task.task_id: task for _, decision in self.told for task in decision.changed_tasks}.values())

    def operate(self, kind: Callable[..., Any], **fields: Any) -> Tree:
        """An operation on the workflow, which is loaded with all of its rows as the shell does it."""
        definition = replace(self.execution_now.definition, dynamic=Dynamic())
        workflow = self.workflow
        self.execution = assembled(workflow, {workflow.definition_hash: definition}, self.stored)
        if not workflow.status.is_terminal:
            self.execution, _ = rounds.rebuilt(self.execution)
        self.send(kind(key=workflow.workflow_id, operator="user:ann", **{**asked(f"c{len(self.told)}"), **fields}))
        return self

    @property
    def answered(self) -> tuple[int, str]:
        """The last decision's answer."""
        return self.answer.status, self.answer.message

    def take(self, reference: str) -> Tree:
        self.started(of=self.row(reference))
        return self

    def done(self, reference: str, output: Any = None) -> Tree:
        """A worker takes a task and completes it."""
        self.take(reference).completed(output or {}, of=self.row(reference))
        return self

    def fails(self, reference: str, reason: str = "boom") -> Tree:
        self.take(reference).failed(reason, of=self.row(reference))
        return self

    def fails_for_good(self, reference: str, reason: str = "boom") -> Tree:
        self.take(reference).failed_terminally(reason, of=self.row(reference))
        return self

    def run(self, limit: int = 10_000, **work: Work) -> Tree:
        """Let workers do everything that is handed out; those without a function give ``{}``."""
        for _ in range(limit):
            if self.workflow.status.is_terminal or not self.waiting:
                return self
            reference = self.waiting[0]
            name = self.definition.task(reference).reference
            function = work.get(name, lambda _: {})
            try:
                self.done(reference, function(self.input(reference)))
            except RuntimeError as error:
                self.failed(str(error), of=self.row(reference))
        raise AssertionError(f"the workflow runs on after {limit} tasks")
