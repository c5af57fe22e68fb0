"""What runs again when a workflow that has ended is taken up: some of its tasks, and everything that follows them.

Nothing that was done is undone: what runs again gets new rows in the next run, what followed it leaves the run
(``left_run``), and what stands beside it stays as it is. From a task on, the walk goes on as it always does; only what
does not begin by itself is begun here: the loops around it go on in its round, and the JOINs behind the forks around
it appear again and count what has ended already.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import orjson

from broker_engine.decider import attempts, dependencies, dynamic, rounds, walk
from broker_engine.decider.draft import Draft, Repeat
from broker_engine.decider.task_types import TASK_TYPES, ListEnd, loops
from broker_engine.model.definitions import Node, Steps, WorkflowDef, WorkflowTask, iterations
from broker_engine.model.state import Execution, TaskState, evolve
from broker_engine.model.status import Phase, ReasonCode, TaskStatus, WaitingFor, WorkflowStatus


@dataclass(slots=True)
class _Plan:
    """What a set of tasks to run again means for the rest."""

    #: Full references of those tasks.
    targets: Mapping[str, Repeat]
    #: Steps that leave with everything inside them, as (reference, iterations).
    behind: set[tuple[str, str]] = field(default_factory=set)
    #: Loops that go on, by full reference, and in which round.
    loops: dict[str, int] = field(default_factory=dict)
    #: Forks behind which a JOIN appears again, by full reference.
    forks: dict[str, None] = field(default_factory=dict)
    #: Steps that wait again for what they depend on.
    waits: dict[tuple[str, str], None] = field(default_factory=dict)

    def leaves(self, definition: WorkflowDef, reference: str) -> bool:
        """Whether a task leaves the run. One that runs again does not, unless it stands behind another."""
        #: Of the innermost loop around the step before.
        number: int | None = None
        for node, suffix in _around(definition, reference):
            name = node.step.reference + suffix
            if (node.step.reference, suffix) in self.behind:
                return True
            if number is not None:
                if name in self.loops:
                    if number > self.loops[name]:
                        return True
                elif name in self.targets:
                    return True
            number = int(iterations(suffix)[-1]) if suffix else 0
        return False


def take_up(draft: Draft, code: ReasonCode, reason: str | None) -> None:
    """Let an ended workflow run again, in its next run; the rows of this one stay in it."""
    workflow = draft.workflow
    draft.change_workflow(
        status=WorkflowStatus.RUNNING,
        run=workflow.run + 1,
        first_run=workflow.from_run,
        began_at_ms=draft.now_ms,
        ended_at_ms=None,
        output=None,
        reason_code=None,
        reason=None,
        failed_task_id=None,
        failed_reference=None,
        timeout_alerted=False,
        compensated_by=None,
    )
    draft.tell_workflow(WorkflowStatus.RUNNING, code, reason)


def run_again(draft: Draft, targets: Mapping[str, Repeat], code: ReasonCode, *, is_retry: bool) -> None:
    """Begin these tasks anew, by their full references, and let leave what followed them. In a retry the rows that they
    take the place of stay as earlier attempts; otherwise they leave, too.

    ``draft`` holds every row of the run (``rounds.rebuilt`` comes last).
    """
    execution = draft.execution = dynamic.of_rows(draft.execution)
    plan = _planned(execution, targets)
    _leave(draft, plan)
    begin = [name for name in targets if name not in plan.loops and not plan.leaves(execution.definition, name)]
    draft.repeats = {name: targets[name] for name in begin}
    for name, number in sorted(plan.loops.items(), key=lambda loop: loop[0].count("__")):
        draft.replace_row(execution.tasks[name], is_retried=is_retry)
        _go_on_in(draft, name, number, code)
    for name, suffix in plan.waits:
        _wait_again(draft, name, suffix, code)
    for name in sorted(begin, key=lambda name: execution.tasks[name].seq):
        if draft.workflow.status.is_terminal:
            return
        row, repeat = execution.tasks[name], targets[name]
        draft.replace_row(row, is_retried=is_retry)
        if repeat.definition is None:  # what it had brought to run by, it brings anew
            draft.execution = dynamic.without(draft.execution, [row])
        _begin(draft, row, repeat, code)
    for name in targets:
        if name in plan.loops and not draft.workflow.status.is_terminal:
            _ask_again(draft, name)
    for name in sorted(plan.forks, key=lambda name: -name.count("__")):
        if name in draft.execution.tasks and not draft.workflow.status.is_terminal:
            walk.begin_behind(draft, name)
    draft.repeats = {}
    draft.execution, left = rounds.rebuilt(draft.execution)
    draft.left += left


# --- the plan


def _planned(execution: Execution, targets: Mapping[str, Repeat]) -> _Plan:
    plan = _Plan(targets)
    for name in targets:
        row, (node, _) = execution.tasks[name], execution.definition.locate(name)
        if node.step.body and row.iteration and targets[name].goes_on:
            plan.loops.setdefault(name, row.iteration)
        _plan_behind(plan, execution.definition, name)
    for name, repeat in targets.items():
        if not repeat.goes_on:
            plan.loops.pop(name, None)
    return plan


def _plan_behind(plan: _Plan, definition: WorkflowDef, reference: str) -> None:
    """Everything that follows a task, in its list and around it."""
    for node, suffix in _around(definition, reference):
        for step in _followers(node):
            plan.behind.add((step.reference, suffix))
            if node.is_dag:
                plan.waits[step.reference, suffix] = None
        if node.owner is None:
            return
        owner = definition.node(node.owner, suffix)
        assert owner is not None, "a list belongs to a step"
        match TASK_TYPES[owner.step.type].list_end:
            case ListEnd.ITERATES:
                outer, number = _outside(owner, suffix)
                name = owner.step.reference + outer
                plan.loops[name] = min(plan.loops.get(name, number), number)
            case ListEnd.STOPS:
                plan.forks[owner.step.reference + suffix] = None
            case ListEnd.GOES_ON:
                pass


def _followers(node: Node) -> Steps:
    if not node.is_dag:
        return node.siblings[node.position + 1 :]
    names, found = {node.step.reference}, list[WorkflowTask]()
    while new := [
        step for step in node.siblings if step.reference not in names and not names.isdisjoint(step.depends_on)
    ]:
        names.update(step.reference for step in new)
        found += new
    return tuple(found)


def _around(definition: WorkflowDef, reference: str) -> Iterator[tuple[Node, str]]:
    """A task and the operators around it, from the inside out, with the iterations that each belongs to."""
    node, suffix = definition.locate(reference)
    yield node, suffix
    while node.owner is not None:
        owner = definition.node(node.owner, suffix)
        assert owner is not None, "a list belongs to a step"
        if owner.step.body:
            suffix, _ = _outside(owner, suffix)
        node = owner
        yield node, suffix


def _outside(loop: Node, suffix: str) -> tuple[str, int]:
    """The iterations that a loop belongs to, and the round of it that a task with this suffix belongs to."""
    numbers, depth = iterations(suffix), len(loop.loops)
    return "".join(f"__{number}" for number in numbers[:depth]), int(numbers[depth])


# --- carrying it out


def _leave(draft: Draft, plan: _Plan) -> None:
    execution = draft.execution
    gone = [row for row in execution.tasks.values() if plan.leaves(execution.definition, row.reference)]
    draft.leave_run(gone)
    draft.execution = dynamic.without(draft.execution, gone)


def _begin(draft: Draft, row: TaskState, repeat: Repeat, code: ReasonCode) -> None:
    node, suffix = draft.execution.definition.locate(row.reference)
    if repeat.child is None:
        walk.begin_step(draft, node.step, suffix, code)
        return
    task = attempts.first_attempt(draft, node.step, suffix, code, in_engine=True)
    running = evolve(
        task,
        phase=Phase.RUNNING,
        status=TaskStatus.IN_PROGRESS,
        input=row.input,
        output=orjson.dumps({"subWorkflowId": repeat.child}),
        started_at_ms=draft.now_ms,
        waiting_for=WaitingFor.WORKFLOW,
        sub_workflow_id=repeat.child,
    )
    draft.appear(running, code)


def _go_on_in(draft: Draft, name: str, number: int, code: ReasonCode) -> None:
    """A loop that has ended runs again, in one of its rounds."""
    row = draft.execution.tasks[name]
    node, suffix = draft.execution.definition.locate(name)
    task = attempts.first_attempt(draft, node.step, suffix, code, in_engine=True)
    running = evolve(
        task,
        phase=Phase.RUNNING,
        status=TaskStatus.IN_PROGRESS,
        iteration=number,
        output=orjson.dumps(loops.progress(None, number)),
        started_at_ms=draft.now_ms,
        waiting_for=WaitingFor.TASKS,
        retried_task_id=row.task_id,
    )
    if row.progress_total is not None:  # a list, which is in the input
        running = evolve(running, input=row.input, progress_total=row.progress_total)
        running = rounds.at_round(running, number, node.step)
    draft.appear(running, code)


def _wait_again(draft: Draft, name: str, suffix: str, code: ReasonCode) -> None:
    node = draft.execution.definition.node(name, suffix)
    assert node is not None, "it was planned"
    in_engine = node.step.type in TASK_TYPES
    task = attempts.first_attempt(draft, node.step, suffix, code, in_engine=in_engine)
    row = draft.appear(dependencies.waiting(task, node.step), code)
    counted = dependencies.counted(draft, row, node.step, suffix)
    if counted is not None:
        draft.set_aside(counted)


def _ask_again(draft: Draft, name: str) -> None:
    """A loop whose condition could not be told, and in which nothing runs, asks again."""
    row = draft.execution.tasks[name]
    node, _ = draft.execution.definition.locate(name)
    inside = f"{name.removeprefix(node.step.reference)}__{row.iteration}"
    rows = rounds.rows_of(draft.execution, node.step.body, inside)
    if all(each.is_terminal for each in rows):
        walk.round_over(draft, node, inside)
