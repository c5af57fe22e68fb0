"""What an operator is to the walk through a workflow's tree."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from broker_engine.errors import Violation
from broker_engine.model.definitions import Json, Steps, WorkflowTask
from broker_engine.model.state import Execution, TaskState
from broker_engine.model.status import ReasonCode, WaitingFor, WorkflowStatus


class How(StrEnum):
    """How a task of an operator appears."""

    HANDED_OUT = "handed out"  # to the system workers
    RUNNING = "running"  # in the engine, until something happens
    DONE = "done"
    FAILED = "failed"


class WorkflowEnd(NamedTuple):
    """How a TERMINATE ends the workflow."""

    status: WorkflowStatus
    reason: str | None
    output: Json


class StartedWorkflow(NamedTuple):
    """The workflow that a task starts."""

    name: str
    version: int | None
    #: JSON of a definition of its own.
    definition: bytes | None
    input: bytes
    correlation_id: str | None
    priority: int
    task_to_domain: bytes | None
    #: Whether its end is the task's.
    is_child: bool


class ForkedTask(NamedTuple):
    """One task that a dynamic fork begins."""

    document: Mapping[str, Json]
    #: What is laid over its input, as it is.
    given: Mapping[str, Json]


class Begun(NamedTuple):
    """How a task of an operator begins."""

    how: How
    #: What the task gives (DONE), or shows of itself meanwhile (RUNNING).
    output: Json = None
    reason: str | None = None
    code: ReasonCode = ReasonCode.EVALUATED
    waiting_for: WaitingFor | None = None
    due_at_ms: int | None = None
    #: Lists that begin while it runs.
    enters: tuple[Steps, ...] = ()
    iteration: int = 0
    #: How many of the tasks that it waits for have ended, and of how many.
    progress: tuple[int, int] | None = None
    #: The workflow's variables from now on.
    variables: Json = None
    ends: WorkflowEnd | None = None
    starts: StartedWorkflow | None = None
    #: How many of the workflow's messages it takes.
    takes: int = 0
    #: What a dynamic fork begins; where that comes from, and what of the input is not stored again beside it.
    forks: tuple[ForkedTask, ...] | None = None
    field: str = ""
    taken: tuple[str, ...] = ()


class Seen(NamedTuple):
    """What an operator may look at when it begins."""

    execution: Execution
    now_ms: int
    #: The iterations that it belongs to, as they stand in its name.
    suffix: str
    #: Its resolved input.
    input: Mapping[str, Json]
    #: Tasks that have ended in this decision and are not followed yet: they are told to what waits for them later.
    pending: Sequence[TaskState] = ()


class ListEnd(StrEnum):
    """What the end of a list inside an operator means."""

    GOES_ON = "goes on"  # after the operator
    STOPS = "stops"  # somebody else waits for its tasks
    ITERATES = "iterates"


def _enters_nothing(_step: WorkflowTask, _ended: TaskState) -> tuple[Steps, ...]:
    return ()


def _fits(_step: Mapping[str, Json], _path: str) -> list[Violation]:
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskType:
    """One operator: pure functions of its step and of what it sees."""

    #: For the table in the docs.
    about: str
    begin: Callable[[WorkflowTask, Seen], Begun]
    #: The lists that begin when its task has ended.
    enters: Callable[[WorkflowTask, TaskState], tuple[Steps, ...]] = _enters_nothing
    #: Whether its next sibling begins with those lists (FORK_JOIN: the JOIN); without lists it always does.
    goes_on: bool = False
    list_end: ListEnd = ListEnd.GOES_ON
    #: What is wrong with its fields, beyond what is wrong with any step's.
    check: Callable[[Mapping[str, Json], str], list[Violation]] = _fits
    #: What a system worker is given beside the input parameters.
    given: Callable[[WorkflowTask], Mapping[str, Json]] = lambda _step: {}
    #: Attempts after the first one where no definition is registered: a lost worker must not cost a workflow whose
    #: task has no effects outside.
    retries: int = 0


def missing(document: Mapping[str, Json], path: str, *names: str) -> list[Violation]:
    """A violation for each field that an operator needs and does not have."""
    return [
        Violation(path=path + name, message=f"is required by {document.get('type')}", invalid_value=None)
        for name in names
        if document.get(name) in (None, "", {}, [])
    ]


def hand_out(_step: WorkflowTask, _seen: Seen) -> Begun:
    """For what system workers do."""
    return Begun(How.HANDED_OUT)
