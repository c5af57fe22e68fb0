"""What a worker is told: who hears it, and what it does to the function that runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from broker_engine.log.memory import MemoryLog
from broker_engine.log.ports import NewTopic
from broker_engine.model.commands import AttemptPaused, TaskProgressed
from broker_engine.model.decision import ControlKind
from broker_engine.testing.clock import FakeClock
from broker_engine.topics import Namespace
from broker_engine.wire.codecs import CONTROL
from broker_engine.wire.records import Control
from broker_engine.worker import StepRetry, Superseded, TaskCanceled, TaskContext, TaskPaused
from broker_engine.worker.controls import Controls
from broker_engine.worker.signals import Signals
from tests.support.roles import until
from tests.unit.worker.test_steps import attempt
from tests.unit.worker.test_task import CONTEXT, WORK

NAMESPACE = Namespace("test")
STOPS = {
    ControlKind.CANCEL: TaskCanceled,
    ControlKind.PAUSE: TaskPaused,
    ControlKind.SUPERSEDED: Superseded,
}


def note(kind: ControlKind, hand_out: int = 2, task_id: str = "t") -> Control:
    return Control(task_id, hand_out, kind, "by ann")


# --- the topic


class World:
    """A log with a control topic, and somebody who writes there."""

    def __init__(self) -> None:
        self.log = MemoryLog(FakeClock())
        self.writer = self.log.writer(client_id="decider")

    def make_topic(self) -> None:
        self.log.admin().create([NewTopic(name=NAMESPACE.control("default"), partitions=1, config={})])

    def tell(self, control: Control) -> None:
        self.writer.send(NAMESPACE.control("default"), 0, control.task_id.encode(), CONTROL.encode(control))
        self.writer.flush(1.0)


@pytest.fixture
def world() -> World:
    world = World()
    world.make_topic()
    return world


@pytest.fixture
def controls(world: World) -> Iterator[Controls]:
    controls = Controls(world.log, NAMESPACE, ["default"])
    yield controls
    controls.close()


def read(controls: Controls) -> None:
    controls.start()
    controls.wait_until_read("default", threading.Event())


def test_what_was_told_before_the_worker_came_is_heard_with_the_hand_out(world: World, controls: Controls) -> None:
    world.tell(note(ControlKind.CANCEL))
    read(controls)
    heard: list[Control] = []

    controls.listen("t", 2, heard.append)

    assert [control.kind for control in heard] == [ControlKind.CANCEL]


def test_what_is_told_later_reaches_the_running_hand_out(world: World, controls: Controls) -> None:
    read(controls)
    heard: list[Control] = []
    controls.listen("t", 2, heard.append)

    world.tell(note(ControlKind.PAUSE))

    until(lambda: heard, 10, what="the note")
    assert heard[0].reason == "by ann"


def test_an_earlier_hand_out_of_the_task_is_another_matter(world: World, controls: Controls) -> None:
    world.tell(note(ControlKind.CANCEL, hand_out=1))
    read(controls)
    heard: list[Control] = []

    controls.listen("t", 2, heard.append)

    assert heard == []


def test_who_has_ended_hears_nothing_more(world: World, controls: Controls) -> None:
    read(controls)
    heard, other = list[Control](), list[Control]()
    controls.listen("t", 2, heard.append)
    controls.listen("u", 2, other.append)
    controls.forget("t", 2)

    world.tell(note(ControlKind.CANCEL))
    world.tell(note(ControlKind.CANCEL, task_id="u"))

    until(lambda: other, 10, what="the later note")
    assert heard == []


def test_work_waits_until_the_topic_was_made_and_read() -> None:
    world = World()
    controls = Controls(world.log, NAMESPACE, ["default"])
    controls.start()
    read = threading.Event()
    waiting = threading.Thread(
        target=lambda: (controls.wait_until_read("default", threading.Event()), read.set()), daemon=True
    )
    waiting.start()
    assert not read.wait(0.3)

    world.make_topic()

    assert read.wait(5)
    controls.close()


# --- the function


def told(kind: ControlKind) -> TaskContext:
    context = replace(CONTEXT)
    context._hear(note(kind))
    return context


@pytest.mark.parametrize("kind", ControlKind)
def test_a_safe_point_raises_what_was_told(kind: ControlKind) -> None:
    with pytest.raises(STOPS[kind], match="by ann"):
        told(kind).check()


@pytest.mark.parametrize("kind", ControlKind)
def test_only_a_cancel_counts_as_canceled(kind: ControlKind) -> None:
    assert told(kind).is_canceled == (kind is ControlKind.CANCEL)
    assert not CONTEXT.is_canceled


@pytest.mark.parametrize("kind", ControlKind)
def test_no_step_begins_after_it_and_the_present_one_is_stored(kind: ControlKind) -> None:
    context, said = attempt()
    context.run_step("PARSE", lambda: context._hear(note(kind)))

    with pytest.raises(STOPS[kind]):
        context.run_step("UPSERT", lambda: pytest.fail("it began"))

    assert [step for step, _ in said.steps] == ["PARSE", "PARSE"]


@pytest.mark.parametrize("say", ["progress", "checkpoint", "heartbeat"])
def test_telling_how_far_it_is_is_a_safe_point_too(say: str) -> None:
    context, _ = attempt()
    context._hear(note(ControlKind.CANCEL))

    with pytest.raises(TaskCanceled):
        getattr(context, say)(*([1] if say != "heartbeat" else []))


def test_a_pause_inside_a_step_leaves_it_begun_and_not_failed() -> None:
    context, said = attempt()

    def work() -> None:
        context._hear(note(ControlKind.PAUSE))
        context.check()

    with pytest.raises(TaskPaused):
        context.run_step("PARSE", work)

    assert [status for _, status in said.steps] == ["STARTED"]


def test_a_step_that_may_not_run_twice_is_paused_only_at_its_end() -> None:
    context, said = attempt()

    def charge() -> str:
        context._hear(note(ControlKind.PAUSE))
        context.check()
        return "charged"

    assert context.run_step("CHARGE", charge, retry=StepRetry.NEVER) == "charged"
    assert [status for _, status in said.steps] == ["STARTED", "COMPLETED"]
    with pytest.raises(TaskPaused):
        context.check()


def test_a_paused_attempt_tells_its_last_progress_first_and_nothing_afterwards() -> None:
    sent: list[object] = []
    signals = Signals(WORK, 7, "worker-1", lambda _work, command, _on_arrival=None: sent.append(command))
    signals.progress(progress_done=1, progress_total=9)
    signals.progress(checkpoint=b"4")

    signals.pause()
    signals.heartbeat(None)

    first, second, last = sent
    assert isinstance(first, TaskProgressed)
    assert isinstance(second, TaskProgressed)
    assert second.checkpoint == b"4"
    assert isinstance(last, AttemptPaused)
    assert (last.lease, last.sequence) == (7, 3)
