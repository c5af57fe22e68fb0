"""Records that are no commands: each becomes a dead letter that says why, and its partition goes on."""

from __future__ import annotations

import pytest

from broker_engine.log.ports import Isolation
from broker_engine.model.commands import StartWorkflow, TaskReported, TerminateWorkflow
from broker_engine.model.status import ReportStatus
from broker_engine.testing import Engine
from broker_engine.topics import Topic
from broker_engine.wire.commands import encode_command
from broker_engine.wire.signing import Signer
from tests.support.looking import aborted, dead_letters, last, name_in, workflow

UNSIGNED = Signer(None)


def goes_on(engine: Engine, partition: int) -> bool:
    """Whether a workflow of this partition starts and ends."""
    worker = engine.serve("work")
    workflow_id = engine.start_task("work", workflow_id=name_in(partition, "healthy"))
    engine.run()
    return engine.workflow(workflow_id).status == "COMPLETED" and bool(worker.ran)


@pytest.mark.parametrize("value", [b"garbage", b"", None, b"\x00\x00\x00\x00\x01\xff"])
def test_undecodable_bytes_become_a_dead_letter(engine: Engine, value: bytes | None) -> None:
    """Without the answer to DecodeError the partition would stop, or read the record for ever."""
    engine.send_bytes(b"key", value, partition=1)
    engine.run()

    (letter,) = dead_letters(engine)
    assert (letter["topic"], letter["partition"], letter["offset"]) == ("test.commands", "1", "0")
    assert letter["reason"]
    assert goes_on(engine, 1)
    assert aborted(engine) == 0


def test_a_dead_letter_keeps_key_and_bytes(engine: Engine) -> None:
    engine.send_bytes(b"key", b"garbage")
    engine.run()

    (record,) = engine.records(Topic.DEAD_LETTERS)
    assert (record.key, record.value) == (b"key", b"garbage")


def test_bytes_as_large_as_the_topic_takes_become_a_dead_letter(engine: Engine) -> None:
    """The headers make a dead letter larger than its record: with the same limit on both topics the transaction would
    abort again and again, and one client could stop a partition."""
    largest = 1_048_588 - 70 - len(b"key")
    assert engine.send_bytes(b"key", b"x" * largest).error is None
    engine.run()

    assert len(dead_letters(engine)) == 1
    assert aborted(engine) == 0


def test_a_command_on_the_wrong_partition_becomes_a_dead_letter(engine: Engine) -> None:
    """Decided there, the workflow would exist twice: its other commands go to its own partition."""
    stray = name_in(0)
    command = StartWorkflow(key=stray, name="work", definition=b'{"name": "work"}', **engine.asked())
    engine.send(command, partition=1)
    engine.run()

    (letter,) = dead_letters(engine)
    assert "does not belong to partition 1" in letter["reason"]
    assert not engine.records(Topic.WORKFLOW_STATE)
    assert goes_on(engine, 1)


def test_a_record_whose_key_is_not_its_commands_becomes_a_dead_letter(engine: Engine) -> None:
    """The key chose the partition: a command about another workflow would slip past the partition's owner."""
    value = encode_command(TerminateWorkflow(key=name_in(1)), engine.signer)
    engine.send_bytes(name_in(0).encode(), value, partition=0)
    engine.run()

    assert "is not the command's" in dead_letters(engine)[0]["reason"]


def test_an_unsigned_command_becomes_a_dead_letter(engine: Engine) -> None:
    """Without the check whoever may write to the topic could end every workflow."""
    engine.serve("work", takes_ms=lambda _work: 1_000)
    workflow_id = engine.start_task("work")
    command = TerminateWorkflow(key=workflow_id)
    record = engine.send(command)  # signed: to know the partition
    engine.clock.advance(1)
    engine.run()
    assert workflow(engine, workflow_id).status == "TERMINATED"

    other = engine.start_task("work", workflow_id=name_in(record.partition, "other"))
    engine.send_bytes(
        other.encode(), encode_command(TerminateWorkflow(key=other), UNSIGNED), partition=record.partition
    )
    engine.run()

    assert "not signed" in dead_letters(engine)[0]["reason"]
    assert workflow(engine, other).status == "RUNNING"


def test_a_report_under_another_hand_outs_token_becomes_a_dead_letter(engine: Engine) -> None:
    """A worker of one queue must not forge the results of another."""
    engine.serve("work", takes_ms=lambda _work: 60_000)
    workflow_id = engine.start_task("work")
    engine.run()
    task = last(engine, workflow_id)
    forged = TaskReported(
        key=workflow_id,
        reference=task.reference,
        task_id=task.task_id,
        hand_out=1,
        status=ReportStatus.COMPLETED,
        lease=task.lease,
    )
    token = engine.signer.token("another task", 1)
    partition = next(r.partition for r in engine.records(Topic.TASK_STATE))
    engine.send_bytes(workflow_id.encode(), encode_command(forged, UNSIGNED, token=token), partition=partition)
    engine.run()

    assert "no valid token" in dead_letters(engine)[0]["reason"]
    assert last(engine, workflow_id).status == "IN_PROGRESS"


def test_a_record_over_the_limit_is_a_decision_not_a_failing_transaction() -> None:
    """Input and output fit each, their task state does not. Sent unchecked, the broker would refuse the record, and
    the transaction with everything else in it, for ever."""
    with Engine(max_payload_bytes=900_000) as engine:
        large = "x" * 600_000
        engine.serve("work", lambda data, _work: {"copy": data.get("pad", "")})
        workflow_id = engine.start_task("work", {"pad": large})
        other = engine.start_task("work", workflow_id="other")
        engine.run()

        assert "over the limit" in (workflow(engine, workflow_id).quarantine or "")
        assert "over the limit" in dead_letters(engine)[0]["reason"]
        assert workflow(engine, other).status == "COMPLETED"
        assert aborted(engine) == 0


def test_a_tick_of_a_stranger_changes_nothing(engine: Engine) -> None:
    engine.send_bytes(b"tick-0", b"\x00", partition=0)
    engine.run()

    assert len(dead_letters(engine)) == 1
    assert not engine.records(Topic.EVENTS, isolation=Isolation.UNCOMMITTED)
