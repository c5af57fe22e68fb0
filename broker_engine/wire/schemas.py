"""The released schemas and their ids, read from ``schemas/``.

``schemas/<subject>/v<N>.avsc`` are immutable once released; ``schemas/index.json`` gives each its id (the four bytes
after the magic byte of a record) and its fingerprint.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from broker_engine.wire.avro import Schema, strip_logical_types


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredSchema:
    """One released schema version. ``schema`` is as released; ``plain`` has its logical types stripped."""

    id: int
    subject: str
    version: int
    schema: Schema
    plain: Schema


def schema_folder() -> Traversable:
    """The folder of the released schemas: inside the installed package, or beside it in a checkout."""
    packaged = files("broker_engine") / "schemas"
    return packaged if packaged.is_dir() else Path(__file__).resolve().parents[2] / "schemas"


@cache
def registered_schemas() -> dict[int, RegisteredSchema]:
    """Every released schema by id."""
    folder = schema_folder()
    index = json.loads((folder / "index.json").read_text())
    found = {}
    for entry in index["schemas"]:
        schema = json.loads((folder / entry["subject"] / f"v{entry['version']}.avsc").read_text())
        found[entry["id"]] = RegisteredSchema(
            id=entry["id"],
            subject=entry["subject"],
            version=entry["version"],
            schema=schema,
            plain=strip_logical_types(schema),
        )
    return found


def versions(subject: str) -> list[RegisteredSchema]:
    """The released versions of a subject, oldest first."""
    found = [schema for schema in registered_schemas().values() if schema.subject == subject]
    return sorted(found, key=lambda schema: schema.version)
