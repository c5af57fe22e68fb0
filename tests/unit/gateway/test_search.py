"""The search grammar, on rows in a database of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_engine.errors import BadRequest
from broker_engine.gateway import search
from broker_engine.gateway.read_model import Changes, ReadModel, workflow_row, workflows
from broker_engine.model.state import WorkflowState
from broker_engine.model.status import WorkflowStatus
from broker_engine.wire.codecs import WORKFLOW_STATE


def a_workflow(workflow_id: str, *, at_ms: int = 0, **fields: object) -> WorkflowState:
    defaults: dict[str, object] = {
        **{"status": WorkflowStatus.RUNNING, "incarnation": "c-0-0", "name": "import", "version": 1},
        **{"definition_hash": "h", "input": b"{}"},
    }
    chosen = {**defaults, **fields, "workflow_id": workflow_id, "created_at_ms": at_ms, "updated_at_ms": at_ms}
    return WorkflowState(**chosen)  # type: ignore[arg-type]  # a builder


ROWS = (
    a_workflow("a", at_ms=1_000, correlation_id="order-1"),
    a_workflow("b", at_ms=2_000, name="export", correlation_id="order-2", priority=9),
    a_workflow("c", at_ms=3_000, status=WorkflowStatus.FAILED, reason="no AND yes", correlation_id="50%_off"),
    a_workflow("d", at_ms=4_000, input=b'{"colour": "Vermilion"}'),
)


@pytest.fixture
def model(tmp_path: Path) -> Iterator[ReadModel]:
    model = ReadModel(f"sqlite:///{tmp_path / 'm.sqlite'}")
    model.open("n@1", {}, 0)
    changes = Changes.none()
    for state in ROWS:
        changes.keep(workflows, state.workflow_id, workflow_row(state, WORKFLOW_STATE.encode(state), 0))
    model.write(changes, {}, 0)
    yield model
    model.close()


def found(model: ReadModel, query: str, sort: str | None = "workflowId", text: str | None = None) -> str:
    """The ids found, in order."""
    conditions = [*search.parse(query, workflows), *search.free_text(text, workflows)]
    page = model.find(workflows, conditions, search.order_by(sort, workflows), 0, 100)
    return "".join(WORKFLOW_STATE.decode(value).workflow_id for value in page.values)


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("", "abcd"),
        ("status = RUNNING", "abd"),
        ("status='RUNNING'", "abd"),
        ('status != "RUNNING"', "c"),
        ("workflowType IN (import, 'export') AND startTime > 1000", "bcd"),
        ("workflowType IN (export)", "b"),
        ("startTime >= 2000 and startTime <= 3000", "bc"),
        ("startTime < 2000", "a"),
        ("correlationId = 'order-*'", "ab"),
        ("correlationId != order-*", "cd"),
        ("correlationId = '50%_*'", "c"),
        ("correlationId = '5_%_*'", ""),
        ("reasonForIncompletion = 'no AND yes'", "c"),
        ("priority = 9", "b"),
        ("workflowId = \"x' OR '1'='1\"", ""),
        ("workflowId IN ()", ""),
    ],
)
def test_a_query_finds(model: ReadModel, query: str, ids: str) -> None:
    assert found(model, query) == ids


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("colour = red", "unknown field"),
        ("status RUNNING x", "operator"),
        ("status =", "middle of a condition"),
        ("status = = x", "value is missing"),
        ("status = RUNNING OR status = FAILED", "joined by AND"),
        ("status = RUNNING status = FAILED", "joined by AND"),
        ("startTime > yesterday", "whole number"),
        ("status IN RUNNING", "in parentheses"),
        ("status IN (RUNNING", "not closed"),
        ("status IN (a = b)", "joined by commas"),
        ("status = 'RUNNING", "cannot be read"),
    ],
)
def test_what_is_no_query_is_refused_with_its_place(query: str, says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        search.parse(query, workflows)


def test_pages_are_sorted_by_several_fields(model: ReadModel) -> None:
    assert found(model, "", "workflowType:DESC|startTime:ASC") == "acdb"
    assert found(model, "", None) == "dcba", "the newest first"
    with pytest.raises(BadRequest, match="ASC or DESC"):
        search.order_by("startTime:UP", workflows)


def test_free_text_finds_every_word_in_any_case(model: ReadModel) -> None:
    assert found(model, "", text="vermilion") == "d"
    assert found(model, "", text="IMPORT order") == "a"
    assert found(model, "", text="*") == "abcd"
    assert found(model, "", text="50%_") == "c"
