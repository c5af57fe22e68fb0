"""A paused queue: what waits there is held, what runs goes on, and what goes on needs all three pauses to be over."""

from __future__ import annotations

from typing import Any

import pytest

from broker_engine.model.commands import MoveTask, QueueReady, SlotGranted
from broker_engine.model.decision import ControlKind, Schedule, TellLimiter, TellWorker
from broker_engine.model.slots import ReleaseSlot
from broker_engine.model.state import TaskState
from broker_engine.model.status import Phase, WaitingFor
from broker_engine.model.stops import Stop, queue_key
from tests.builders import START_MS, Story, a_step, a_task_def, asked

WHY = "the queue of task type encode in every domain is paused by user:ann: no licence"


def pause(story: Story, domain: str | None = None) -> Story:
    key = queue_key("encode", domain)
    story.definitions.stops[key] = Stop(key, "user:ann", START_MS, "no licence")
    return story


def resume(story: Story, domain: str | None = None) -> Story:
    del story.definitions.stops[queue_key("encode", domain)]
    return story


def about(task: TaskState) -> dict[str, Any]:
    return {
        "key": task.workflow_id,
        "reference": task.reference,
        "task_id": task.task_id,
        "hand_out": task.hand_out,
    }


def follow(story: Story) -> Story:
    """The shell has noticed that the queue of the task was paused or resumed."""
    return story.send(QueueReady(**about(story.task)))


def limited() -> Story:
    definition = a_task_def(concurrent_exec_limit=1)
    story = Story(a_step("a", definition))
    story.definitions.tasks["encode"] = definition
    return story


def test_what_comes_onto_a_paused_queue_is_held() -> None:
    story = pause(Story("a")).start()

    assert (story.task.phase, story.task.waiting_for, story.task.hand_out) == (Phase.PAUSED, WaitingFor.RESUME, 0)
    assert story.schedules == []


def test_a_paused_queue_of_one_domain_leaves_the_others_alone() -> None:
    assert pause(Story("a"), "eu").start().task.phase is Phase.QUEUED
    assert pause(Story("a"), "default").start().task.phase is Phase.PAUSED


def test_what_was_handed_out_and_not_started_is_taken_back() -> None:
    story = Story("a").start()
    before = story.task

    follow(pause(story))

    assert (story.task.phase, story.task.reason) == (Phase.PAUSED, WHY)
    assert [told.kind for told in story.now(TellWorker)] == [ControlKind.PAUSE]
    story.taken(of=before, wants_confirmation=True)
    assert not story.confirm.accepted


def test_a_worker_that_asks_before_it_is_taken_back_is_refused() -> None:
    story = pause(Story("a").start()).taken(wants_confirmation=True)

    assert (story.confirm.accepted, story.confirm.reason) == (False, WHY)
    assert story.task.phase is Phase.PAUSED


def test_a_start_without_asking_counts() -> None:
    story = pause(Story("a").start()).taken()

    assert story.task.phase is Phase.RUNNING


def test_what_runs_goes_on_and_the_next_task_is_held() -> None:
    story = follow(pause(Story("a", "b").start().taken()))
    assert story.task.phase is Phase.RUNNING

    story.completed()

    assert (story.task.reference, story.task.phase) == ("b", Phase.PAUSED)


def test_resumed_it_is_handed_out_under_the_next_number() -> None:
    story = follow(pause(Story("a").start()))

    follow(resume(story.later(5_000)))

    (schedule,) = story.now(Schedule)
    assert (schedule.task.hand_out, story.task.phase, story.task.paused_at_ms) == (2, Phase.QUEUED, None)


def test_a_retry_keeps_the_rest_of_its_delay() -> None:
    story = pause(Story("a").start().taken()).failed()
    assert story.task.phase is Phase.PAUSED

    follow(resume(story.later(400)))

    assert (story.task.phase, story.task.due_at_ms) == (Phase.RETRY_WAIT, START_MS + 1_000)


def test_a_delay_that_ends_on_a_paused_queue_leaves_its_task_held() -> None:
    story = pause(Story("a").start().taken().failed()).later(1_000).delay_due()

    assert (story.task.phase, story.task.reason) == (Phase.PAUSED, WHY)


def test_a_task_that_agrees_with_its_queue_is_left_alone() -> None:
    story = follow(Story("a").start())

    assert (story.task.hand_out, story.decision.ignored is not None) == (1, True)


# --- with a pause of the task, and of the workflow


def test_a_resumed_task_stays_with_its_paused_queue() -> None:
    story = follow(pause(Story("a").start())).pause().resume(**asked())
    assert (story.task.phase, story.task.paused_by, story.task.reason) == (Phase.PAUSED, None, WHY)
    assert story.answer.message == f"{WHY}: the task goes on with it"

    assert follow(resume(story)).task.phase is Phase.QUEUED


def test_a_task_that_only_its_queue_holds_is_not_resumed_alone() -> None:
    story = pause(Story("a")).start().resume(**asked())

    assert (story.answer.status, story.answer.message) == (409, f"{WHY}: resume the queue")


def test_a_resumed_workflow_leaves_its_tasks_with_their_paused_queue() -> None:
    story = follow(pause(Story("a").start())).pause_workflow().resume_workflow()
    assert story.task.phase is Phase.PAUSED

    assert follow(resume(story)).task.phase is Phase.QUEUED


@pytest.mark.parametrize("held", ["task", "workflow"])
def test_a_resumed_queue_leaves_what_is_paused_otherwise(held: str) -> None:
    story = follow(pause(Story("a").start()))
    story = story.pause() if held == "task" else story.pause_workflow()

    follow(resume(story))

    assert story.task.phase is Phase.PAUSED
    story = story.resume() if held == "task" else story.resume_workflow()
    assert story.task.phase is Phase.QUEUED


def test_a_worker_that_stops_for_a_pause_that_is_over_finds_its_queue_paused() -> None:
    story = pause(Story("a").start().taken().pause()).resume().paused()

    assert (story.task.phase, story.task.paused_by, story.task.reason) == (Phase.PAUSED, None, WHY)


# --- with limits, and with domains


def test_what_waits_for_its_slot_leaves_the_line() -> None:
    story = follow(pause(limited().start()))

    assert (story.task.phase, story.task.holds_slot) == (Phase.PAUSED, False)
    assert [told.slot for told in story.now(TellLimiter)] == [ReleaseSlot(story.task.task_id, 1)]


def test_a_grant_for_a_paused_queue_gives_its_slot_back() -> None:
    story = pause(limited().start())
    task = story.task

    story.send(SlotGranted(**(about(task) | {"hand_out": 1})))

    assert (story.task.phase, story.task.holds_slot, story.schedules) == (Phase.PAUSED, False, [])
    assert [told.slot for told in story.now(TellLimiter)] == [ReleaseSlot(task.task_id, 1)]


def test_resumed_a_limited_task_asks_for_its_slot_anew() -> None:
    story = follow(resume(follow(pause(limited().start()))))

    assert (story.task.waiting_for, story.task.holds_slot) == (WaitingFor.SLOT, True)


def test_what_is_moved_onto_a_paused_queue_is_held_there() -> None:
    story = pause(Story("a").start(), "eu")

    story.send(MoveTask(**about(story.task), domain="eu"))

    assert (story.task.domain, story.task.phase, story.now(Schedule)) == ("eu", Phase.PAUSED, [])


def test_what_is_moved_off_a_paused_queue_goes_on() -> None:
    story = pause(Story("a"), "default").start()

    follow(story.send(MoveTask(**about(story.task), domain="eu")))

    assert (story.task.domain, story.task.phase) == ("eu", Phase.QUEUED)
