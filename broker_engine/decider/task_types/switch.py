"""SWITCH, and DECISION, its older form: one of several lists, by a value."""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from broker_engine.decider.expressions import java_text
from broker_engine.decider.task_types.base import Begun, How, Seen, TaskType, missing
from broker_engine.decider.task_types.scripts import EVALUATORS, VALUE_PARAM, evaluator_violations
from broker_engine.errors import Violation
from broker_engine.model.definitions import Json, Steps, WorkflowTask
from broker_engine.model.state import TaskState


def _begin(step: WorkflowTask, seen: Seen) -> Begun:
    if step.evaluator == VALUE_PARAM:
        return Begun(How.DONE, output=_output(step, seen.input.get(step.expression or "")))
    return Begun(How.HANDED_OUT)


def _output(step: WorkflowTask, value: Json) -> Json:
    """Conductor's: the value as text, and the case that it selects."""
    case = java_text(value)
    if step.type == "DECISION":
        return {"caseOutput": [case]}
    return {"evaluationResult": [case], "selectedCase": case}


def chosen(step: WorkflowTask, output: bytes) -> tuple[Json, str]:
    """The output of an ended task, whoever evaluated it, and the case in it."""
    found = orjson.loads(output)
    if "result" in found:  # as a system worker reports it
        found = _output(step, found["result"])
    (case,) = found.get("evaluationResult") or found.get("caseOutput") or [java_text(found.get("selectedCase"))]
    return found, str(case)


def _enters(step: WorkflowTask, ended: TaskState) -> tuple[Steps, ...]:
    if not ended.output:  # it failed, and is optional
        return ()
    _, case = chosen(step, ended.output)
    steps = step.cases.get(case, step.default_case)
    return (steps,) if steps else ()


def _check(document: Mapping[str, Json], path: str) -> list[Violation]:
    if document.get("type") == "DECISION":
        if not document.get("caseValueParam") and not document.get("caseExpression"):
            return missing(document, path, "caseValueParam")
    else:
        found = missing(document, path, "evaluatorType", "expression")
        if found:
            return found
    if not document.get("decisionCases") and not document.get("defaultCase"):
        return missing(document, path, "decisionCases")
    return evaluator_violations(document, path, {VALUE_PARAM, *EVALUATORS})


def _given(step: WorkflowTask) -> Mapping[str, Json]:
    return {"evaluatorType": step.evaluator, "expression": step.expression}


def _type(about: str) -> TaskType:
    return TaskType(about=about, begin=_begin, enters=_enters, check=_check, given=_given, retries=3)


SWITCH = _type("runs the list of the case that a value selects, or the default one")
DECISION = _type("the older form of SWITCH")
