"""Rows 43 and 44: a crash between any two steps, and two deciders that want one partition.

In memory, where a process can be stopped at an exact point; the same with processes and kill -9 on a real broker is
tests/chaos.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog

from broker_engine.errors import LogError
from broker_engine.log.memory import Crashed
from broker_engine.model.status import Phase
from broker_engine.testing import Engine, Node
from broker_engine.worker import TaskFailed
from tests.support.looking import attempts, committed, name_in, schedules, workflow

#: Where a decider can die within a turn, in the order of its life.
CRASH_POINTS = ("before the batch is read", "before begin", "after sends", "before commit", "after commit before merge")
#: Which turn of a workflow of two tasks, the first of which fails once: start, started, failed, delay due, ...
TURNS = range(1, 9)


@pytest.fixture
def engine() -> Iterator[Engine]:
    with structlog.testing.capture_logs(), Engine() as engine:
        engine.run()
        engine.register_task({"name": "work", "retryCount": 1, "retryDelaySeconds": 1})
        engine.register_workflow(
            {"name": "film", "tasks": [{"name": "work", "taskReferenceName": name} for name in ("a", "b")]}
        )
        engine.run()
        yield engine


def crash_at(engine: Engine, node: Node, point: str, turn: int) -> None:
    """Let a node die at a point of its n-th turn from now."""
    log, turns = engine.log, [0]

    def die(_transactional_id: str) -> None:
        turns[0] += 1
        if turns[0] == turn:
            log.before_begin = log.before_commit = log.on_commit = None
            raise Crashed

    assert node.session is not None
    match point:
        case "before the batch is read":
            for _ in range(turn - 1):
                node.step()
            node.kill()
        case "before begin":
            log.before_begin = die
        case "after sends":
            writer = node.session._writer
            commit = writer.commit

            def die_before_offsets(*args: object) -> None:
                die("")
                commit(*args)  # type: ignore[arg-type]  # passed on

            writer.commit = die_before_offsets  # type: ignore[method-assign]  # the crash point
        case "before commit":
            log.before_commit = die
        case _:
            log.on_commit = die


def no_running_workflow_is_without_a_live_task(node: Node) -> bool:
    return all(
        any(not task.is_terminal for task in execution.tasks.values())
        for partition in node.partitions.values()
        for execution in partition.live.values()
    )


@pytest.mark.parametrize("point", CRASH_POINTS)
@pytest.mark.parametrize("turn", TURNS)
def test_row_43_a_crash_between_any_two_steps_hands_out_exactly_once(engine: Engine, point: str, turn: int) -> None:
    """Upstream re-pushes what a sweep finds missing. Here state, hand-out and consumed offset are one transaction, so
    there is nothing to find: exactly one hand-out is committed, nothing is lost, and a RUNNING workflow without a live
    task cannot exist after the restore."""

    def handler(_data: object, work: object) -> dict[str, object]:
        if work.reference == "a" and work.attempt == 0:  # type: ignore[attr-defined]  # a ScheduledTask
            raise TaskFailed("once")
        return {}

    engine.serve("work", handler)
    workflow_id = engine.submit("film", workflow_id=name_in(0))
    (node,) = engine.nodes
    crash_at(engine, node, point, turn)
    for _ in range(60):
        engine.clock.advance(100)
        engine.step()
        if not node.is_up:
            break
    engine.log.before_begin = engine.log.before_commit = engine.log.on_commit = None
    if not node.is_up:
        node.bury()
        node.start()
        while not node.partitions:
            node.step()
        assert no_running_workflow_is_without_a_live_task(node)
    engine.run(10)

    assert workflow(engine, workflow_id).status == "COMPLETED"
    handed_out = [(work.reference, work.attempt, work.hand_out) for work in schedules(engine)]
    assert sorted(handed_out) == [("a", 0, 1), ("a", 1, 1), ("b", 0, 1)]
    assert [task.phase for task in attempts(engine, workflow_id)] == [Phase.FAILED, Phase.SUCCEEDED, Phase.SUCCEEDED]


def test_row_44_the_loser_of_a_partition_is_fenced_and_no_wake_up_is_lost(engine: Engine) -> None:
    """Upstream re-queues a decide that did not get its lock. Here is no lock: both deciders decide the same start, one
    transaction commits, and the other's fails by the group membership that its offsets carry."""
    (loser,) = engine.nodes
    winner = engine.node("1")
    workflow_id = engine.submit("film", workflow_id=name_in(0))
    assert loser.session is not None
    lost: list[str] = []

    def overtake(_transactional_id: str) -> None:
        """The loser has decided the start. Before it writes, the group gives its partitions to the winner, who decides
        the same start."""
        engine.log.before_begin = None
        loser.suspend()
        for _ in range(5):
            winner.step()
        assert committed(engine).metadata.startswith("owned:1:")
        lost.append(workflow(engine, workflow_id).status.value)

    engine.log.before_begin = overtake
    survive = loser.processor.survive
    errors: list[LogError] = []

    def note(error: LogError) -> None:
        errors.append(error)
        survive(error)

    loser.processor.survive = note  # type: ignore[method-assign]  # watched
    loser.step()
    assert lost == ["RUNNING"]
    assert [type(error).__name__ for error in errors] == ["Fenced"]

    engine.nodes.append(winner)
    engine.serve("work")
    engine.run(5)
    assert workflow(engine, workflow_id).status == "COMPLETED"
    assert len(schedules(engine)) == 2


def test_row_44_a_report_that_arrives_while_the_partition_moves_is_decided(engine: Engine) -> None:
    """The wake-up is the record itself: it waits in the log for whoever owns the partition next."""
    worker = engine.serve("work", takes_ms=lambda _work: 500)
    workflow_id = engine.start("film", workflow_id=name_in(0))
    engine.run()
    (node,) = engine.nodes
    node.kill()
    engine.clock.advance(500)
    worker.step()  # reports, and nobody listens
    node.bury()
    engine.nodes.append(engine.node("1"))
    engine.run(5)

    assert workflow(engine, workflow_id).status == "COMPLETED"
    assert len(schedules(engine)) == 2
