"""One sentence per way of waiting."""

import pytest

from broker_engine.model.state import evolve
from broker_engine.model.status import WaitingFor
from broker_engine.worker.diagnosis import explain, explain_held
from tests.builders import START_MS, Story, a_step


def said(story: Story, after_ms: int, last_poll_ms: int | None = None) -> str:
    return explain(story.task, last_poll_ms, START_MS + after_ms)


def test_a_retry_says_when_it_comes() -> None:
    story = Story(a_step("a", retry_delay_seconds=5)).start().taken().failed()

    assert said(story, 800) == "retry in 4.2 s"


def test_a_start_delay_says_when_it_ends() -> None:
    assert said(Story(a_step("a", start_delay_seconds=30)).start(), 10_000) == "first hand-out in 20 s"


def test_a_callback_says_when_it_comes() -> None:
    story = Story("a").start().taken().progressed(callback_after_ms=60_000)

    assert said(story, 0) == "callback in 60 s"


def test_a_running_task_says_where_it_runs_and_what_ends_it() -> None:
    story = Story(a_step("a", response_timeout_seconds=60)).start().taken(worker="W")

    assert said(story, 12_000) == "running on worker W for 12 s, response time-out in 48 s"


@pytest.mark.parametrize(
    ("last_poll_ms", "sentence"),
    [
        (None, "no worker has polled task type encode in domain default yet"),
        (START_MS - 4_000, "no worker has polled task type encode in domain default for 34 s"),
        (START_MS + 29_000, "waits for a free worker of task type encode in domain default for 30 s"),
    ],
)
def test_a_queued_task_says_whether_anybody_serves_its_queue(last_poll_ms: int | None, sentence: str) -> None:
    assert said(Story("a").start(), 30_000, last_poll_ms) == sentence


def test_a_task_without_a_topic_says_so() -> None:
    story = Story("a")
    story.queues.missing.add("encode")

    assert said(story.start(), 0) == "waits for the topic of its queue default/encode to be made"


def test_a_paused_task_says_by_whom_since_when_and_what_ends_it() -> None:
    story = Story("a").start().pause(reason="look first")

    assert said(story, 30_000) == (
        "paused by user:ann: look first, for 30 s; resume with `broker-engine task resume w a`"
    )


def test_a_task_that_its_workflow_holds_says_so() -> None:
    story = Story("a").start().pause_workflow(reason="look first")

    assert explain_held(story.task, story.workflow, START_MS + 30_000) == (
        "held for 30 s: its workflow is paused by user:ann: look first; resume with `broker-engine workflow resume w`"
    )


def test_a_task_that_was_asked_to_stop_says_by_whom_and_when() -> None:
    story = Story(a_step("a", response_timeout_seconds=60)).start().taken(worker="W").later(10_000).cancel()

    assert said(story, 12_000) == (
        "running on worker W for 12 s, response time-out in 48 s, asked to stop by user:ann 2.0 s ago"
    )


def test_a_task_that_was_asked_to_pause_says_by_whom() -> None:
    story = Story(a_step("a", response_timeout_seconds=0)).start().taken(worker="W").pause()

    assert said(story, 12_000) == "running on worker W for 12 s, asked to pause (paused by user:ann)"


def test_an_ended_task_says_how_it_ended() -> None:
    story = Story(a_step("a", retry_count=0)).start().taken().failed("no disk")

    assert said(story, 0) == "FAILED: no disk"


def test_a_task_that_is_held_back_by_its_limits_says_so() -> None:
    task = evolve(Story("a").start().task, waiting_for=WaitingFor.SLOT)

    assert explain(task, None, START_MS) == "waits until the limits of task type encode let it in"


def test_a_task_that_waits_for_a_lock_names_the_resource() -> None:
    task = evolve(Story("a").start().task, waiting_for=WaitingFor.LOCK, resource="film.mov")

    assert explain(task, None, START_MS) == "waits for film.mov, which another task works on"
