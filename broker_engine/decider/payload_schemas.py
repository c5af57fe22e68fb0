"""JSON Schema of inputs and outputs: checked when a definition says ``enforceSchema`` (D17).

A schema stands in a definition as Conductor's SchemaDef (``{"name": …, "type": "JSON", "data": {…}}``) or as the bare
JSON Schema. References are resolved inside the schema only: nothing is fetched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import orjson
from jsonschema.exceptions import SchemaError, ValidationError, best_match
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

from broker_engine.errors import Violation
from broker_engine.model.definitions import Json

_KINDS = ("JSON", "AVRO", "PROTOBUF")
_MAX_SHOWN = 200


def schema_problem(schema: Mapping[str, Json], *, is_enforced: bool) -> tuple[str, str] | None:
    """What is wrong with a schema in a definition, as (path below the field, message)."""
    kind = schema.get("type")
    if kind in _KINDS:
        if kind != "JSON":
            return (".type", "only JSON can be enforced: leave enforceSchema off or use JSON") if is_enforced else None
        if schema.get("data") is None:
            return (".data", "is required where enforceSchema is on") if is_enforced else None
    document = _document(schema)
    if not isinstance(document, dict):
        return ".data", "must be a JSON Schema, which is an object"
    try:
        validator_for(document).check_schema(document)
    except SchemaError as error:
        return f".data{_path(error.absolute_path)}" if kind in _KINDS else _path(error.absolute_path), error.message
    return None


def payload_problem(schema: Mapping[str, Json] | None, payload: bytes) -> str | None:
    """The first thing about a JSON payload that its schema forbids: ``/amount: 'x' is not of type 'integer'``."""
    if schema is None or schema.get("type") in _KINDS[1:]:
        return None
    document = _document(schema)
    if document is None:
        return None
    try:
        error = best_match(_validator(orjson.dumps(document)).iter_errors(orjson.loads(payload)))
    except Unresolvable as missing:
        return f"the schema refers to {missing.ref!r}, which is not part of it"
    return None if error is None else _sentence(error)


def _document(schema: Mapping[str, Json]) -> Json:
    return schema.get("data") if schema.get("type") in _KINDS else schema


@lru_cache(maxsize=1_024)
def _validator(document: bytes) -> Validator:
    schema = orjson.loads(document)
    empty: Registry[Any] = Registry()  # knows no other document and fetches none
    return validator_for(schema)(schema, registry=empty)


def _sentence(error: ValidationError) -> str:
    return f"{_path(error.absolute_path) or '/'}: {error.message[:_MAX_SHOWN]}"


def _path(parts: Iterable[str | int]) -> str:
    return "".join(f"/{part}" for part in parts)


def schema_violations(attributes: Mapping[str, Json], path: str) -> list[Violation]:
    """What is wrong with the schemas of a definition; ``attributes``: its fields as read."""
    violations = []
    for attribute, name in (("input_schema", "inputSchema"), ("output_schema", "outputSchema")):
        schema = attributes.get(attribute)
        if schema is None:
            continue
        problem = schema_problem(schema, is_enforced=bool(attributes.get("enforce_schema")))
        if problem is not None:
            below, message = problem
            violations.append(Violation(path=f"{path}{name}{below}", message=message, invalid_value=schema))
    return violations
