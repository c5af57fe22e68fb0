"""The table of task definition fields is whole and true."""

from pathlib import Path

import broker_engine
from broker_engine.decider.definitions import TASK_DEF_FIELDS
from broker_engine.decider.field_docs import FIELD_DOCS, Effect, markdown


def test_every_field_has_a_row() -> None:
    assert set(FIELD_DOCS) == set(TASK_DEF_FIELDS)


def test_what_is_called_enforced_or_shown_reaches_the_model() -> None:
    for name, doc in FIELD_DOCS.items():
        if doc.effect is not Effect.DOCUMENTATION:
            assert TASK_DEF_FIELDS[name].attribute is not None, name


def test_the_document_is_the_table() -> None:
    """Write it again with ``python -m broker_engine.decider.field_docs > broker_engine/TASK_DEFINITIONS.md``."""
    path = Path(broker_engine.__file__).with_name("TASK_DEFINITIONS.md")

    assert path.read_text() == markdown()
