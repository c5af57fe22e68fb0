"""Rows 26 to 28 end to end: the engine in memory, judged by what stands on its log; crashes between any two steps."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from broker_engine.errors import TransactionAborted
from broker_engine.log.memory import Crashed
from broker_engine.log.ports import TopicPartition
from broker_engine.model.caps import cap_key
from broker_engine.model.commands import ClearCap, SetCap
from broker_engine.model.limits import LIMIT_KEY
from broker_engine.model.state import TaskState
from broker_engine.model.status import WaitingFor
from broker_engine.runtime.restore import Restorer
from broker_engine.testing import Engine
from broker_engine.topics import Topic, partition_of
from broker_engine.wire.records import ScheduledTask
from broker_engine.worker import TaskFailed
from broker_engine.worker.diagnosis import diagnose
from broker_engine.worker.limits import LimitInUse, LimitsView
from tests.support import promises
from tests.support.looking import attempts, committed, last, names_in, schedules, workflow

#: Both partitions: that of the limiter and another one.
NAMES = [*names_in(0, 4), *names_in(1, 4)]


@pytest.fixture
def engine() -> Iterator[Engine]:
    with structlog.testing.capture_logs(), Engine() as engine:
        engine.run()
        yield engine


def register(engine: Engine, **fields: Any) -> None:
    engine.register_task({"name": "work", "retryCount": 0, "responseTimeoutSeconds": 60, **fields})
    engine.run()


def submit(engine: Engine, *names: str, data: dict[str, Any] | None = None) -> None:
    for name in names:
        engine.submit_task("work", data, workflow_id=name)


def tasks(engine: Engine) -> list[TaskState]:
    """The latest attempts of all workflows that were submitted."""
    return [task for view in engine.views.workflows() for task in engine.workflow(view.workflow_id).tasks]


def most_in_progress(engine: Engine, *only: str) -> int:
    records = promises.Records(engine.namespace, [*engine.records(Topic.EVENTS), *engine.records(Topic.TASK_STATE)])
    return promises.most_in_progress(
        records, {task.task_id for task in records.tasks() if not only or task.workflow_id in only}
    )


def starts(engine: Engine) -> list[int]:
    return sorted(task.started_at_ms for task in tasks(engine) if task.started_at_ms is not None)


def slots_left(engine: Engine) -> list[str]:
    return [key for node in engine.nodes for part in node.partitions.values() for key in part.limits.state.entries]


def all_ended(engine: Engine, names: list[str]) -> bool:
    return all(workflow(engine, name).status == "COMPLETED" for name in names)


def test_row_26_with_limit_1_the_next_starts_when_the_first_has_ended(engine: Engine) -> None:
    register(engine, concurrentExecLimit=1)
    engine.serve("work", takes_ms=lambda _work: 1_000)
    submit(engine, *NAMES[:3])
    engine.run(10)

    assert all_ended(engine, NAMES[:3])
    began, ended = starts(engine), sorted(task.ended_at_ms or 0 for task in tasks(engine))
    assert [later - before for later, before in zip(began[1:], ended, strict=False)] == [0, 0]


def test_row_27_with_limit_2_eight_tasks_are_never_more_than_two_at_once(engine: Engine) -> None:
    register(engine, concurrentExecLimit=2)
    for _ in range(2):
        engine.serve("work", takes_ms=lambda _work: 1_000)
    submit(engine, *NAMES)
    engine.run(20)

    assert all_ended(engine, NAMES)
    assert most_in_progress(engine) == 2
    assert slots_left(engine) == []


def test_row_27_a_waiting_task_says_what_it_waits_for_and_has_no_poll_clock(engine: Engine) -> None:
    register(engine, concurrentExecLimit=1, pollTimeoutSeconds=2, timeoutPolicy="TIME_OUT_WF")
    engine.serve("work", takes_ms=lambda _work: 30_000)
    submit(engine, *NAMES[:2])
    engine.run(20)

    (waits,) = (task for task in tasks(engine) if task.started_at_ms is None)
    assert (waits.phase, waits.waiting_for, waits.hand_out) == ("QUEUED", WaitingFor.SLOT, 0)


def test_row_28_a_rate_of_two_in_ten_seconds_holds_in_every_window(engine: Engine) -> None:
    register(engine, rateLimitPerFrequency=2, rateLimitFrequencyInSeconds=10)
    engine.serve("work")
    submit(engine, *NAMES)
    engine.run(60)

    assert all_ended(engine, NAMES)
    began = starts(engine)
    assert [third - first for first, third in zip(began, began[2:], strict=False)] >= [10_000] * 6
    assert began[-1] - began[0] <= 31_000


def test_a_lock_lets_one_task_per_value_run(engine: Engine) -> None:
    register(engine, resourceLock="${workflow.input.file}")
    engine.serve("work", takes_ms=lambda _work: 1_000)
    submit(engine, *NAMES[:3], data={"file": "a"})
    submit(engine, *NAMES[3:6], data={"file": "b"})
    submit(engine, *NAMES[6:])
    engine.run(10)

    assert all_ended(engine, NAMES)
    assert (most_in_progress(engine, *NAMES[:3]), most_in_progress(engine, *NAMES[3:6])) == (1, 1)
    assert most_in_progress(engine, *NAMES[6:]) == 2, "without a value there is no lock"
    assert most_in_progress(engine) == 4


def test_a_raised_limit_lets_waiters_in_and_a_lowered_one_none_until_there_is_room(engine: Engine) -> None:
    register(engine, concurrentExecLimit=1)
    engine.serve("work", takes_ms=lambda _work: 4_000)
    submit(engine, *NAMES)
    engine.run(1)
    register(engine, concurrentExecLimit=3)
    engine.run(2)
    raised = len(starts(engine))
    register(engine, concurrentExecLimit=1)
    engine.run(40)

    assert raised == 3
    assert all_ended(engine, NAMES)
    assert most_in_progress(engine) == 3
    late = starts(engine)[3:]
    assert [later - before for before, later in itertools.pairwise(late)] == [4_000] * 4


def test_a_grant_that_nobody_starts_in_time_is_void_and_its_slot_is_granted_anew(engine: Engine) -> None:
    register(engine, concurrentExecLimit=1)
    submit(engine, *NAMES[:3])
    engine.run(8)
    voided, current = sorted(schedules(engine), key=lambda work: work.scheduled_at_ms)
    worker = engine.serve("work", takes_ms=lambda _work: 100)
    engine.run(1)

    assert worker.refused == [voided]
    assert current in worker.ran
    assert all_ended(engine, NAMES[:3])
    assert most_in_progress(engine) == 1
    assert slots_left(engine) == []


def test_a_retry_gives_its_slot_back_and_asks_again(engine: Engine) -> None:
    register(engine, concurrentExecLimit=1, retryCount=1, retryDelaySeconds=5)

    def fails_once(_data: object, work: ScheduledTask) -> dict[str, Any]:
        if work.attempt == 0:
            raise TaskFailed("once")
        return {}

    engine.serve("work", fails_once, takes_ms=lambda _work: 1_000)
    submit(engine, *NAMES[:2])
    engine.run(20)

    assert all_ended(engine, NAMES[:2])
    assert most_in_progress(engine) == 1
    assert max(task.ended_at_ms or 0 for task in tasks(engine)) - min(starts(engine)) < 10_000, "back-offs overlap"


def test_a_terminated_workflow_gives_its_slot_back(engine: Engine) -> None:
    register(engine, concurrentExecLimit=1)
    engine.serve("work", takes_ms=lambda work: 50_000 if work.workflow_id == NAMES[0] else 0)
    submit(engine, NAMES[0])
    engine.run(1)
    submit(engine, NAMES[7])
    engine.run(1)
    assert last(engine, NAMES[7]).started_at_ms is None

    engine.terminate(NAMES[0])
    engine.run(1)

    assert workflow(engine, NAMES[7]).status == "COMPLETED"


def test_a_task_without_limits_tells_the_limiter_nothing(engine: Engine) -> None:
    register(engine)
    engine.serve("work")
    submit(engine, NAMES[0])
    engine.run(1)

    assert not engine.records(Topic.LIMIT_STATE)
    keys = {record.key for record in engine.records(Topic.COMMANDS)}
    assert LIMIT_KEY.encode() not in keys
    assert [work.start_before_ms for work in schedules(engine)] == [None]


def test_a_cap_holds_over_types_and_partitions_and_follows_its_setting_at_once(engine: Engine) -> None:
    """Raised it lets the next in at once, although nobody looks by itself; removed, everything is as without."""
    register(engine)
    engine.register_task({"name": "other", "retryCount": 0, "responseTimeoutSeconds": 60})
    engine.ask(SetCap(key=cap_key(), document=b'{"limit":2}', **engine.asked()))
    for task_type in ("work", "other"):
        engine.serve(task_type, takes_ms=lambda _work: 10_000)
    submit(engine, *NAMES[:6])
    engine.submit_task("other", workflow_id=NAMES[6])
    engine.run(1)
    first = len(starts(engine))
    engine.ask(SetCap(key=cap_key(), document=b'{"limit":5}', **engine.asked()))
    engine.run(0.1)
    raised = len(starts(engine))
    engine.ask(ClearCap(key=cap_key(), **engine.asked()))
    engine.run(30)

    assert (first, raised) == (2, 5)
    assert all_ended(engine, NAMES[:7])
    assert slots_left(engine) == []
    before = len(engine.records(Topic.LIMIT_STATE))
    submit(engine, NAMES[7])
    engine.run(30)
    assert len(engine.records(Topic.LIMIT_STATE)) == before, "without a cap a plain task tells the limiter nothing"


def test_what_a_capped_task_waits_for_is_named(engine: Engine) -> None:
    register(engine)
    engine.ask(SetCap(key=cap_key(), document=b'{"limit":1}', **engine.asked()))
    engine.serve("work", takes_ms=lambda _work: 10_000)
    submit(engine, *NAMES[:2])
    engine.run(1)

    (waits,) = (task for task in tasks(engine) if task.started_at_ms is None)
    view = LimitsView(engine.views)
    sentence = diagnose(engine.views, waits.task_id, None, engine.clock.now_ms()).sentence
    assert (waits.waiting_for, sentence) == (WaitingFor.SLOT, "1st in line for 1 slot of all tasks")
    assert view.in_use(engine.clock.now_ms()) == [LimitInUse("all tasks", 1, 1, 1)]


def test_a_slot_goes_to_the_next_task_in_the_transaction_of_its_release(engine: Engine) -> None:
    """Decider and limiter in one process: no command goes between them, over partitions either."""
    register(engine, concurrentExecLimit=1)
    engine.serve("work", takes_ms=lambda _work: 1_000)
    submit(engine, NAMES[0], NAMES[4])
    engine.run(5)

    assert all_ended(engine, [NAMES[0], NAMES[4]])
    keys = [record.key for record in engine.records(Topic.COMMANDS)]
    assert LIMIT_KEY.encode() not in keys


def test_a_limiter_in_another_process_is_told_by_commands() -> None:
    with structlog.testing.capture_logs(), Engine(nodes=2) as engine:
        engine.run(10)
        register(engine, concurrentExecLimit=1)
        engine.serve("work", takes_ms=lambda _work: 1_000)
        submit(engine, *NAMES)
        engine.run(20)

        assert all_ended(engine, NAMES)
        assert most_in_progress(engine) == 1
        assert slots_left(engine) == []
        assert LIMIT_KEY.encode() in {record.key for record in engine.records(Topic.COMMANDS)}


def test_a_limit_that_is_added_counts_from_the_next_step_on_wherever_it_is_decided() -> None:
    """The report that leads to the next step makes no decider look for definitions."""
    steps = [{"name": "work", "taskReferenceName": reference} for reference in ("a", "b")]
    with structlog.testing.capture_logs(), Engine(nodes=2) as engine:
        engine.run(10)
        register(engine)
        engine.register_workflow({"name": "two", "tasks": steps})
        engine.serve("work", takes_ms=lambda _work: 1_000)
        names = [*NAMES[:2], *NAMES[4:6]]
        for name in names:
            engine.start("two", workflow_id=name)
        engine.run(0.5)
        register(engine, concurrentExecLimit=1)
        engine.run(20)

        assert all_ended(engine, names)
        second = sorted(task.started_at_ms or 0 for task in tasks(engine) if task.reference == "b")
        assert [later - before for before, later in itertools.pairwise(second)] == [1_000] * 3


#: The outage is a crash after a commit and eight seconds without a decider: longer than a grant may take to start.
FAULTS = ("before begin", "before commit", "after commit before merge", "abort", "zombie", "outage")


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("turn", range(1, 13))
def test_no_fault_between_any_two_steps_loses_a_slot_or_lets_one_more_in(fault: str, turn: int) -> None:
    """Six tasks under limit 1, in both partitions; the fault strikes at the n-th transaction."""
    names = [*NAMES[:3], *NAMES[4:7]]
    with structlog.testing.capture_logs(), Engine() as engine:
        engine.run()
        register(engine, concurrentExecLimit=1)
        worker = engine.serve("work", takes_ms=lambda _work: 300)
        submit(engine, *names)
        (node,) = engine.nodes
        turns, struck = [0], []

        def strike(_transactional_id: str) -> None:
            turns[0] += 1
            if turns[0] != turn:
                return
            struck.append(fault)
            engine.log.before_begin = engine.log.before_commit = engine.log.on_commit = None
            if fault == "abort":
                engine.log.commit_errors = [TransactionAborted("drawn")]
            elif fault == "zombie":
                node.suspend()
            else:
                raise Crashed

        match fault:
            case "before commit":
                engine.log.before_commit = strike
            case "after commit before merge" | "outage":
                engine.log.on_commit = strike
            case _:
                engine.log.before_begin = strike
        for _ in range(200):
            engine.clock.advance(50)
            engine.step()
            if not node.is_up:
                for _ in range(160 if fault == "outage" else 0):
                    engine.clock.advance(50)
                    engine.step()
                node.bury()
                node.start()
        engine.log.before_begin = engine.log.before_commit = engine.log.on_commit = None
        engine.run(30)

        assert struck, "there are as many transactions"
        assert all_ended(engine, names)
        assert most_in_progress(engine) == 1
        assert slots_left(engine) == []
        assert len(worker.ran) == len(names), "each ran once"
        handed_out = [(work.task_id, work.hand_out) for work in schedules(engine)]
        assert len(handed_out) == len(set(handed_out))


def test_a_restored_limiter_is_the_one_that_was_live(engine: Engine) -> None:
    register(engine, concurrentExecLimit=1, rateLimitPerFrequency=3, rateLimitFrequencyInSeconds=60)
    engine.serve("work", takes_ms=lambda _work: 1_000)
    submit(engine, *NAMES)
    engine.run(1.5)
    number = partition_of(LIMIT_KEY, engine.partitions)
    live = engine.nodes[0].partitions[number].limits.state
    assert len({entry.stage for entry in live.entries.values()}) >= 2

    tp = TopicPartition(engine.namespace.topic(Topic.COMMANDS), number)
    with tempfile.TemporaryDirectory() as folder:
        restorer = Restorer(engine.log, engine.namespace, number, Path(folder) / "store", lambda: False)
        rebuilt = restorer.run({tp: committed(engine, number)})
        rebuilt.close()

    assert rebuilt.limits.state == live
    assert attempts(engine, NAMES[0])
