"""When a deadline fires: never by a machine's clock, only by what has been read; and so that it does fire.

Tasks here are given to a worker that dies unless a test says otherwise; their response time-out is 10 s.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker_engine.model.commands import TerminateWorkflow, Tick
from broker_engine.testing import Behaviour, Engine, SteppedWorker
from broker_engine.topics import Topic
from tests.support.looking import attempts, commands, last, name_in, names_in

RESPONSE_MS = 10_000
GRACE_MS = 6_000
WORK = {"name": "work", "responseTimeoutSeconds": 10, "timeoutSeconds": 0, "retryCount": 3, "retryDelaySeconds": 1}


def dies(_work: object) -> Behaviour:
    return Behaviour.DIES_RUNNING


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine() as engine:
        engine.run()
        engine.register_task(WORK)
        yield engine


def running(engine: Engine, **worker: object) -> tuple[str, SteppedWorker]:
    """A workflow whose task has just been started."""
    serving = engine.serve("work", **worker)  # type: ignore[arg-type]  # fields of SteppedWorker
    workflow_id = engine.start_task("work", workflow_id=name_in(0))
    engine.run()
    assert last(engine, workflow_id).phase == "RUNNING"
    return workflow_id, serving


def step(engine: Engine, rounds: int = 4) -> None:
    """The deciders alone go on."""
    for _ in range(rounds):
        for node in engine.nodes:
            node.step()


def test_a_deadline_fires_on_an_idle_partition(engine: Engine) -> None:
    """Nobody sends anything: without the owner's own tick the task would run for ever."""
    workflow_id, _ = running(engine, behaves=dies)
    engine.run(10)

    first, second = attempts(engine, workflow_id)
    assert first.status == "TIMED_OUT"
    assert first.ended_at_ms == first.updated_at_ms == first.started_at_ms + RESPONSE_MS  # type: ignore[operator]
    assert second.attempt == 1


def test_a_deadline_fires_only_after_a_record_of_its_time_was_read(engine: Engine) -> None:
    """The clock alone proves nothing: the result may stand in the log already, unread."""
    workflow_id, _ = running(engine, behaves=dies)
    engine.run(8)  # with ticks on the way, so that the last step is no gap
    engine.clock.advance(2_000)
    (node,) = engine.nodes
    assert node.session is not None
    before = len(commands(engine))
    node.session._activate()
    node.session._ticker.serve(node.partitions.values())  # at most a tick is sent; nothing is decided
    assert last(engine, workflow_id).phase == "RUNNING"
    assert len(commands(engine)) == before + 1

    step(engine)
    assert attempts(engine, workflow_id)[0].status == "TIMED_OUT"


def test_a_result_that_is_in_the_log_already_wins(engine: Engine) -> None:
    """The decider was busy elsewhere while the deadline passed; the result came in time."""
    workflow_id, worker = running(engine, takes_ms=lambda _work: 3_000)
    engine.clock.advance(3_000)
    worker.step()
    engine.clock.advance(RESPONSE_MS)
    step(engine)

    assert [task.status for task in attempts(engine, workflow_id)] == ["COMPLETED"]


def test_a_result_that_is_itself_the_first_record_past_the_deadline_counts(engine: Engine) -> None:
    """The record is decided before the deadlines that its time lets pass."""
    workflow_id, worker = running(engine, takes_ms=lambda _work: RESPONSE_MS + 1)
    engine.run(8)  # with ticks on the way, so that the last step is no gap
    engine.clock.advance(RESPONSE_MS - 8_000 + 1)
    worker.step()
    step(engine)

    assert [task.status for task in attempts(engine, workflow_id)] == ["COMPLETED"]


def test_one_tick_is_outstanding_at_most(engine: Engine) -> None:
    """A tick for every round of the loop would flood a partition that is slow to answer."""
    running(engine, behaves=dies)
    engine.clock.advance(RESPONSE_MS)
    (node,) = engine.nodes
    assert node.session is not None
    for _ in range(5):
        engine.clock.advance(100)
        node.session._ticker.serve(node.partitions.values())

    assert len(commands(engine, Tick)) == 1


def test_a_backlog_is_not_answered_with_a_tick_per_turn() -> None:
    """Every record of the backlog is read before the tick: none of them takes its place."""
    with Engine(batch_records=2) as engine:
        engine.run()
        engine.register_task(WORK)
        running(engine, behaves=dies)
        for name in names_in(0, 20, "backlog"):
            engine.send(TerminateWorkflow(key=name))
        before = len(commands(engine, Tick))
        for _ in range(8):
            engine.clock.advance(1_000)  # a slow machine: log time stays behind
            step(engine, 1)

        assert len(commands(engine, Tick)) - before == 1


def test_a_lost_tick_is_sent_again(engine: Engine) -> None:
    workflow_id, _ = running(engine, behaves=dies)
    engine.clock.advance(RESPONSE_MS)
    (node,) = engine.nodes
    assert node.session is not None
    partition = node.partitions[0]
    partition.tick_outstanding = True  # sent, and never to be read
    node.session._ticker._sent_ms[0] = engine.clock.now_ms()
    engine.run(11 + GRACE_MS / 1_000)  # the gap looks like an outage

    assert attempts(engine, workflow_id)[0].status == "TIMED_OUT"


def test_ticks_keep_gaps_in_log_time_small_while_a_deadline_waits(engine: Engine) -> None:
    """A larger gap means an outage; a quiet minute must not look like one, or the deadline would wait for nothing."""
    engine.register_task({**WORK, "name": "slow", "responseTimeoutSeconds": 60})
    engine.serve("slow", behaves=dies)
    workflow_id = engine.start_task("slow", workflow_id=name_in(0))
    engine.run(61)

    moments = [record.timestamp_ms for record in engine.records(Topic.COMMANDS, 0)]
    start = moments.index(next(r.timestamp_ms for c, r in commands(engine) if c.key == workflow_id))
    gaps = [after - before for before, after in zip(moments[start:], moments[start + 1 :], strict=False)]
    assert max(gaps) <= 5_000
    first = attempts(engine, workflow_id)[0]
    assert first.ended_at_ms == (first.started_at_ms or 0) + 60_000


def test_a_quiet_partition_without_deadlines_gets_no_ticks(engine: Engine) -> None:
    engine.run(60)

    assert commands(engine, Tick) == []


def test_a_tick_before_its_time_is_followed_by_another_one_not_at_once(engine: Engine) -> None:
    """The broker's clock was set back: each tick comes back too early. A tick per round would fill the log."""
    running(engine, behaves=dies)
    engine.run(3)
    before = len(commands(engine, Tick))
    own = engine.clock.now_ms
    engine.log.cluster.clock = lambda: own() - 5_000
    engine.clock.advance(3_000)  # due by the own clock, and for five more seconds not by the broker's
    for _ in range(100):
        engine.clock.advance(1)
        step(engine, 1)

    assert 1 <= len(commands(engine, Tick)) - before <= 7


# --- after a takeover or an outage ------------------------------------------------------------------------------------


def restart(engine: Engine) -> None:
    (node,) = engine.nodes
    node.kill()
    node.bury()
    node.start()


def test_after_a_takeover_deadlines_wait_one_session_time_out(engine: Engine) -> None:
    """Reports may be queued in workers' producers: whoever kept the deadlines strictly would time healthy work out."""
    workflow_id, _ = running(engine, behaves=dies)
    engine.run(8)
    restart(engine)  # no gap in log time: the takeover alone is the reason to wait
    engine.run(5)
    assert last(engine, workflow_id).phase == "RUNNING"

    engine.run(2)
    assert attempts(engine, workflow_id)[0].status == "TIMED_OUT"


def test_a_report_that_comes_within_the_wait_counts(engine: Engine) -> None:
    workflow_id, _ = running(engine, takes_ms=lambda _work: RESPONSE_MS + 3_000)
    restart(engine)
    engine.clock.advance(RESPONSE_MS)
    engine.run(5)

    assert [task.status for task in attempts(engine, workflow_id)] == ["COMPLETED"]


def test_the_wait_begins_with_the_first_record_though_the_clock_stands(engine: Engine) -> None:
    """A first record that is not newer than the checkpoint: taken for none, tick would follow tick without end."""
    running(engine, behaves=dies)
    restart(engine)
    engine.run()

    assert len(commands(engine, Tick)) <= 2


def test_after_an_outage_deadlines_wait_one_session_time_out(engine: Engine) -> None:
    """A gap of more than 5 s although a deadline waited: nobody could write, so nobody's silence means anything."""
    workflow_id, _ = running(engine, takes_ms=lambda _work: 20_000 + 2_000)
    engine.clock.advance(20_000)  # nothing moves: no decider, no broker, no worker
    engine.run(3)

    assert [task.status for task in attempts(engine, workflow_id)] == ["COMPLETED"]


def test_an_aborted_turn_sets_the_clocks_back(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read again with the clock of the aborted turn, the deadline would fire before the result that came in time."""
    from broker_engine.errors import TransactionAborted

    workflow_id, worker = running(engine, takes_ms=lambda _work: 1_000)
    engine.clock.advance(1_000)
    worker.step()
    (node,) = engine.nodes
    assert node.session is not None
    partition = node.partitions[0]
    before = (partition.log_time_ms, partition.grace_until_ms, partition.is_fresh, partition.next_due_ms())
    write, tries = node.session._write, []

    def once(turn: object, group: object) -> None:
        tries.append(turn)
        if len(tries) == 1:
            raise TransactionAborted
        write(turn, group)  # type: ignore[arg-type]  # a Turn and a Group

    monkeypatch.setattr(node.session, "_write", once)
    node.step()
    assert tries
    assert (partition.log_time_ms, partition.grace_until_ms, partition.is_fresh, partition.next_due_ms()) == before

    step(engine)
    assert [task.status for task in attempts(engine, workflow_id)] == ["COMPLETED"]
