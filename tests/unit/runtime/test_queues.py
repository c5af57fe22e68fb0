"""A queue's topic: made when it is needed, and never written to before it exists."""

from __future__ import annotations

from broker_engine.model.commands import QueueReady
from broker_engine.testing import Engine
from tests.support.looking import aborted, commands, last, name_in, schedules, workflow


def test_a_task_without_a_topic_waits_visibly_and_runs_when_the_topic_is_there(engine: Engine) -> None:
    """A record for a missing topic stalls its transaction for 15 s and aborts it: everything in the batch waits."""
    worker = engine.serve("work")
    workflow_id = engine.submit_task("work")
    (node,) = engine.nodes
    node.step()  # decides the start; making the topic is a step of its own

    task = last(engine, workflow_id)
    assert (task.waiting_for, task.hand_out) == ("topic", 0)
    assert "test.schedule.default.work" not in engine.log.cluster.topics

    engine.run()

    assert len(commands(engine, QueueReady)) == 1
    assert [(work.workflow_id, work.hand_out) for work in schedules(engine)] == [(workflow_id, 1)]
    assert [work.workflow_id for work in worker.ran] == [workflow_id]
    assert workflow(engine, workflow_id).status == "COMPLETED"
    assert aborted(engine) == 0


def test_a_task_without_a_topic_is_woken_by_the_next_owner(engine: Engine) -> None:
    """Its request died with the process that made it."""
    worker = engine.serve("work")
    workflow_id = engine.submit_task("work")
    (node,) = engine.nodes
    node.step()
    node.kill()
    node.bury()
    node.start()
    engine.run()

    assert [work.workflow_id for work in worker.ran] == [workflow_id]


def test_other_workflows_run_while_one_waits_for_its_topic(engine: Engine) -> None:
    engine.register_task({"name": "work"})
    engine.run()
    worker = engine.serve("work")
    engine.submit_task("unknown", workflow_id=name_in(0, "a"))
    engine.submit_task("work", workflow_id=name_in(0, "b"))
    engine.run()

    assert len(worker.ran) == 1
    assert aborted(engine) == 0


def test_registering_a_task_makes_its_topic(engine: Engine) -> None:
    engine.register_task({"name": "work"})
    engine.run()

    assert "test.schedule.default.work" in engine.log.cluster.topics
