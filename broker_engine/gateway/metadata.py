"""`/api/metadata`: task and workflow definitions."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Response

from broker_engine.decider.definition_tree import parse_workflow_def
from broker_engine.decider.definitions import Parsed, parse_task_def
from broker_engine.errors import BadRequest, BrokerEngineError, NotFound, Violation
from broker_engine.gateway.answers import Engine, empty_answer, json_answer
from broker_engine.gateway.documents import bulk_document

router = APIRouter(prefix="/api/metadata", tags=["metadata"])

Document = dict[str, Any]
Documents = Annotated[list[Document], Body()]
One = Annotated[Document, Body()]
#: Definitions in one request.
MAX_DEFINITIONS = 1_000


@router.post("/taskdefs")
def create_task_definitions(engine: Engine, definitions: Documents, strict: bool = False) -> Response:
    """Register task definitions: all that are sent, or none if one is not valid."""
    warnings = _check([parse_task_def(one) for one in definitions], strict=strict)
    for one in definitions:
        engine.client.register_task(one)
    engine.tail.see_definitions()
    return empty_answer(warnings=warnings)


@router.put("/taskdefs")
def update_task_definition(engine: Engine, definition: One, strict: bool = False) -> Response:
    """Change one task definition, which must exist."""
    warnings = _check([parse_task_def(definition)], strict=strict)
    engine.client.register_task(definition, update=True)
    engine.tail.see_definitions()
    return empty_answer(warnings=warnings)


@router.get("/taskdefs")
def all_task_definitions(engine: Engine) -> Response:
    return json_answer([found for _, found in sorted(engine.tail.task_definitions().items())])


@router.get("/taskdefs/{name:path}")
def task_definition(engine: Engine, name: str) -> Response:
    found = engine.tail.task_definitions().get(name)
    if found is None:
        raise NotFound(f"there is no task definition {name}")
    return json_answer(found)


@router.delete("/taskdefs/{name:path}")
def delete_task_definition(engine: Engine, name: str) -> Response:
    """Remove a task definition; workflows that run keep their copy."""
    engine.client.delete_task(name)
    engine.tail.see_definitions()
    return empty_answer()


@router.post("/workflow")
def create_workflow_definition(
    engine: Engine, definition: One, overwrite: bool = False, strict: bool = False
) -> Response:
    """Register one version of a workflow definition; without ``overwrite`` one that exists is a conflict."""
    warnings = _check([parse_workflow_def(definition)], strict=strict)
    engine.client.register_workflow(definition, overwrite=overwrite)
    engine.tail.see_definitions()
    return empty_answer(warnings=warnings)


@router.put("/workflow")
def update_workflow_definitions(engine: Engine, definitions: Documents, overwrite: bool = True) -> Response:
    """Register many, each for itself; what was refused is listed with its reason."""
    _bounded(definitions)
    done, failed = [], {}
    for number, one in enumerate(definitions):
        name = str(one.get("name") or f"[{number}]")
        try:
            engine.client.register_workflow(one, overwrite=overwrite)
            done.append(name)
        except BadRequest as error:
            failed[name] = str(error)
        except BrokerEngineError as error:
            failed[name] = f"{type(error).__name__}: {error}"
    engine.tail.see_definitions()
    return json_answer(bulk_document(done, failed))


@router.post("/workflow/validate")
def validate_workflow_definition(definition: One) -> Response:
    """Check a workflow definition and store nothing."""
    return empty_answer(warnings=_check([parse_workflow_def(definition)], strict=False))


@router.get("/workflow")
def all_workflow_definitions(engine: Engine) -> Response:
    found = engine.tail.workflow_definitions().values()
    return json_answer(sorted(found, key=lambda one: (one["name"], one.get("version", 1))))


@router.get("/workflow/names-and-versions")
def names_and_versions(engine: Engine) -> Response:
    """The versions of each name."""
    names: dict[str, list[int]] = {}
    for one in engine.tail.workflow_definitions().values():
        names.setdefault(one["name"], []).append(one.get("version", 1))
    return json_answer({name: sorted(versions) for name, versions in sorted(names.items())})


@router.get("/workflow/{name}")
def workflow_definition(engine: Engine, name: str, version: int | None = None) -> Response:
    return json_answer(engine.workflow_definition(name, version))


@router.delete("/workflow/{name}/{version}")
def delete_workflow_definition(engine: Engine, name: str, version: int) -> Response:
    """Remove one version; workflows that run keep their copy."""
    engine.client.delete_workflow_definition(name, version)
    engine.tail.see_definitions()
    return empty_answer()


def _check(parsed: list[Parsed[Any]], *, strict: bool) -> list[str]:
    """Every violation of every definition at once; with several, its place stands before its path."""
    _bounded(parsed)
    violations: list[Violation] = []
    for number, one in enumerate(parsed):
        place = f"[{number}]." if len(parsed) > 1 else ""
        violations += [
            Violation(path=place + v.path, message=v.message, invalid_value=v.invalid_value) for v in one.violations
        ]
    warnings = [warning for one in parsed for warning in one.warnings]
    unknown = [warning for warning in warnings if "unknown" in warning.lower()]
    if strict:
        violations += [Violation(path="(strict)", message=warning) for warning in unknown]
    if violations:
        raise BadRequest(violations=tuple(violations))
    return warnings


def _bounded(listed: list[Any]) -> None:
    if len(listed) > MAX_DEFINITIONS:
        raise BadRequest(
            f"one request may hold {MAX_DEFINITIONS} definitions, not {len(listed)}: send several requests"
        )
