"""The walk through a workflow's tree: what begins when a task has ended.

``flow.py`` makes, hands out and ends single tasks, and puts what has ended for good into ``draft.ended``. When the
command is carried out, ``go_on`` takes those in turn: JOINs count them, operators begin the lists inside them, lists
go on, loops begin their next round, and a workflow without live tasks is complete. A work list, no recursion: how deep
the calls go does not depend on the definition's size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_never

import orjson

from broker_engine.decider import attempts, children, dependencies, dynamic, flow, rounds
from broker_engine.decider.documents import TOP, scope_of, task_input
from broker_engine.decider.draft import Draft
from broker_engine.decider.moves import Cause
from broker_engine.decider.task_types import TASK_TYPES, Begun, How, ListEnd, Seen, forks, loops, switch
from broker_engine.model.commands import (
    ContinueLoop,
    SubWorkflowEnded,
    TaskReported,
)
from broker_engine.model.definitions import Node, Steps, WorkflowTask, iterations
from broker_engine.model.limits import SYSTEM_DOMAIN
from broker_engine.model.state import TaskState, evolve
from broker_engine.model.status import (
    FACTS,
    Phase,
    ReasonCode,
    ReportStatus,
    TaskStatus,
    WaitingFor,
    WorkflowStatus,
)


def begin(draft: Draft, steps: Steps, suffix: str, code: ReasonCode) -> None:
    """Begin a list of steps. ``suffix``: the iterations that it belongs to."""
    node = draft.execution.definition.node(steps[0].reference, suffix)
    if node is None or not node.is_dag:
        begin_step(draft, steps[0], suffix, code)
        return
    for step in steps:
        if step.depends_on:
            task = flow.first_attempt(draft, step, suffix, code, in_engine=step.type in TASK_TYPES)
            draft.appear(dependencies.waiting(task, step), code)
    for step in steps:
        if not step.depends_on and not draft.workflow.status.is_terminal:
            begin_step(draft, step, suffix, code)


def go_on(draft: Draft) -> None:
    """Begin everything that follows what has ended; end the workflow when nothing is left."""
    if not draft.ended:
        return
    while draft.ended and not draft.workflow.status.is_terminal:
        _follow(draft, draft.ended.pop(0))
    if not draft.workflow.status.is_terminal and not draft.execution.live:
        flow.complete(draft)


def _follow(draft: Draft, done: TaskState) -> None:
    definition = draft.execution.definition
    node, suffix = definition.locate(done.reference)
    for reference in definition.joins_of(node, suffix):
        _count(draft, reference, node.step.reference)
        if draft.workflow.status.is_terminal:
            return
    kind = TASK_TYPES.get(node.step.type)
    lists = kind.enters(node.step, done) if kind is not None and done.status is not TaskStatus.SKIPPED else ()
    lists = definition.dynamic.lists.get(done.reference, lists)
    for steps in lists:
        begin(draft, steps, suffix, ReasonCode.PREVIOUS_TASK_DONE)
        if draft.workflow.status.is_terminal:
            return
    if not lists or (kind is not None and kind.goes_on):
        _next(draft, node, suffix)


def _next(draft: Draft, node: Node, suffix: str) -> None:
    """Begin what stands behind a step: its sibling, or what comes after the operator that its list belongs to."""
    definition = draft.execution.definition
    while node.is_dag or node.position + 1 == len(node.siblings):
        if node.is_dag and not (node.owner and dependencies.are_over(draft, node.siblings, suffix)):
            return
        if node.owner is None:
            return
        owner = definition.node(node.owner, suffix)
        assert owner is not None, "a list belongs to a step"
        node = owner
        match TASK_TYPES[node.step.type].list_end:
            case ListEnd.STOPS:
                return
            case ListEnd.ITERATES:
                round_over(draft, node, suffix)
                return
            case ListEnd.GOES_ON:
                pass
    begin_step(draft, node.siblings[node.position + 1], suffix, ReasonCode.PREVIOUS_TASK_DONE)


def begin_behind(draft: Draft, reference: str) -> None:
    """Begin what stands behind a task that has ended (the JOIN of a fork)."""
    node, suffix = draft.execution.definition.locate(reference)
    _next(draft, node, suffix)


def begin_step(draft: Draft, step: WorkflowTask, suffix: str, code: ReasonCode) -> None:
    """Begin a step, in the iterations that ``suffix`` says."""
    if draft.workflow.skips and _skipped(draft, step, suffix):
        return
    kind = TASK_TYPES.get(step.type)
    if step.type == "DYNAMIC":
        _begin_dynamic(draft, step, suffix, code)
        return
    if kind is None:
        task = flow.first_attempt(draft, step, suffix, code)
        flow.add(draft, task, code, delay_ms=step.start_delay_seconds * 1_000)
        return
    task = flow.first_attempt(draft, step, suffix, code, in_engine=True)
    problem = flow.input_problem(draft, task)
    if problem is not None:
        flow.refuse(draft, task, *problem)
        return
    data = orjson.loads(task.input)
    begun = kind.begin(step, Seen(draft.execution, draft.now_ms, suffix, data, draft.ended))
    if begun.forks is not None:
        task, begun = dynamic.forked(draft, task, step, begun)
    if begun.how is How.HANDED_OUT:
        if given := kind.given(step):
            task = evolve(task, input=orjson.dumps({**data, **given}))
        flow.add(draft, task, code, delay_ms=step.start_delay_seconds * 1_000)
    else:
        _appear(draft, step, task, begun, suffix)


def _begin_dynamic(draft: Draft, step: WorkflowTask, suffix: str, code: ReasonCode) -> None:
    """A task that is known only now."""
    unknown = flow.first_attempt(draft, step, suffix, code, in_engine=True)
    found = dynamic.resolved(draft, step, orjson.loads(unknown.input))
    if isinstance(found, str):
        flow.refuse(draft, unknown, ReasonCode.TERMINAL_ERROR, found)
        return
    known, stored = found
    task = evolve(flow.first_attempt(draft, known, suffix, code), definition=stored)
    draft.execution = dynamic.extended(draft.execution, task)
    flow.add(draft, task, code, delay_ms=step.start_delay_seconds * 1_000)


def _appear(draft: Draft, step: WorkflowTask, task: TaskState, begun: Begun, suffix: str) -> None:
    """A task of the engine's own, which runs or is done as it appears."""
    child: str | None = None
    if begun.starts is not None:
        child = children.start(draft, task, begun.starts)
        begun = begun._replace(output={"subWorkflowId" if begun.starts.is_child else "workflowId": child})
    output = orjson.dumps(begun.output) if begun.output is not None else None
    if output is not None and (problem := flow.output_problem(output, draft.context.max_payload_bytes)):
        flow.refuse(draft, task, *problem)
        return
    match begun.how:
        case How.FAILED:
            flow.refuse(draft, task, begun.code, begun.reason or "")
        case How.DONE:
            if begun.variables is not None:
                draft.change_workflow(variables=orjson.dumps(begun.variables))
            if begun.takes:
                draft.change_workflow(messages=draft.workflow.messages[begun.takes :])
            done = evolve(
                task,
                phase=Phase.SUCCEEDED,
                status=TaskStatus.COMPLETED,
                output=output,
                started_at_ms=draft.now_ms,
                ended_at_ms=draft.now_ms,
                reason_code=begun.code,
            )
            done = draft.appear(done, begun.code)
            draft.execution = dynamic.extended(draft.execution, done)
            if begun.ends is None:
                draft.ended.append(done)
            else:
                _terminate(draft, done, begun)
        case How.RUNNING:
            ended, wanted = begun.progress or (None, None)
            running = evolve(
                task,
                phase=Phase.RUNNING,
                status=TaskStatus.IN_PROGRESS,
                output=output,
                started_at_ms=draft.now_ms,
                waiting_for=begun.waiting_for,
                due_at_ms=begun.due_at_ms,
                iteration=begun.iteration or task.iteration,
                progress_done=ended,
                progress_total=wanted,
                paused_at_ms=draft.now_ms if draft.workflow.status is WorkflowStatus.PAUSED else None,
                sub_workflow_id=child,
            )
            running = draft.appear(running, begun.code)
            inside = f"{suffix}__{begun.iteration}" if begun.iteration else suffix
            for steps in begun.enters:
                begin(draft, steps, inside, ReasonCode.PREVIOUS_TASK_DONE)
            if step.type == "JOIN" and ended == wanted:
                _joined(draft, running)
        case How.HANDED_OUT:
            raise AssertionError("it was handed out")
        case _:
            assert_never(begun.how)


def _terminate(draft: Draft, done: TaskState, begun: Begun) -> None:
    assert begun.ends is not None
    status, reason, output = begun.ends
    is_failure = status is not WorkflowStatus.COMPLETED
    flow.finish(
        draft,
        status,
        ReasonCode.TERMINATED_BY_TASK,
        reason or (f"task {done.reference} terminated the workflow" if is_failure else None),
        last=done,
        failed=done if is_failure else None,
        given=orjson.dumps(output) if output else None,
    )


def _skipped(draft: Draft, step: WorkflowTask, suffix: str) -> bool:
    """Jump over a step that somebody wants to be skipped."""
    reference = step.reference + suffix
    skip = next((skip for skip in draft.workflow.skips if skip.reference == reference), None)
    if skip is None:
        return False
    draft.change_workflow(skips=tuple(other for other in draft.workflow.skips if other is not skip))
    task = attempts.first_attempt(draft, step, suffix, ReasonCode.SKIP_REQUESTED, in_engine=step.type in TASK_TYPES)
    changes: dict[str, Any] = {"phase": Phase.SKIPPED, "status": TaskStatus.SKIPPED, "ended_at_ms": draft.now_ms}
    if skip.input is not None:
        changes["input"] = skip.input
    done = draft.appear(evolve(task, output=skip.output, **changes), ReasonCode.SKIP_REQUESTED)
    draft.ended.append(done)
    return True


# --- JOIN


def _count(draft: Draft, reference: str, ended: str) -> None:
    """One more of a JOIN's tasks has ended (one that is not there yet counts them when it appears), or of those that
    a step depends on."""
    row = draft.execution.tasks.get(reference)
    if row is None or row.is_terminal:
        return
    if row.waiting_for is WaitingFor.DEPENDENCIES:
        _count_dependency(draft, row, ended)
        return
    if row.task_type not in ("JOIN", "EXCLUSIVE_JOIN") or ended in draft.step(row).depends_on:
        return
    if row.task_type == "EXCLUSIVE_JOIN":
        _joined_exclusively(draft, row)
        return
    counted = evolve(row, progress_done=(row.progress_done or 0) + 1, updated_at_ms=draft.now_ms)
    if counted.progress_done == counted.progress_total:
        _joined(draft, counted)
    else:
        draft.set_aside(counted)


def _count_dependency(draft: Draft, row: TaskState, ended: str) -> None:
    node, suffix = draft.execution.definition.locate(row.reference)
    if ended not in node.step.depends_on:  # a JOIN that has not begun counts its tasks when it does
        return
    left = dependencies.counted(draft, row, node.step, suffix)
    if left is None:
        begin_step(draft, node.step, suffix, ReasonCode.DEPENDENCIES_DONE)
    else:
        draft.set_aside(left)


def _joined_exclusively(draft: Draft, row: TaskState) -> None:
    """One of the tasks that an EXCLUSIVE_JOIN may take has ended: is it the one?"""
    node, suffix = draft.execution.definition.locate(row.reference)
    task = forks.exclusively_joined(draft.execution, node.step, suffix)
    if task is None or not task.is_terminal:
        return
    if FACTS[task.status].is_successful:
        _end(draft, row, ReasonCode.JOINED, task.output or b"{}", status=TaskStatus.COMPLETED)
    else:
        _fail(draft, row, ReasonCode.JOINED, f"{task.reference} {task.status}: {task.reason or 'no reason given'}")


def _joined(draft: Draft, row: TaskState) -> None:
    execution = draft.execution
    node, suffix = execution.definition.locate(row.reference)
    status, outputs, reason = forks.verdict(execution, node.step, suffix)
    fields = b",".join(orjson.dumps(name) + b":" + (output or b"{}") for name, output in outputs.items())
    output = b"{" + fields + b"}"
    if (problem := flow.output_problem(output, draft.context.max_payload_bytes)) is not None:
        _fail(draft, row, problem[0], f"{problem[1]}: let the joined tasks give references instead")
    elif status is TaskStatus.FAILED or status is TaskStatus.CANCELED:
        _fail(draft, row, ReasonCode.JOINED, reason, is_canceled=status is TaskStatus.CANCELED, output=output)
    else:
        _end(draft, row, ReasonCode.JOINED, output, status=status)


def _end(draft: Draft, row: TaskState, code: ReasonCode, output: bytes | None, *, status: TaskStatus) -> None:
    changes: dict[str, Any] = {"output": output, "waiting_for": None, "due_at_ms": None}
    draft.ended.append(draft.move(row, Cause.COMPLETED, Phase.SUCCEEDED, code, status=status, **changes))


def _fail(
    draft: Draft,
    row: TaskState,
    code: ReasonCode,
    reason: str | None,
    *,
    is_canceled: bool = False,
    output: bytes | None = None,
) -> None:
    """End a task of the engine's own that did not succeed. It is not tried again: it would come to the same."""
    ending = flow.Ending(Cause.FAILED_TERMINALLY, Phase.FAILED, TaskStatus.FAILED_WITH_TERMINAL_ERROR, code)
    if code is ReasonCode.JOINED:
        ending = flow.Ending(Cause.FAILED, Phase.FAILED, TaskStatus.FAILED, code)
    if is_canceled:
        ending = flow.Ending(Cause.CANCELED_BY_WORKER, Phase.CANCELED, TaskStatus.CANCELED, code)
    flow.end_badly(draft, row, ending, reason, {"output": output, "waiting_for": None}, may_retry=False)


# --- SUB_WORKFLOW


def sub_workflow_ended(draft: Draft, command: SubWorkflowEnded, task: TaskState | str) -> str | None:
    """The end of a sub-workflow is that of its task. ``task``: what it is about, or why that belongs to the past."""
    if isinstance(task, str):
        return task
    output = {**orjson.loads(command.output or b"{}"), "subWorkflowId": task.sub_workflow_id}
    encoded = orjson.dumps(output)
    if (problem := flow.output_problem(encoded, draft.context.max_payload_bytes)) is not None:
        _fail(draft, task, *problem)
    elif command.status is WorkflowStatus.COMPLETED:
        _end(draft, task, ReasonCode.SUB_WORKFLOW_ENDED, encoded, status=TaskStatus.COMPLETED)
    else:
        cause, phase, status = _CHILD_ENDS[command.status]
        ending = flow.Ending(cause, phase, status, ReasonCode.SUB_WORKFLOW_ENDED)
        reason = command.reason or f"sub-workflow {task.sub_workflow_id} ended {command.status}"
        flow.end_badly(draft, task, ending, reason, {"output": encoded, "waiting_for": None})
    return None


_CHILD_ENDS: Mapping[WorkflowStatus, tuple[Cause, Phase, TaskStatus]] = {
    WorkflowStatus.FAILED: (Cause.FAILED, Phase.FAILED, TaskStatus.FAILED),
    WorkflowStatus.TERMINATED: (Cause.CANCELED_BY_WORKER, Phase.CANCELED, TaskStatus.CANCELED),
    WorkflowStatus.TIMED_OUT: (Cause.TIMED_OUT, Phase.TIMED_OUT, TaskStatus.TIMED_OUT),
}


# --- WAIT


def wait_over(draft: Draft, task: TaskState) -> None:
    """The moment that a WAIT names has come, or the command by which a loop goes on did not."""
    if task.waiting_for is WaitingFor.TURN:
        node, _ = draft.execution.definition.locate(task.reference)
        _next_item(draft, node, task)
        return
    _end(draft, task, ReasonCode.WAIT_OVER, b"{}", status=TaskStatus.COMPLETED)


# --- reports of system workers


def take_result(draft: Draft, task: TaskState, report: TaskReported) -> bool:
    """A report that does not simply end its task: the condition of a loop, or the value of a SWITCH. False: it does."""
    if report.status is not ReportStatus.COMPLETED or task.domain != SYSTEM_DOMAIN or report.output is None:
        return False
    if flow.output_problem(report.output, draft.context.max_payload_bytes) is not None:
        return False
    step = draft.step(task)
    if step.type == "DO_WHILE" and not task.is_in_engine:
        _condition_told(draft, task, report)
        return True
    if step.type in ("SWITCH", "DECISION"):
        found, _ = switch.chosen(step, report.output)
        _take(draft, task, report, ReasonCode.EVALUATED, orjson.dumps(found))
        return True
    return False


def _take(draft: Draft, task: TaskState, report: TaskReported, code: ReasonCode, output: bytes) -> None:
    changes: dict[str, Any] = {
        "output": output,
        "sequence": report.sequence,
        "worker_id": report.worker_id or task.worker_id,
        "waiting_for": None,
    }
    draft.ended.append(draft.move(task, Cause.COMPLETED, Phase.SUCCEEDED, code, **changes))


# --- DO_WHILE


def round_over(draft: Draft, node: Node, inside: str) -> None:
    """The body of a loop has come to its end: the next item, or the question whether there is another round."""
    outer = "".join(f"__{number}" for number in iterations(inside)[: len(node.loops)])
    row = draft.execution.tasks[node.step.reference + outer]
    if row.is_terminal:
        return
    step = node.step
    if row.progress_total is not None:  # a list, and nobody is asked
        if row.iteration >= row.progress_total:
            _loop_over(draft, node, row)
        elif draft.written < rounds.MAX_ROWS:
            _next_item(draft, node, row)
        else:
            waits = evolve(row, waiting_for=WaitingFor.TURN, updated_at_ms=draft.now_ms)
            draft.set_aside(rounds.with_deadline(waits, step))
            rounds.ask_for_turn(draft, row)
        return
    data = _loop_input(draft, step, row)
    condition = orjson.dumps(loops.condition_input(draft.execution, step, row, data))
    asking = evolve(row, input=condition)
    if (problem := flow.input_problem(draft, asking)) is not None:
        _fail(draft, row, *problem)
    else:
        flow.hand_out(draft, asking, Cause.EVALUATES, ReasonCode.ROUND_OVER)


def _loop_input(draft: Draft, step: WorkflowTask, row: TaskState) -> Any:
    """The loop's input with what its expressions give now."""
    scope = scope_of(draft.execution, row.reference) if row.reference != step.reference else TOP
    return orjson.loads(task_input(draft.execution, step, row.task_id, draft.context.environment, scope=scope))


def _condition_told(draft: Draft, task: TaskState, report: TaskReported) -> None:
    task = evolve(task, sequence=report.sequence, worker_id=None)
    node, _ = draft.execution.definition.locate(task.reference)
    if loops.is_true(orjson.loads(report.output or b"{}").get("result")):
        _next_round(draft, node, task)
    else:
        _loop_over(draft, node, task)


def _next_round(draft: Draft, node: Node, row: TaskState) -> None:
    """The condition holds."""
    _leave(draft, node, row)
    changes: dict[str, Any] = {
        "iteration": row.iteration + 1,
        "output": orjson.dumps(loops.progress(None, row.iteration + 1)),
        "waiting_for": WaitingFor.TASKS,
        "lease": None,
        "heartbeat_at_ms": None,
        "handed_out_at_ms": None,
        "progress_done": None,
        "progress_total": None,  # whatever its evaluator told: only a list loop has one
    }
    row = draft.move(row, Cause.ITERATES, Phase.RUNNING, ReasonCode.ITERATED, **changes)
    _begin_round(draft, node, row)


def _next_item(draft: Draft, node: Node, row: TaskState) -> None:
    """Nobody was asked: no transition."""
    _leave(draft, node, row)
    row = rounds.at_round(row, row.iteration + 1, node.step)
    if rounds.is_written(row):
        draft.set_aside(evolve(row, updated_at_ms=draft.now_ms))
    else:
        draft.note(row)
    _begin_round(draft, node, row)


def _leave(draft: Draft, node: Node, row: TaskState) -> None:
    draft.execution, gone = rounds.leave(draft.execution, node, row, row.iteration)
    draft.left += gone


def _begin_round(draft: Draft, node: Node, row: TaskState) -> None:
    outer = row.reference.removeprefix(node.step.reference)
    begin(draft, node.step.body, f"{outer}__{row.iteration}", ReasonCode.PREVIOUS_TASK_DONE)


def continue_loop(draft: Draft, command: ContinueLoop, task: TaskState | str) -> str | None:
    """A loop that has let others go first goes on. ``task``: what it is about, or why that belongs to the past."""
    if isinstance(task, str):
        return task
    if task.waiting_for is not WaitingFor.TURN or task.iteration != command.round:
        return f"the loop is in round {task.iteration} and does not wait for its turn behind round {command.round}"
    if draft.workflow.status is WorkflowStatus.PAUSED:
        return "the workflow is paused, the loop goes on with it"
    node, _ = draft.execution.definition.locate(task.reference)
    _next_item(draft, node, task)
    return None


def _loop_over(draft: Draft, node: Node, row: TaskState) -> None:
    output = rounds.output(draft.execution, node, row)
    draft.execution = rounds.forget(draft.execution, row)
    limit = draft.context.max_payload_bytes
    if len(output) > limit:
        reason = f"the outputs of {row.iteration} iterations have {len(output)} bytes, the limit is {limit}: "
        _fail(draft, row, ReasonCode.PAYLOAD_TOO_LARGE, reason + "keep fewer with the input parameter keepLastN")
        return
    _end(draft, row, ReasonCode.ALL_TASKS_DONE, output, status=TaskStatus.COMPLETED)
