"""Finished workflows are forgotten when their retention ends, everywhere, and nothing brings them back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_engine.errors import NotFound
from broker_engine.runtime.retention import BATCH
from broker_engine.runtime.store import FinishedStore
from broker_engine.testing import Engine
from broker_engine.topics import Topic
from broker_engine.worker import TaskFailed
from tests.support.looking import name_in, names_in

RETENTION_S = 60
TASK = {"name": "work", "retryCount": 2, "retryDelaySeconds": 1}


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine(retention_ms=RETENTION_S * 1_000) as engine:
        engine.run()
        engine.register_task(TASK)
        yield engine


def later(engine: Engine) -> None:
    """Retention is over, and log time has noticed."""
    engine.clock.advance(RETENTION_S * 1_000 + 1)
    for number in (0, 1):
        engine.start_task("idle", workflow_id=name_in(number, "later"))
    for _ in range(3):
        engine.clock.advance(5_000)
        engine.run()


def states(engine: Engine, topic: Topic) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in engine.records(topic)}


def test_a_finished_workflow_is_tombstoned_with_all_its_attempts(engine: Engine) -> None:
    """What is not tombstoned stays on the compacted topics for ever: every restore would read it."""

    def handler(_data: object, work: object) -> dict[str, object]:
        if work.attempt == 0:  # type: ignore[attr-defined]  # a ScheduledTask
            raise TaskFailed("not yet")
        return {}

    engine.serve("work", handler)
    workflow_id = engine.start_task("work")
    engine.run(2)
    attempts = [task.task_id.encode() for task in engine.workflow(workflow_id).tasks]
    assert len(attempts) == 2

    later(engine)
    assert states(engine, Topic.WORKFLOW_STATE)[workflow_id.encode()] is None
    assert [states(engine, Topic.TASK_STATE)[key] for key in attempts] == [None, None]
    with pytest.raises(NotFound):
        engine.workflow(workflow_id)


def test_a_live_workflow_is_kept_however_old(engine: Engine) -> None:
    workflow_id = engine.start_task("work")
    later(engine)

    assert engine.workflow(workflow_id).status == "RUNNING"


def test_an_id_that_runs_again_is_kept(engine: Engine) -> None:
    """The first run's end is past the retention, the second is what the id stands for."""
    from broker_engine.model.commands import IdempotencyStrategy, StartWorkflow

    worker = engine.serve("work")
    workflow_id = engine.start_task("work", workflow_id=name_in(0))
    engine.run()
    engine.workers.clear()
    again = StartWorkflow(
        key=workflow_id,
        name="work",
        definition=b'{"name": "work", "tasks": [{"name": "work", "taskReferenceName": "work"}]}',
        strategy=IdempotencyStrategy.FAIL_ON_RUNNING,
        **engine.asked(),
    )
    engine.ask(again)
    later(engine)

    assert engine.workflow(workflow_id).workflow.run == 1
    assert len(worker.ran) == 1


def test_more_than_a_batch_is_forgotten_in_several(engine: Engine) -> None:
    engine.serve("work")
    names = names_in(0, BATCH + 5, "many")
    for name in names:
        engine.submit_task("work", workflow_id=name)
    engine.run()
    later(engine)

    left = states(engine, Topic.WORKFLOW_STATE)
    assert {left[name.encode()] for name in names} == {None}


def test_a_forgotten_workflow_stays_forgotten_after_a_restart(engine: Engine) -> None:
    engine.serve("work")
    workflow_id = engine.start_task("work", workflow_id=name_in(0))
    later(engine)
    (node,) = engine.nodes
    node.kill()
    node.bury()
    engine.log.compact("test.workflow-state", remove_tombstones=True)
    engine.log.compact("test.task-state", remove_tombstones=True)
    node.start()
    engine.run()

    assert node.partitions[0].execution(workflow_id) is None


def test_a_workflow_that_was_restored_is_forgotten_in_time_too(engine: Engine) -> None:
    engine.serve("work")
    workflow_id = engine.start_task("work", workflow_id=name_in(0))
    engine.run()
    (node,) = engine.nodes
    node.kill()
    node.bury()
    node.start()
    later(engine)

    assert states(engine, Topic.WORKFLOW_STATE)[workflow_id.encode()] is None
    assert set(states(engine, Topic.TASK_STATE).values()) != set()


def test_earlier_runs_are_forgotten_after_a_restart_too(engine: Engine) -> None:
    """Their task states stand on the compacted topic like the last run's."""
    from broker_engine.model.commands import IdempotencyStrategy, StartWorkflow

    engine.serve("work")
    workflow_id = engine.start_task("work", workflow_id=name_in(0))
    engine.run()
    (first,) = engine.workflow(workflow_id).tasks
    again = StartWorkflow(
        key=workflow_id,
        name="work",
        definition=b'{"name": "work", "tasks": [{"name": "work", "taskReferenceName": "work"}]}',
        strategy=IdempotencyStrategy.FAIL_ON_RUNNING,
        **engine.asked(),
    )
    engine.workers[0].takes_ms = lambda _work: 1_000
    engine.ask(again)
    (node,) = engine.nodes
    node.kill()
    node.bury()
    node.start()  # restored while the second run lives
    engine.run(2)
    later(engine)

    assert states(engine, Topic.WORKFLOW_STATE)[workflow_id.encode()] is None
    assert states(engine, Topic.TASK_STATE)[first.task_id.encode()] is None


def test_a_local_store_begins_empty(tmp_path: Path) -> None:
    """A folder that is older than the tombstones on the log would bring removed workflows back."""
    store = FinishedStore(tmp_path / "store")
    store.put_workflow("old", b"state", 1)
    store.flush()
    store._db.close()  # a crash: the folder stays

    again = FinishedStore(tmp_path / "store")
    assert again.workflow("old") is None
    assert again.ended_before(2, 10) == []
    again.close()


def test_a_closed_store_leaves_nothing_behind(tmp_path: Path) -> None:
    store = FinishedStore(tmp_path / "store")
    store.put_workflow("old", b"state", 1)
    store.close()

    assert not (tmp_path / "store").exists()


def test_an_idle_partition_forgets_too(engine: Engine) -> None:
    """Its log time stands still; by log time it would keep its last workflows for ever."""
    engine.serve("work", lambda _data, _work: {})
    workflow_id = engine.start_task("work", workflow_id=name_in(0))
    engine.run()
    assert states(engine, Topic.WORKFLOW_STATE)[workflow_id.encode()] is not None

    engine.clock.advance(RETENTION_S * 1_000 + 1)
    for _ in range(3):
        engine.clock.advance(5_000)
        engine.run()

    assert states(engine, Topic.WORKFLOW_STATE)[workflow_id.encode()] is None
