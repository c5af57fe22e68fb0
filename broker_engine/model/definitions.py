"""Task and workflow definitions, as registered by users and as copied into a workflow when it starts.

Field meanings and defaults are Conductor's (TaskDef, WorkflowDef, WorkflowTask); moments and durations keep
Conductor's unit, seconds, in their names. Validation is in ``decider/definitions.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias

from immutables import Map


class RetryLogic(StrEnum):
    FIXED = "FIXED"
    LINEAR_BACKOFF = "LINEAR_BACKOFF"
    EXPONENTIAL_BACKOFF = "EXPONENTIAL_BACKOFF"


class TimeoutPolicy(StrEnum):
    """What a poll, task or total timeout does. The response timeout always times the attempt out and retries."""

    RETRY = "RETRY"
    TIME_OUT_WF = "TIME_OUT_WF"
    ALERT_ONLY = "ALERT_ONLY"


class LimitScope(StrEnum):
    """What a limit counts together: all tasks of a type, or those of one queue."""

    TYPE = "TYPE"
    TYPE_AND_DOMAIN = "TYPE_AND_DOMAIN"


class OnWorkerLost(StrEnum):
    """What becomes of running attempts when their worker's presence is lost (D27)."""

    TIME_OUT = "TIME_OUT"
    WAIT = "WAIT"


#: D22: the source says 3600, one guide 600.
DEFAULT_RESPONSE_TIMEOUT_SECONDS = 3600

#: User JSON. ``Any`` because JSON has no static shape.
Json = Any


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDef:
    """How tasks of one type are retried, timed out and limited."""

    name: str
    description: str | None = None
    retry_count: int = 3
    retry_logic: RetryLogic = RetryLogic.FIXED
    retry_delay_seconds: int = 60
    backoff_scale_factor: int = 1
    max_retry_delay_seconds: int = 0
    backoff_jitter_ms: int = 0
    timeout_seconds: int = 0
    response_timeout_seconds: int = DEFAULT_RESPONSE_TIMEOUT_SECONDS
    poll_timeout_seconds: int = 0
    total_timeout_seconds: int = 0
    timeout_policy: TimeoutPolicy = TimeoutPolicy.TIME_OUT_WF
    concurrent_exec_limit: int = 0
    rate_limit_per_frequency: int = 0
    rate_limit_frequency_in_seconds: int = 1
    input_keys: tuple[str, ...] = ()
    output_keys: tuple[str, ...] = ()
    input_template: Mapping[str, Json] = field(default_factory=dict)
    owner_email: str | None = None
    isolation_group_id: str | None = None
    execution_name_space: str | None = None
    #: Names of secrets, resolved in the worker and stored nowhere.
    runtime_metadata: tuple[str, ...] = ()
    input_schema: Mapping[str, Json] | None = None
    output_schema: Mapping[str, Json] | None = None
    enforce_schema: bool = False
    #: Error codes: when given, no other code is retried.
    retryable_errors: tuple[str, ...] = ()
    #: Error codes that end the task as a terminal error.
    fatal_errors: tuple[str, ...] = ()
    limit_scope: LimitScope = LimitScope.TYPE
    #: An expression; one task per resolved value is in progress.
    resource_lock: str | None = None
    on_worker_lost: OnWorkerLost = OnWorkerLost.TIME_OUT
    #: Partitions of the queue's topic when it is made; 0: as the deciders are set.
    queue_partitions: int = 0
    #: Whether hand-outs go to the topic that such task types of a domain share, if the queue has no topic of its own.
    shared_queue: bool = False
    #: The definition as it was registered, with every field of the contract, for reading back.
    document: Mapping[str, Json] = field(default_factory=dict, compare=False, repr=False)


#: Steps that follow one another.
Steps: TypeAlias = "tuple[WorkflowTask, ...]"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowTask:
    """One step of a workflow definition, with the task definition in force."""

    name: str
    reference: str
    type: str = "SIMPLE"
    #: A JSON object with expressions in it, or one expression that gives an object.
    input_parameters: Mapping[str, Json] | str = field(default_factory=dict)
    optional: bool = False
    permissive: bool = False
    start_delay_seconds: int = 0
    #: Overrides the task definition's when set.
    retry_count: int | None = None
    definition: TaskDef
    #: SWITCH, INLINE: how ``expression`` is to be read.
    evaluator: str | None = None
    expression: str | None = None
    #: SWITCH: what is done for each value, and for all others.
    cases: Mapping[str, Steps] = field(default_factory=dict)
    default_case: Steps = ()
    #: FORK_JOIN: lists that are begun together.
    branches: tuple[Steps, ...] = ()
    #: JOIN: references that it waits for.
    join_on: tuple[str, ...] = ()
    #: EXCLUSIVE_JOIN: what it takes when none of those has run.
    join_default: tuple[str, ...] = ()
    #: References of its list that have to end before it begins.
    depends_on: tuple[str, ...] = ()
    #: The task that undoes it.
    compensation: str | None = None
    #: DO_WHILE: what is repeated while the condition holds, or once for each item.
    body: Steps = ()
    loop_condition: str | None = None
    items: Json = None
    #: EVENT: where to.
    sink: str | None = None
    #: LAMBDA: the body of a function.
    script: str | None = None
    #: DYNAMIC: the input parameter that names what it runs.
    dynamic_name: str | None = None
    #: FORK_JOIN_DYNAMIC: the input parameters with its tasks, and with their inputs.
    fork_tasks: str | None = None
    fork_inputs: str | None = None
    #: Laid over the resolved input as it is (tasks of a dynamic fork).
    given: Mapping[str, Json] = field(default_factory=dict)

    @property
    def retry_limit(self) -> int:
        return self.definition.retry_count if self.retry_count is None else self.retry_count

    @property
    def lists(self) -> Iterator[Steps]:
        """The lists of steps inside it."""
        yield from self.cases.values()
        yield from (self.default_case, *self.branches, self.body)


class Node(NamedTuple):
    """Where a step stands in its workflow."""

    step: WorkflowTask
    #: The list it stands in, and its place there.
    siblings: Steps
    position: int
    #: The reference of the operator that this list belongs to; None at the top.
    owner: str | None
    #: The loops around it, the outermost first.
    loops: tuple[str, ...]
    #: Whether its list is in the order of dependencies, not of its places.
    is_dag: bool = False


def index(steps: Steps, owner: str | None = None, loops: tuple[str, ...] = ()) -> Iterator[tuple[str, Node]]:
    """Every step of a tree by its reference, parents first."""
    is_dag = any(step.depends_on for step in steps)
    for position, step in enumerate(steps):
        yield step.reference, Node(step, steps, position, owner, loops, is_dag)
        inside = (*loops, step.reference) if step.body else loops
        for inner in step.lists:
            yield from index(inner, step.reference, inside)


class Dynamic(NamedTuple):
    """Steps that an execution has got while it ran (decider/dynamic.py)."""

    #: Where they stand, by reference and the iterations in the name of the task that brought them.
    nodes: Map[tuple[str, str], Node] = Map()
    #: What waits for them (as ``WorkflowDef.joins``), by the same.
    joins: Map[tuple[str, str], tuple[str, ...]] = Map()
    #: The lists that a dynamic fork's task begins.
    lists: Map[str, tuple[Steps, ...]] = Map()
    #: The references that such a JOIN waits for.
    waits: Map[str, tuple[str, ...]] = Map()

    def key(self, reference: str, suffix: str) -> tuple[str, str] | None:
        """The key of the step that a task with this suffix belongs to."""
        numbers = iterations(suffix)
        for depth in range(len(numbers), -1, -1):
            key = (reference, "".join(f"__{number}" for number in numbers[:depth]))
            if key in self.nodes:
                return key
        return None


def iterations(suffix: str) -> tuple[str, ...]:
    """``__2__5`` as (``2``, ``5``)."""
    return tuple(suffix.split("__")[1:])


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowDef:
    """A tree of tasks (lists, with lists inside operators) and what is known about running them."""

    name: str
    version: int = 1
    tasks: tuple[WorkflowTask, ...]
    output_parameters: Mapping[str, Json] = field(default_factory=dict)
    input_template: Mapping[str, Json] = field(default_factory=dict)
    variables: Mapping[str, Json] = field(default_factory=dict)
    timeout_seconds: int = 0
    timeout_policy: TimeoutPolicy = TimeoutPolicy.ALERT_ONLY
    input_schema: Mapping[str, Json] | None = None
    enforce_schema: bool = False
    #: Started when the engine ends a workflow other than COMPLETED; the name may be an expression.
    failure_workflow: str | None = None
    failure_workflow_version: int | None = None
    #: Whether any of its steps can be undone.
    has_compensation: bool = False
    #: Content hash of the snapshot: definition and embedded task definitions.
    content_hash: str = ""
    #: The snapshot as canonical JSON: what is stored and shown.
    document: Mapping[str, Json] = field(default_factory=dict, compare=False, repr=False)

    #: Every step of the tree by its reference.
    index: Mapping[str, Node] = field(default_factory=dict, compare=False, repr=False)
    #: The JOINs, and the steps that depend on it, that wait for a reference.
    joins: Mapping[str, tuple[str, ...]] = field(default_factory=dict, compare=False, repr=False)
    #: Steps that are no part of the document: an execution has them beside it.
    dynamic: Dynamic = field(default=Dynamic(), compare=False, repr=False)

    def task(self, reference: str) -> WorkflowTask:
        """The step of a task, whichever iteration it belongs to."""
        return self.locate(reference)[0].step

    def node(self, reference: str, suffix: str = "") -> Node | None:
        """The place of a step, in the round that a task with this suffix belongs to."""
        if self.dynamic.nodes and (key := self.dynamic.key(reference, suffix)) is not None:
            return self.dynamic.nodes[key]
        return self.index.get(reference)

    def joins_of(self, node: Node, suffix: str) -> list[str]:
        """What waits for a task, as it is called in its round: JOINs, and steps that depend on it."""
        reference = node.step.reference
        found = self.joins.get(reference, ())
        if self.dynamic.nodes and (key := self.dynamic.key(reference, suffix)) is not None:
            found += self.dynamic.joins.get(key, ())
        return [join + suffix for join in found]

    def locate(self, reference: str) -> tuple[Node, str]:
        """A task's place in the tree, and the iterations in its name: ``("charge", "__2__5")`` for ``charge__2__5``.

        Raises:
            KeyError: there is no such task.
        """
        node = self.node(reference) if self.dynamic.nodes else self.index.get(reference)
        if node is not None and not node.loops:
            return node, ""
        base, suffix = reference, ""
        while base:
            base, _, number = base.rpartition("__")
            suffix = f"__{number}{suffix}"
            node = self.node(base, suffix)
            if node is not None and len(node.loops) == len(iterations(suffix)) and number.isdigit():
                return node, suffix
        raise KeyError(reference)
