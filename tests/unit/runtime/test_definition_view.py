"""Which definitions a batch of starts is decided with: all that were committed before it was read, and its own."""

from __future__ import annotations

from collections.abc import Iterator

import orjson
import pytest

from broker_engine.model.commands import PutWorkflowDef
from broker_engine.testing import Engine, steps
from tests.support.looking import name_in, workflow

WORKFLOW = {"name": name_in(0, "film"), "tasks": [{"name": "work", "taskReferenceName": "a"}]}


@pytest.fixture
def engine() -> Iterator[Engine]:
    """Two deciders: what one registers the other must know."""
    with Engine(nodes=2) as engine:
        engine.run()
        assert [sorted(node.partitions) for node in engine.nodes] == [[0], [1]]
        yield engine


def step_all(engine: Engine, rounds: int = 3) -> None:
    for _ in range(rounds):
        for node in engine.nodes:
            node.step()


def put(engine: Engine) -> PutWorkflowDef:
    return PutWorkflowDef(key=WORKFLOW["name"], document=orjson.dumps(WORKFLOW), **engine.asked())


def test_a_start_knows_a_definition_that_is_committed_but_lags(engine: Engine) -> None:
    """The last stable offset lags a commit that has returned (61 of 300): reading to it, or not reading at all, would
    answer 404 to a client that has registered and then started."""
    engine.log.lag_lso = True
    engine.send(put(engine))
    step_all(engine)

    workflow_id = engine.submit(WORKFLOW["name"], workflow_id=name_in(1))
    step_all(engine)

    engine.log.lag_lso = False
    assert workflow(engine, workflow_id).status == "RUNNING"


def test_a_start_waits_for_a_lagging_definition_only_so_long(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that never ends must not stop the partition: decided with what is committed."""
    monkeypatch.setattr(steps, "_PATIENCE", 1_000_000)
    engine.log.lag_lso = True
    engine.send(put(engine))
    step_all(engine)

    engine.submit(WORKFLOW["name"], workflow_id=name_in(1))
    step_all(engine)
    engine.log.lag_lso = False
    engine.run()

    assert 404 in {answer.status for answer in engine.answers.values()}


def test_a_definition_counts_for_a_start_of_the_same_batch(engine: Engine) -> None:
    """It is not committed yet, so no reading could find it."""
    engine.send(put(engine))
    workflow_id = engine.submit(WORKFLOW["name"], workflow_id=name_in(0))
    engine.nodes[0].step()

    assert workflow(engine, workflow_id).status == "RUNNING"


def test_a_definition_of_an_aborted_batch_is_forgotten(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept, a later start would run by a definition that was never stored."""
    node = engine.nodes[0]
    assert node.session is not None
    engine.send(put(engine))
    definitions = node.session._definitions
    monkeypatch.setattr(node.session, "_write", _abort)
    node.step()

    assert definitions.workflow_versions(WORKFLOW["name"]) == ()


def _abort(_turn: object, _group: object) -> None:
    from broker_engine.errors import TransactionAborted

    raise TransactionAborted
