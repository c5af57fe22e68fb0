"""Registering definitions: validated, stamped and written by one writer, the decider of ``partition_of(name)``.

Task definitions are stored under their name, workflow definitions under ``name:version``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

import orjson

from broker_engine.decider.context import Context
from broker_engine.decider.definition_tree import parse_workflow_def
from broker_engine.decider.definitions import parse_json, parse_task_def
from broker_engine.decider.draft import reply
from broker_engine.errors import BadRequest, Conflict, NotFound, PayloadTooLarge, Violation
from broker_engine.model.caps import MAX_CAP, cap_key
from broker_engine.model.commands import (
    AllowStarts,
    ClearCap,
    Command,
    DeleteTaskDef,
    DeleteWorkflowDef,
    PutTaskDef,
    PutWorkflowDef,
    SetCap,
    StopStarts,
)
from broker_engine.model.decision import Decision, Output, WriteDefinition
from broker_engine.model.definitions import Json
from broker_engine.model.stops import is_queue_key

#: Bounds the record of a stop.
MAX_STOP = 2_000
#: Bounds the record of a cap.
MAX_CAP_NAME = 500

DefinitionCommand = (
    PutTaskDef | DeleteTaskDef | PutWorkflowDef | DeleteWorkflowDef | StopStarts | AllowStarts | SetCap | ClearCap
)


def decide_definition(command: DefinitionCommand, context: Context) -> Decision:
    """Check and store (or remove) a definition, and answer."""
    outputs: tuple[Output, ...]
    try:
        write, message = _written(command, context)
        outputs, status, ignored = (write,), 200, None
    except BadRequest as error:
        outputs, status, message = (), error.status, refusal(error)
        ignored = str(error)
    if command.reply_to is not None:
        outputs += (reply(command, status, message),)
    return Decision(execution=None, outputs=outputs, ignored=ignored)


def _written(command: DefinitionCommand, context: Context) -> tuple[WriteDefinition, str]:
    match command:
        case PutTaskDef():
            return _put_task_def(command, context)
        case PutWorkflowDef():
            return _put_workflow_def(command, context)
        case DeleteTaskDef():
            if context.definitions.task_def(command.key) is None:
                raise NotFound(f"there is no task definition {command.key}")
            return WriteDefinition(kind="task", key=command.key, document=None), command.key
        case DeleteWorkflowDef():
            if context.definitions.workflow_def(command.key, command.version) is None:
                raise NotFound(f"there is no workflow definition {command.key} version {command.version}")
            key = workflow_def_key(command.key, command.version)
            return WriteDefinition(kind="workflow", key=key, document=None), key
        case StopStarts():
            return _stop(command, context), command.key
        case AllowStarts():
            if context.definitions.stop(command.key) is None:
                raise NotFound(f"{command.key} is not {'paused' if is_queue_key(command.key) else 'stopped'}")
            return WriteDefinition(kind="stop", key=command.key, document=None), command.key
        case SetCap():
            return _cap(command, context), command.key
        case ClearCap():
            if context.definitions.cap(command.key) is None:
                raise NotFound(f"there is no cap {command.key}")
            return WriteDefinition(kind="cap", key=command.key, document=None), command.key
        case _:
            assert_never(command)


def _stop(command: StopStarts, context: Context) -> WriteDefinition:
    if len(command.key) + len(command.reason or "") > MAX_STOP:
        raise BadRequest(f"the name and the reason of a stop may have {MAX_STOP} characters together")
    document = {"operator": command.operator, "sinceMs": context.now_ms, "reason": command.reason}
    return WriteDefinition(kind="stop", key=command.key, document=orjson.dumps(document))


def _cap(command: SetCap, context: Context) -> WriteDefinition:
    kind, separator, name = command.key.partition(":")
    if command.key != cap_key() and not (separator and name and kind in ("tenant", "domain")):
        raise BadRequest(f"{command.key!r} names no cap: it must be all, tenant:NAME or domain:NAME")
    if len(command.key) > MAX_CAP_NAME:
        raise BadRequest(f"the name of a cap may have {MAX_CAP_NAME} characters, not {len(command.key)}")
    document = parse_json(command.document, what="the cap")
    limit = document.get("limit")
    if type(limit) is not int or not 1 <= limit <= MAX_CAP:
        raise BadRequest(f"limit must be a whole number from 1 to {MAX_CAP}, not {limit!r}: clear a cap to remove it")
    stored = {"limit": limit, "operator": command.operator, "sinceMs": context.now_ms}
    return WriteDefinition(kind="cap", key=command.key, document=orjson.dumps(stored))


def workflow_def_key(name: str, version: int) -> str:
    return f"{name}:{version}"


def _put_task_def(command: PutTaskDef, context: Context) -> tuple[WriteDefinition, str]:
    document = parse_json(command.document, what="the task definition")
    parsed = parse_task_def(document)
    definition = parsed.unwrap()
    check_key(command, definition.name)
    known = context.definitions.task_def(definition.name)
    if command.is_update and known is None:
        raise NotFound(f"there is no task definition {definition.name}: create it first")
    stamped = stamp(document, known.document if known and command.is_update else None, command, context)
    check_size(stamped, context)
    return WriteDefinition(kind="task", key=definition.name, document=stamped), _warnings(parsed.warnings)


def _put_workflow_def(command: PutWorkflowDef, context: Context) -> tuple[WriteDefinition, str]:
    document = parse_json(command.document, what="the workflow definition")
    parsed = parse_workflow_def(document)
    definition = parsed.unwrap()
    check_key(command, definition.name)
    known = context.definitions.workflow_def(definition.name, definition.version)
    if known is not None and not command.overwrite:
        raise Conflict(
            f"workflow definition {definition.name} version {definition.version} exists: "
            f"raise the version, or overwrite it"
        )
    stamped = stamp({**document, "version": definition.version}, None, command, context)
    check_size(stamped, context)
    key = workflow_def_key(definition.name, definition.version)
    return WriteDefinition(kind="workflow", key=key, document=stamped), _warnings(parsed.warnings)


def check_key(command: Command, name: str) -> None:
    """Raises BadRequest where the name in a document is not that of the command."""
    if command.key != name:
        raise BadRequest(
            violations=(
                Violation(
                    path="name",
                    message=f"must equal the command's key {command.key}",
                    invalid_value=name,
                ),
            )
        )


def check_size(document: bytes, context: Context) -> None:
    """Raises PayloadTooLarge for a document that does not fit into its record."""
    if len(document) > context.max_payload_bytes:
        raise PayloadTooLarge(f"the definition has {len(document)} bytes, the limit is {context.max_payload_bytes}")


def stamp(
    document: Mapping[str, Json],
    known: Mapping[str, Json] | None,
    command: Command,
    context: Context,
) -> bytes:
    """Who and when, as Conductor keeps it: a create sets ``create*``, an update keeps them and sets ``update*``."""
    now, who = context.now_ms, command.operator
    if known is None:
        audit = {"createTime": now, "createdBy": who, "updateTime": None, "updatedBy": None}
    else:
        audit = {
            "createTime": known.get("createTime"),
            "createdBy": known.get("createdBy"),
            "updateTime": now,
            "updatedBy": who,
        }
    return orjson.dumps({**document, **audit})


def _warnings(warnings: tuple[str, ...]) -> str:
    return orjson.dumps({"warnings": list(warnings)}).decode()


def refusal(error: BadRequest) -> str:
    """The answer to a definition that is refused, as JSON."""
    listed = [{"path": v.path, "message": v.message, "invalidValue": v.invalid_value} for v in error.violations]
    return orjson.dumps({"message": str(error), "validationErrors": listed}).decode()
