"""Rounds of loops that are over: what is kept of them in memory, and how a loop that was not written is found again.

A round that is over is not looked at any more: its rows leave the memory (they stay on their topic), and only its
outputs are kept, for the loop's own, as many as ``keepLastN`` asks for. The row of a loop over a list holds the whole
list. It would be dear to write it anew with each round, so it is written with every so many, by its size: how far the
loop is, the rows of its body say, each of which is written as it appears.
"""

from __future__ import annotations

from collections.abc import Iterator

import orjson
from immutables import Map

from broker_engine.decider import dynamic
from broker_engine.decider.deadlines import next_deadline
from broker_engine.decider.documents import Scope, find_task
from broker_engine.decider.draft import Draft
from broker_engine.decider.task_types import loops
from broker_engine.model.commands import ContinueLoop
from broker_engine.model.decision import Send
from broker_engine.model.definitions import Node, Steps, WorkflowTask, iterations
from broker_engine.model.state import Execution, TaskState, evolve
from broker_engine.model.status import FACTS, WaitingFor

#: Rows that one decision writes before a loop lets others go first: a transaction is bounded, and so is their wait.
MAX_ROWS = 500
#: Bytes of a loop's input that may be written anew with each of its rounds.
BYTES_PER_ROUND = 4_096


# --- how far a loop is


def at_round(row: TaskState, iteration: int, step: WorkflowTask) -> TaskState:
    """The row of a list loop in one of its rounds."""
    items = loops.listed(row.input)
    moved = evolve(
        row,
        iteration=iteration,
        output=orjson.dumps(loops.progress(items, iteration)),
        waiting_for=WaitingFor.TASKS,
        progress_done=iteration - 1,
    )
    return with_deadline(moved, step)


def with_deadline(row: TaskState, step: WorkflowTask) -> TaskState:
    deadline = next_deadline(row, step.definition)
    kind, at_ms = (deadline.kind.value, deadline.at_ms) if deadline is not None else (None, None)
    return evolve(row, next_deadline=kind, next_deadline_at_ms=at_ms)


def is_written(row: TaskState) -> bool:
    """Whether a list loop is written with this round."""
    return row.iteration % (1 + len(row.input) // BYTES_PER_ROUND) == 0


def ask_for_turn(draft: Draft, row: TaskState) -> None:
    """Have a loop go on when others had their turn."""
    command = ContinueLoop(
        key=row.workflow_id, reference=row.reference, task_id=row.task_id, hand_out=row.hand_out, round=row.iteration
    )
    draft.outputs.append(Send(command=command))


# --- what is kept of them


def rows_of(execution: Execution, steps: Steps, suffix: str) -> Iterator[TaskState]:
    """The rows of a list in one round, with those of the last rounds of loops inside it."""
    for step in steps:
        row = execution.tasks.get(step.reference + suffix)
        if row is None:
            continue
        yield row
        if step.body:
            yield from rows_of(execution, step.body, f"{suffix}__{row.iteration}")
        else:
            for inner in (*step.lists, *execution.definition.dynamic.lists.get(row.reference, ())):
                yield from rows_of(execution, inner, suffix)


def leave(execution: Execution, node: Node, row: TaskState, number: int) -> tuple[Execution, list[TaskState]]:
    """An execution without the rows of a round that is over, and those rows. All stay while one of them still runs."""
    outer = row.reference.removeprefix(node.step.reference)
    inside = f"{outer}__{number}"
    rows = list(rows_of(execution, node.step.body, inside))
    if not rows or any(not each.is_terminal for each in rows):
        return execution, []
    kept = execution.rounds
    if not row.is_terminal:
        kept = kept.set(row.reference + f"__{number}", outputs(execution, node, row, number))
        oldest = number + 1 - (loops.keep_last(row.input) or number + 1)
        kept = _without(kept, f"{row.reference}__{oldest}")
    gone = [each for each in rows if FACTS[each.status].is_successful]  # a permissive one counts at the workflow's end
    if execution.definition.has_compensation:  # what may have to be undone stays
        gone = [each for each in gone if execution.definition.task(each.reference).compensation is None]
    tasks = execution.tasks.mutate()
    for each in gone:
        del tasks[each.reference]
    left = execution._replace(tasks=tasks.finish(), rounds=kept)
    return (dynamic.without(left, gone) if len(gone) == len(rows) else left), gone


def outputs(execution: Execution, node: Node, row: TaskState, number: int) -> bytes:
    """The outputs of the body in one round, by reference (of loops inside: their latest)."""
    _, suffix = execution.definition.locate(row.reference)
    scope = Scope((*node.loops, node.step.reference), (*iterations(suffix), str(number)))
    found = ((name, find_task(execution, name, scope)) for name in loops.references(node.step.body))
    fields = (orjson.dumps(name) + b":" + (task.output or b"{}") for name, task in found if task is not None)
    return b"{" + b",".join(fields) + b"}"


def output(execution: Execution, node: Node, row: TaskState) -> bytes:
    """The output of a loop that is over: those of its rounds (the last ``keepLastN``), and their number."""
    last = row.iteration
    first = max(last - (loops.keep_last(row.input) or last) + 1, 1)
    parts = [b'"iteration":%d' % last]
    for number in range(first, last + 1):
        kept = execution.rounds.get(f"{row.reference}__{number}")
        parts.append(b'"%d":%b' % (number, outputs(execution, node, row, number) if kept is None else kept))
    return b"{" + b",".join(parts) + b"}"


def forget(execution: Execution, row: TaskState) -> Execution:
    """Drop what was kept of a loop that has ended."""
    kept = execution.rounds
    for number in range(1, row.iteration + 1):
        kept = _without(kept, f"{row.reference}__{number}")
    return execution if kept is execution.rounds else execution._replace(rounds=kept)


def _without(kept: Map[str, bytes], key: str) -> Map[str, bytes]:
    return kept.delete(key) if key in kept else kept


# --- what was stored


def rebuilt(execution: Execution) -> tuple[Execution, list[TaskState]]:
    """An execution as it was in memory, from all of its rows; and those that are not kept there."""
    left: list[TaskState] = []
    execution = dynamic.of_rows(execution)
    definition = execution.definition
    found = [(definition.locate(row.reference)[0], row) for row in execution.tasks.values()]
    every = sorted((pair for pair in found if pair[0].step.body), key=lambda pair: (-len(pair[0].loops), pair[1].seq))
    for node, row in every:
        outer, present = row.reference.removeprefix(node.step.reference), row.iteration
        first = node.step.body[0].reference + outer
        while not row.is_terminal and f"{first}__{present + 1}" in execution.tasks:
            present += 1
        if present != row.iteration:
            row = at_round(row, present, node.step)
            execution = execution.with_task(row)
        for number in range(1, present):
            execution, gone = leave(execution, node, row, number)
            left += gone
    return execution, left
