"""Taking a partition over: fence, committed offset, high watermark, restore, claim, in this order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker_engine.errors import BrokerEngineError, UnsafeSettings
from broker_engine.log.ports import CommittedOffset, TopicPartition
from broker_engine.model.decision import Transition
from broker_engine.runtime import takeover
from broker_engine.runtime.ownership import Mark
from broker_engine.runtime.processor import MAX_FENCED_PER_MINUTE
from broker_engine.testing import Engine, Node
from broker_engine.topics import Topic, partition_of
from broker_engine.wire.codecs import EVENT
from tests.support.crashing import crash
from tests.support.looking import committed, last, name_in, schedules, workflow

TASK = {"name": "work"}


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine(partitions=2) as engine:
        engine.run()
        engine.register_task(TASK)
        engine.run()
        yield engine


def heir(engine: Engine, slot: str = "1") -> Node:
    node = engine.node(slot)
    engine.nodes.append(node)
    return node


def epoch(engine: Engine, slot: str) -> int:
    return engine.log.cluster.epochs[engine.namespace.transactional_id(slot)]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_another_slot_goes_on_exactly_where_a_crash_was(
    engine: Engine, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the commit: without the fence the dead owner's transaction would stay open, its offsets pending and every
    reader of its topics waiting. After: what it committed must not be decided again."""
    monkeypatch.setattr(takeover, "_STABLE_SECONDS", 0.2)
    worker = engine.serve("work")
    workflow_id = engine.submit_task("work", workflow_id=name_in(0))
    crash(engine, moment)
    heir(engine)
    engine.run()

    assert [(work.workflow_id, work.hand_out) for work in schedules(engine)] == [(workflow_id, 1)]
    assert len(worker.ran) == 1
    assert workflow(engine, workflow_id).status == "COMPLETED"


def test_the_same_slot_frees_its_own_transaction(engine: Engine) -> None:
    workflow_id = engine.submit_task("work", workflow_id=name_in(0))
    node = crash(engine, "before")
    node.start()
    engine.run()

    assert len(schedules(engine)) == 1
    assert last(engine, workflow_id).hand_out == 1


def test_a_new_owner_sees_a_commit_that_lags(engine: Engine) -> None:
    """Handed over cleanly, nobody is fenced; the committed offset is known, and the last stable offset is still behind
    (61 of 300). Read only so far, the partition would begin without its newest states."""
    workflow_id = name_in(1)
    (old,) = engine.nodes
    old.step()
    engine.log.lag_lso = True
    engine.submit_task("work", workflow_id=workflow_id)
    for _ in range(3):
        old.step()  # decided and committed, but not visible
    new = heir(engine)
    for _ in range(6):
        new.step()
        old.step()
        if new.partitions:
            break
    (number,) = new.partitions
    engine.log.lag_lso = False

    # whichever partition has moved, its live workflows are known
    assert new.partitions[number].position == committed(engine, number).offset
    moved = {name for name in (workflow_id,) if number == 1}
    assert moved <= set(new.partitions[number].live)


def test_both_partitions_see_a_commit_that_lags(engine: Engine) -> None:
    """As above for the partition that moves first, whichever it is."""
    (old,) = engine.nodes
    old.step()
    engine.log.lag_lso = True
    for number in (0, 1):
        engine.submit_task("work", workflow_id=name_in(number))
    for _ in range(3):
        old.step()
    new = heir(engine)
    for _ in range(6):
        new.step()
        old.step()
        if new.partitions:
            break
    (number,) = new.partitions
    engine.log.lag_lso = False

    assert list(new.partitions[number].live) == [name_in(number)]


def test_a_takeover_ends_with_a_claim_under_the_own_slot(engine: Engine) -> None:
    """Without it the metadata would name the last committer until the first transaction: a third process would fence
    the wrong one and leave the owner's transaction open."""
    engine.start_task("work", workflow_id=name_in(0))
    before = committed(engine)
    assert before.metadata.startswith("owned:0:")
    (node,) = engine.nodes
    node.kill()
    node.bury()
    new = heir(engine)
    while not new.partitions:
        new.step()  # no turn of its own yet

    assert committed(engine) == CommittedOffset(before.offset, before.metadata.replace("owned:0:", "owned:1:"))


def test_a_clean_hand_over_says_so(engine: Engine) -> None:
    (node,) = engine.nodes
    engine.start_task("work", workflow_id=name_in(0))
    before = node.partitions[0]
    node.stop()

    assert committed(engine) == CommittedOffset(before.position, f"released:0:{before.position}:{before.log_time_ms}")


def test_who_was_released_cleanly_is_not_fenced(engine: Engine) -> None:
    """The slot may run on with its other partitions: its producer must stay valid."""
    engine.start_task("work", workflow_id=name_in(0))
    before = epoch(engine, "0")
    (old,) = engine.nodes
    old.stop()  # no member of it is left that would show that it is well
    heir(engine)
    engine.run()

    assert sorted(engine.nodes[1].partitions) == [0, 1]
    assert epoch(engine, "0") == before


def test_a_slot_that_shares_its_partitions_is_not_fenced(engine: Engine) -> None:
    engine.start_task("work", workflow_id=name_in(0))
    before = epoch(engine, "0")
    heir(engine)
    engine.run()

    assert sorted(len(node.partitions) for node in engine.nodes) == [1, 1]
    assert epoch(engine, "0") == before


def test_a_slot_with_a_living_member_is_not_fenced(engine: Engine) -> None:
    """It is well and merely lost the partition: fenced, it would drop everything else that it owns. Its next
    transaction fails by the group generation that it carries."""
    engine.start_task("work", workflow_id=name_in(0))
    (old,) = engine.nodes
    before = epoch(engine, "0")
    new = engine.node("1")
    old.suspend()
    new.step()  # joins
    new.step()  # is given every partition: the restores are to be done
    old.step()  # hears that it was thrown out, and is a member again
    engine.nodes.append(new)
    engine.run()

    assert committed(engine).metadata.startswith("owned:")
    assert epoch(engine, "0") == before


def test_a_slot_without_a_member_is_fenced(engine: Engine) -> None:
    engine.start_task("work", workflow_id=name_in(0))
    (node,) = engine.nodes
    before = epoch(engine, "0")
    node.kill()
    node.bury()
    heir(engine)
    engine.run()

    assert epoch(engine, "0") > before


def test_two_processes_with_one_slot_end_with_a_sentence(engine: Engine) -> None:
    """They would replace each other for ever, and nothing would be decided for long."""
    heir(engine, slot="0")

    def work_on() -> None:
        for number in range(20 * MAX_FENCED_PER_MINUTE):
            engine.submit_task("work", workflow_id=f"w{number}")
            engine.step()

    with pytest.raises(BrokerEngineError, match=r"slot 0 of namespace test.*its own --slot"):
        work_on()


def test_a_process_that_is_replaced_now_and_then_goes_on(engine: Engine) -> None:
    """Three times in an hour is no second process."""
    (node,) = engine.nodes
    for number in range(3 * MAX_FENCED_PER_MINUTE):
        engine.clock.advance(61_000)
        node.suspend()
        engine.start_task("work", workflow_id=f"w{number}")

    assert len(schedules(engine)) == 3 * MAX_FENCED_PER_MINUTE


@pytest.mark.parametrize("jobs_done", [0, 2])
def test_a_partition_that_comes_back_during_its_takeover_is_taken_over_anew(engine: Engine, jobs_done: int) -> None:
    """The first restore is still at work on its folder: two of them in one folder would end the process."""
    (node,) = engine.nodes
    engine.start_task("work", workflow_id=name_in(0))
    node.stop()
    node.start()
    node.step()  # joins
    assert node.session is not None
    takeovers = node.session._takeovers
    node.session.step()  # is assigned, but no takeover job runs
    abandoned = list(takeovers._running.values())  # as the threads that run them would, this keeps what they open
    assert len(abandoned) == 2
    tps = [TopicPartition(engine.namespace.topic(Topic.COMMANDS), number) for number in (0, 1)]
    for _ in range(jobs_done):
        for jobs in node._jobs:
            jobs.step()
    node.session.revoked(tps)
    node.session.assigned(tps)
    engine.run()

    assert sorted(node.partitions) == [0, 1]
    assert list(node.partitions[0].live) == [name_in(0)]
    assert all(future.done() for future in abandoned)


# --- positions --------------------------------------------------------------------------------------------------------


def restart(engine: Engine) -> Node:
    (node,) = engine.nodes
    node.kill()
    node.bury()
    node.start()
    return node


def offsets(engine: Engine) -> dict[TopicPartition, CommittedOffset]:
    return engine.log.cluster.group(engine.namespace.engine_group).offsets


def transitions(engine: Engine) -> list[Transition]:
    """Every change of a workflow or task so far."""
    return [step for record in engine.records(Topic.EVENTS) for step in EVENT.decode(record.value).transitions]


@pytest.mark.parametrize("later_ms", [10_001, 5_000], ids=["from the checkpoint", "from an event after it"])
def test_a_group_without_an_offset_goes_on_where_the_state_ends(engine: Engine, later_ms: int) -> None:
    """Kafka forgets the offsets of a group that was idle for a week; from the beginning on, everything would be decided
    twice."""
    engine.start_task("work", workflow_id=name_in(0))
    engine.terminate(name_in(0))
    engine.start_task("work", workflow_id=name_in(0, prefix="v"))
    checkpoints = len(engine.records(Topic.CHECKPOINTS))
    engine.clock.advance(later_ms)
    engine.terminate(name_in(0, prefix="v"))
    assert len(engine.records(Topic.CHECKPOINTS)) - checkpoints == (later_ms > 10_000)
    position = engine.nodes[0].partitions[0].position
    assert position > 0
    changes = transitions(engine)
    (node,) = engine.nodes
    node.kill()
    node.bury()
    offsets(engine).clear()
    node.start()
    while not node.partitions:
        node.step()
    assert node.partitions[0].position == position

    engine.run()
    assert transitions(engine) == changes
    assert len(schedules(engine)) == 2


def test_a_partition_that_had_only_starts_goes_on_without_offsets(engine: Engine) -> None:
    """Crashed before its first tick: a start moves no log time and writes no checkpoint, so its event's moment must not
    be taken for state from another time."""
    number = 1 - partition_of("work", 2)  # no registration has stood there
    engine.start_task("work", workflow_id=name_in(1 - number))  # the queue's topic is there
    engine.clock.advance(60_000)
    before = len(engine.records(Topic.WORKFLOW_STATE))
    engine.submit_task("work", workflow_id=name_in(number))
    while len(engine.records(Topic.WORKFLOW_STATE)) == before:
        engine.nodes[0].step()
    node = restart(engine)
    offsets(engine).clear()
    engine.run()

    assert list(node.partitions[number].live) == [name_in(number)]
    assert len(schedules(engine)) == 2


@pytest.mark.parametrize("shift", [-1, 1])
@pytest.mark.parametrize("keeps_metadata", [False, True])
def test_an_offset_that_somebody_has_moved_is_refused(engine: Engine, shift: int, keeps_metadata: bool) -> None:
    """A reset group would decide commands twice or skip them; nobody would notice. Kafka's own tool drops the
    metadata."""
    engine.start_task("work", workflow_id=name_in(0))
    restart(engine)
    tp = TopicPartition(engine.namespace.topic(Topic.COMMANDS), 0)
    found = offsets(engine)[tp]
    offsets(engine)[tp] = CommittedOffset(found.offset + shift, found.metadata if keeps_metadata else "")

    with pytest.raises(UnsafeSettings, match=f"disagree.*back to {found.offset}"):
        engine.run()


def test_an_offset_set_back_by_hand_to_where_the_state_ends_is_taken(engine: Engine) -> None:
    """The remedy that the refusal names."""
    engine.start_task("work", workflow_id=name_in(0))
    node = restart(engine)
    tp = TopicPartition(engine.namespace.topic(Topic.COMMANDS), 0)
    offsets(engine)[tp] = CommittedOffset(offsets(engine)[tp].offset)
    engine.run()

    assert list(node.partitions[0].live) == [name_in(0)]


@pytest.mark.parametrize(("offset_by", "log_time_by"), [(-2, 0), (0, 10_001)], ids=["newer state", "older state"])
def test_state_from_another_time_than_the_offset_is_refused(engine: Engine, offset_by: int, log_time_by: int) -> None:
    """A state topic restored from a backup: by offset alone it would look like a checkpoint that is due."""
    engine.start_task("work", workflow_id=name_in(0))
    engine.clock.advance(10_001)
    engine.terminate(name_in(0))
    restart(engine)
    tp = TopicPartition(engine.namespace.topic(Topic.COMMANDS), 0)
    mark = Mark.of(offsets(engine)[tp])
    assert mark is not None
    other = mark._replace(offset=mark.offset + offset_by, log_time_ms=mark.log_time_ms + log_time_by)
    offsets(engine)[tp] = other.commit()

    with pytest.raises(UnsafeSettings, match="from another time"):
        engine.run()


def test_an_offset_below_the_log_start_is_refused(engine: Engine) -> None:
    """Commands were deleted before they were decided: going on in silence would lose them."""
    engine.start_task("work", workflow_id=name_in(0))
    node = restart(engine)
    tp = TopicPartition(engine.namespace.topic(Topic.COMMANDS), 0)
    for number in range(3):
        engine.submit_task("work", workflow_id=f"{name_in(0)}-{number}")
        engine.send_bytes(b"k", b"x", partition=0)
    engine.log.truncate(tp.topic, 0, offsets(engine)[tp].offset + 2)

    with pytest.raises(UnsafeSettings, match=f"deleted unread.*{engine.namespace.engine_group} to (\\d+)") as refused:
        engine.run()
    first = int(str(refused.value).rpartition(" ")[2])
    node.kill()
    node.bury()
    offsets(engine)[tp] = CommittedOffset(first)  # the remedy
    node.start()
    engine.run()

    assert node.partitions[0].position > first


def test_log_time_goes_on_from_the_checkpoint(engine: Engine) -> None:
    """Begun at zero, a first record that is older than the last would turn the clocks of the partition back."""
    engine.start_task("work", workflow_id=name_in(0))
    before = engine.nodes[0].partitions[0].log_time_ms
    node = restart(engine)
    while not node.partitions:
        node.step()

    assert node.partitions[0].log_time_ms >= before
