"""What runs outside the decider, by the workers of domain ``system``: scripts, transformations, calls, publications."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from broker_engine.decider.task_types.base import Begun, How, Seen, TaskType, hand_out, missing
from broker_engine.errors import Violation
from broker_engine.model.definitions import Json, WorkflowTask

VALUE_PARAM = "value-param"
#: Names of evaluators that mean JavaScript.
EVALUATORS = ("javascript", "graaljs")


def evaluator_violations(document: Mapping[str, Json], path: str, known: set[str]) -> list[Violation]:
    """An evaluator that nobody here understands."""
    evaluator = document.get("evaluatorType")
    if evaluator is None or evaluator in known:
        return []
    message = f"must be one of {', '.join(sorted(known))}"
    return [Violation(path=f"{path}evaluatorType", message=message, invalid_value=evaluator)]


def _inline(step: WorkflowTask, seen: Seen) -> Begun:
    if seen.input.get("evaluatorType") == VALUE_PARAM:
        return Begun(How.DONE, output={"result": seen.input.get(str(seen.input.get("expression")))})
    return hand_out(step, seen)


def _check_inline(document: Mapping[str, Json], path: str) -> list[Violation]:
    return _needs("expression")(document, path) or evaluator_violations(
        document.get("inputParameters") or {}, f"{path}inputParameters.", {VALUE_PARAM, *EVALUATORS}
    )


def _needs(*names: str) -> Callable[[Mapping[str, Json], str], list[Violation]]:
    """The input parameters that must be there (unless one expression gives all of them)."""

    def check(document: Mapping[str, Json], path: str) -> list[Violation]:
        given = document.get("inputParameters")
        if isinstance(given, str):
            return []
        inputs = {"type": document.get("type"), **(given if isinstance(given, Mapping) else {})}
        return missing(inputs, f"{path}inputParameters.", *names)

    return check


def _check_http(document: Mapping[str, Json], path: str) -> list[Violation]:
    given = document.get("inputParameters")
    if isinstance(given, Mapping) and "http_request" in given:
        request = given["http_request"]
        inside = {"type": "HTTP", **request} if isinstance(request, Mapping) else None
        return missing(inside, f"{path}inputParameters.http_request.", "uri") if inside is not None else []
    return _needs("uri")(document, path)


def _check_lambda(document: Mapping[str, Json], path: str) -> list[Violation]:
    return [] if document.get("scriptExpression") else _needs("scriptExpression")(document, path)


def _check_event(document: Mapping[str, Json], path: str) -> list[Violation]:
    found = missing(document, path, "sink")
    sink = document.get("sink")
    if isinstance(sink, str) and sink and "${" not in sink and not (sink.startswith("kafka:") and sink != "kafka:"):
        found.append(Violation(path=f"{path}sink", message="must be kafka:<topic>", invalid_value=sink))
    return found


INLINE = TaskType(about="a script, or one of its inputs", begin=_inline, check=_check_inline, retries=3)
LAMBDA = TaskType(
    about="the older form of INLINE: the body of a function",
    begin=hand_out,
    check=_check_lambda,
    given=lambda step: {"scriptExpression": step.script} if step.script else {},
    retries=3,
)
JSON_JQ_TRANSFORM = TaskType(
    about="a jq program over its input", begin=hand_out, check=_needs("queryExpression"), retries=3
)
HTTP = TaskType(about="an HTTP request", begin=hand_out, check=_check_http)
KAFKA_PUBLISH = TaskType(about="a record on any topic", begin=hand_out, check=_needs("kafka_request"))
EVENT = TaskType(
    about="a record with its input on the topic of its sink",
    begin=hand_out,
    check=_check_event,
    given=lambda step: {"sink": step.sink},
)
