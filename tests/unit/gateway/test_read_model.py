"""The read model: what is kept, what is removed, and when it is of no use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_engine.errors import NotFound, UnsafeSettings
from broker_engine.gateway.read_model import MAX_AGE_MS, Changes, ReadModel, workflow_row, workflows
from broker_engine.log.ports import TopicPartition
from broker_engine.model.status import WorkflowStatus
from broker_engine.wire.codecs import WORKFLOW_STATE
from tests.unit.gateway.test_search import a_workflow

TP = TopicPartition("n.workflow-state", 0)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'm.sqlite'}"


@pytest.fixture
def model(url: str) -> Iterator[ReadModel]:
    model = ReadModel(url)
    model.open("n@1", {TP: 10}, 0)
    yield model
    model.close()


def put(model: ReadModel, workflow_id: str, offset: int, status: WorkflowStatus = WorkflowStatus.RUNNING) -> None:
    state, changes = a_workflow(workflow_id, status=status), Changes.none()
    changes.keep(workflows, workflow_id, workflow_row(state, WORKFLOW_STATE.encode(state), offset))
    model.write(changes, {TP: offset + 1}, 0)


def test_positions_are_stored_with_what_was_read(model: ReadModel, url: str) -> None:
    put(model, "a", 4)

    again = ReadModel(url)
    assert again.open("n@1", {TP: 10}, 0) == {TP: 5}
    assert again.workflow("a").status is WorkflowStatus.RUNNING
    again.close()


def test_an_older_record_replaces_no_newer_one(model: ReadModel) -> None:
    put(model, "a", 4, WorkflowStatus.COMPLETED)
    put(model, "a", 3)  # by another gateway on the same database that is behind

    assert model.workflow("a").status is WorkflowStatus.COMPLETED


def test_a_tombstone_removes_and_the_last_of_a_batch_counts(model: ReadModel) -> None:
    put(model, "a", 1)
    state, changes = a_workflow("b"), Changes.none()
    changes.remove(workflows, "a", 2)
    changes.keep(workflows, "b", workflow_row(state, WORKFLOW_STATE.encode(state), 3))
    changes.remove(workflows, "b", 4)
    model.write(changes, {TP: 5}, 0)

    for workflow_id in ("a", "b"):
        with pytest.raises(NotFound):
            model.workflow(workflow_id)


@pytest.mark.parametrize(
    ("origin", "end", "now_ms"),
    [("n@2", 10, 0), ("n@1", 4, 0), ("n@1", 10, MAX_AGE_MS + 1)],
    ids=["another namespace", "a topic made anew", "older than tombstones are kept"],
)
def test_a_copy_of_no_use_is_built_anew(model: ReadModel, url: str, origin: str, end: int, now_ms: int) -> None:
    put(model, "a", 4)

    again = ReadModel(url)
    assert again.open(origin, {TP: end}, now_ms) == {}
    with pytest.raises(NotFound):
        again.workflow("a")
    again.close()


def test_a_database_without_a_driver_is_refused_with_the_remedy() -> None:
    with pytest.raises(UnsafeSettings, match="pip install"):
        ReadModel("postgresql+nodriver://engine@db/engine")
