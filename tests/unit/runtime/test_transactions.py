"""One transaction per turn: what it carries, and what happens when it does not commit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from broker_engine.errors import LogError, Retriable, TransactionAborted
from broker_engine.log.memory.partitions import Outcome
from broker_engine.model.commands import TaskReported, TaskStarted, TerminateWorkflow
from broker_engine.model.status import ReportStatus
from broker_engine.runtime.commits import LateCommits
from broker_engine.testing import Engine, Node
from broker_engine.topics import Topic
from broker_engine.wire.codecs import TASK_STATE
from broker_engine.worker import TaskFailed
from tests.support.looking import aborted, name_in, schedules, transactions, workflow

TASK = {"name": "work", "retryCount": 1, "retryDelaySeconds": 0}


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine(retention_ms=60_000) as engine:
        engine.run()
        engine.register_task(TASK)
        engine.run()
        yield engine


def only(engine: Engine) -> Node:
    (node,) = engine.nodes
    assert node.session is not None
    return node


class Writing:
    """Watches what a node's transactions are made of, and fails commits on demand."""

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        assert node.session is not None
        self.turns: list[list[tuple[Any, ...]]] = []
        self.aborts = 0
        self.errors: list[LogError] = []
        writer = node.session._writer
        begin, send, commit, abort = writer.begin, writer.send, writer.commit, writer.abort

        def watched_begin(*args: Any) -> None:
            self.turns.append([])
            begin(*args)

        def watched_send(*record: Any) -> None:
            self.turns[-1].append(record)
            send(*record)

        def watched_commit(*args: Any) -> None:
            if self.errors:
                raise self.errors.pop(0)
            commit(*args)

        def watched_abort() -> None:
            self.aborts += 1
            abort()

        for name, method in {
            "begin": watched_begin,
            "send": watched_send,
            "commit": watched_commit,
            "abort": watched_abort,
        }.items():
            monkeypatch.setattr(writer, name, method)


def test_every_transaction_carries_offsets(engine: Engine) -> None:
    """One without was seen to commit after its partition had moved: the group is asked only about offsets."""
    tried: list[int] = []

    def handler(_data: object, work: Any) -> dict[str, object]:
        tried.append(work.attempt)
        if len(tried) == 1:
            raise TaskFailed("once")
        return {}

    engine.serve("work", handler)
    workflow_id = engine.start_task("work", workflow_id=name_in(0))
    engine.run(1)
    assert workflow(engine, workflow_id).status == "COMPLETED"
    engine.run(30)
    engine.clock.advance(60_000)
    engine.start_task("work", workflow_id=name_in(0, "later"))  # log time passes: retention is over for the first
    engine.run(30)
    engine.run()

    found = list(transactions(engine))
    assert any(record.value is None for record in engine.records(Topic.WORKFLOW_STATE)), "nothing was retired"
    assert found
    assert all(transaction.offsets for transaction in found)


def test_a_zombies_transaction_fails(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has read the batch while it was the owner; by its commit another one has decided the same records."""
    zombie = only(engine)
    heir = engine.node("1")
    engine.submit_task("work", workflow_id=name_in(0))
    assert zombie.session is not None
    begin = zombie.session._writer.begin

    def begin_late(*args: Any) -> None:
        begin(*args)
        zombie.suspend()
        for _ in range(5):
            heir.step()
        assert sorted(heir.partitions) == [0, 1]

    monkeypatch.setattr(zombie.session._writer, "begin", begin_late)
    zombie.step()
    engine.nodes.append(heir)
    engine.run()

    assert [work.hand_out for work in schedules(engine)] == [1]


def test_only_commands_is_subscribed() -> None:
    """With two topics in one subscription, partition p of each went to different members (8 of 8)."""
    with Engine(nodes=2) as engine:
        engine.log.split_assignment = True
        engine.run()
        engine.register_task(TASK)
        worker = engine.serve("work")
        for number in (0, 1):
            engine.start_task("work", workflow_id=name_in(number))
        engine.run()

        group = engine.log.cluster.group(engine.namespace.engine_group)
        assert {member.topics for member in group.members.values()} == {("test.commands",)}
        assert len(worker.ran) == 2


def test_an_aborted_turn_is_forgotten_and_decided_again_identically(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state kept from it would make the second pass ignore the commands as repeated: they would be lost."""
    node = only(engine)
    writing = Writing(node, monkeypatch)
    writing.errors = [TransactionAborted()]
    engine.serve("work")
    workflow_id = engine.submit_task("work", workflow_id=name_in(0))
    node.step()
    assert writing.aborts == 1
    assert node.partitions[0].live == {}
    assert not engine.records(Topic.WORKFLOW_STATE)

    node.step()
    first, second = writing.turns
    assert first == second
    engine.run()
    assert len(schedules(engine)) == 1
    assert workflow(engine, workflow_id).status == "COMPLETED"


def test_a_turn_that_fails_before_its_first_record_is_read_again(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch is taken from the reader already: not rewound, its starts would be skipped for good."""
    node = only(engine)
    assert node.session is not None
    admin, answer = node.session._admin, node.session._admin.end_offsets
    failures = [Retriable("not now")]

    def end_offsets(*args: Any) -> Any:
        if failures:
            raise failures.pop()
        return answer(*args)

    monkeypatch.setattr(admin, "end_offsets", end_offsets)
    workflow_id = engine.submit_task("work", workflow_id=name_in(0))
    engine.run()

    assert not failures
    assert workflow(engine, workflow_id).status == "RUNNING"


@pytest.mark.parametrize("applied", [True, False])
def test_a_commit_of_unknown_outcome_is_never_aborted(
    engine: Engine, applied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have happened; what is true stands in the log, so everything is rebuilt from there."""
    node = only(engine)
    session = node.session
    writing = Writing(node, monkeypatch)
    worker = engine.serve("work")
    engine.log.make_next_commit_unknown(applied=applied)
    workflow_id = engine.submit_task("work", workflow_id=name_in(0))
    node.step()
    assert node.session is None, "the session must be rebuilt"
    engine.run()

    assert node.session is not session
    assert writing.aborts == 0
    assert len(schedules(engine)) == len(worker.ran) == 1
    assert workflow(engine, workflow_id).status == "COMPLETED"


def test_a_fenced_process_rebuilds_and_goes_on(engine: Engine) -> None:
    node = only(engine)
    engine.log.transactional_writer(engine.namespace.transactional_id("0")).init()
    workflow_id = engine.submit_task("work", workflow_id=name_in(0))
    node.step()
    assert node.session is None
    engine.run()

    assert workflow(engine, workflow_id).status == "RUNNING"
    assert aborted(engine) <= 1


def test_records_that_are_read_again_are_not_decided_again(engine: Engine) -> None:
    """A rewind that nobody asked for: each offset is decided once."""
    engine.serve("work")
    workflow_id = engine.start_task("work", workflow_id=name_in(0))
    engine.run()
    node = only(engine)
    before = len(engine.records(Topic.EVENTS))
    reader: Any = node.session._reader if node.session is not None else None
    for tp in reader.assignment():
        reader.rewind(tp, 3)
    engine.run()

    assert len(engine.records(Topic.EVENTS)) == before
    assert workflow(engine, workflow_id).status == "COMPLETED"


def test_committed_transactions_are_the_only_outcome_in_peace(engine: Engine) -> None:
    engine.serve("work")
    for number in range(10):
        engine.submit_task("work", workflow_id=f"w{number}")
    engine.run()

    assert {transaction.outcome for transaction in transactions(engine)} == {Outcome.COMMITTED}


def test_an_abort_that_becomes_known_while_reading_on_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The records just read stand behind those of the aborted turn; decided first, they would move the offset past
    them."""
    with Engine(partitions=1, batch_records=1, commits=LateCommits) as engine:
        engine.run()
        engine.register_task(TASK)
        engine.run()
        ids = [engine.submit_task("work", workflow_id=f"w{number}") for number in range(4)]
        writing = Writing(only(engine), monkeypatch)
        writing.errors = [TransactionAborted("drawn")]
        engine.run()

        assert writing.aborts == 1
        assert [workflow(engine, workflow_id).status for workflow_id in ids] == ["RUNNING"] * 4


def test_an_abort_between_two_commands_of_a_partition_loses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """As above for commands: starts come by their lanes."""
    with Engine(partitions=1, batch_records=1, commits=LateCommits) as engine:
        engine.run()
        engine.register_task(TASK)
        ids = [engine.start_task("work", workflow_id=f"w{number}") for number in range(4)]
        for workflow_id in ids:
            engine.send(TerminateWorkflow(key=workflow_id))
        writing = Writing(only(engine), monkeypatch)
        writing.errors = [TransactionAborted("drawn")]
        engine.run()

        assert writing.aborts == 1
        assert [workflow(engine, workflow_id).status for workflow_id in ids] == ["TERMINATED"] * 4


@pytest.mark.parametrize("merges", [False, True])
def test_merged_task_states_leave_the_last_one_and_every_event(merges: bool) -> None:
    """Two commands about one task in one turn: a switch, off by default."""
    with Engine(partitions=1, merge_task_states=merges) as engine:
        engine.run()
        engine.register_task(TASK)
        engine.start_task("work", workflow_id="w")
        (work,) = schedules(engine)
        about = {"key": "w", "reference": work.reference, "task_id": work.task_id, "hand_out": work.hand_out}
        engine.send(TaskStarted(worker_id="worker", **about))
        engine.send(TaskReported(status=ReportStatus.COMPLETED, **about))
        before, events = len(engine.records(Topic.TASK_STATE)), len(engine.records(Topic.EVENTS))
        engine.run()

        states = [TASK_STATE.decode(record.value).status for record in engine.records(Topic.TASK_STATE)[before:]]
        assert states == (["COMPLETED"] if merges else ["IN_PROGRESS", "COMPLETED"])
        assert len(engine.records(Topic.EVENTS)) - events == 2
        assert workflow(engine, "w").status == "COMPLETED"
