"""DO_WHILE: a list again and again, while a condition holds or once for each item.

Tasks of the body carry their iteration in their name: ``ref__3``, in nested loops ``ref__2__5``, the outermost first
(D30). After each round the loop's task is handed out to the system workers, which evaluate the condition.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import orjson

from broker_engine.decider.documents import Scope, find_task
from broker_engine.decider.task_types.base import Begun, How, ListEnd, Seen, TaskType, missing
from broker_engine.decider.task_types.scripts import EVALUATORS, evaluator_violations
from broker_engine.errors import Violation
from broker_engine.model.definitions import Json, Steps, WorkflowTask, iterations
from broker_engine.model.state import Execution, TaskState
from broker_engine.model.status import ReasonCode, WaitingFor


def _begin(step: WorkflowTask, seen: Seen) -> Begun:
    items = items_of(step, seen.input)
    if isinstance(items, str):
        return Begun(How.FAILED, reason=items, code=ReasonCode.TERMINAL_ERROR)
    if items is not None and not items:
        return Begun(How.DONE, output={"iteration": 0})
    return Begun(
        How.RUNNING,
        output=progress(items, 1),
        code=ReasonCode.PREVIOUS_TASK_DONE,
        waiting_for=WaitingFor.TASKS,
        enters=(step.body,),
        iteration=1,
        progress=(0, len(items)) if items is not None else None,
    )


def items_of(step: WorkflowTask, data: Mapping[str, Json]) -> list[Json] | str | None:
    """The list that a loop goes over; None when it has a condition; a text that says what is wrong."""
    if step.items is None and "items" not in data:
        return None
    items = data.get("items")
    return items if isinstance(items, list) else f"items must be a list, not {orjson.dumps(items).decode()[:100]}"


def progress(items: list[Json] | None, iteration: int) -> Json:
    """What a running loop shows: its iteration, and the item that this is about."""
    shown: dict[str, Json] = {"iteration": iteration}
    if items is not None:
        shown |= {"loopItem": items[iteration - 1], "loopIndex": iteration - 1}
    return shown


def condition_input(
    execution: Execution, step: WorkflowTask, row: TaskState, data: Mapping[str, Json]
) -> dict[str, Json]:
    """What the condition sees: the loop's input and output, and the outputs of this iteration's body, by reference."""
    inside = _inside(execution, step, row, row.iteration)
    outputs = {name: orjson.loads(task.output) if task.output else {} for name, task in inside.items()}
    return {
        **data,
        **outputs,
        step.reference: {"iteration": row.iteration},
        "evaluatorType": step.evaluator or EVALUATORS[0],
        "expression": step.loop_condition,
    }


def is_true(result: Json) -> bool:
    """Conductor's: a boolean says it itself, a number holds above 0, anything else does not."""
    return result if isinstance(result, bool) else isinstance(result, int | float) and result > 0


@lru_cache(maxsize=64)
def _parsed(data: bytes) -> tuple[list[Json] | None, int | None]:
    """The items and ``keepLastN`` of a loop's input: asked for with each round, and the same in all of them."""
    document = orjson.loads(data)
    items, keep = document.get("items"), document.get("keepLastN")
    is_number = isinstance(keep, int) and not isinstance(keep, bool) and keep > 0
    return items if isinstance(items, list) else None, keep if is_number else None


def listed(data: bytes) -> list[Json] | None:
    """The items of a loop over a list, by its row's input."""
    return _parsed(data)[0]


def keep_last(data: bytes) -> int | None:
    """How many rounds a loop's output shows; None: all of them."""
    return _parsed(data)[1]


def _inside(execution: Execution, step: WorkflowTask, row: TaskState, iteration: int) -> dict[str, TaskState]:
    """The tasks of the body in one iteration that are there, by reference (in loops inside: their latest)."""
    node, suffix = execution.definition.locate(row.reference)
    scope = Scope((*node.loops, step.reference), (*iterations(suffix), str(iteration)))
    found = {name: find_task(execution, name, scope) for name in references(step.body)}
    return {name: task for name, task in found.items() if task is not None}


def references(steps: Steps) -> list[str]:
    """The references of steps and of what is inside them, but not inside their loops."""
    found = []
    for step in steps:
        found.append(step.reference)
        if not step.body:
            for inner in step.lists:
                found += references(inner)
    return found


def _check(document: Mapping[str, Json], path: str) -> list[Violation]:
    found = missing(document, path, "loopOver")
    has_items = document.get("items") is not None or "items" in (document.get("inputParameters") or {})
    if not has_items:
        found += missing(document, path, "loopCondition")
    return found + evaluator_violations(document, path, set(EVALUATORS))


DO_WHILE = TaskType(
    about="repeats a list while a condition holds, or once for each of `items`",
    begin=_begin,
    list_end=ListEnd.ITERATES,
    check=_check,
    retries=3,
)
