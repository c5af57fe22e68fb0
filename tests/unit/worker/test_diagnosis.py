"""One sentence per way of waiting."""

import pytest

from broker_engine.decider.limit_places import Standing
from broker_engine.model.slots import Entry, Line, Need, Stage
from broker_engine.model.state import evolve
from broker_engine.model.status import Phase, WaitingFor
from broker_engine.model.stops import Stop, queue_key
from broker_engine.worker.diagnosis import explain
from tests.builders import START_MS, Story, a_step
from tests.support.trees import Json, Tree, each, fork, loop, operator, simple


def said(story: Story, after_ms: int, last_poll_ms: int | None = None) -> str:
    return explain(story.task, last_poll_ms, START_MS + after_ms)


def test_a_retry_says_when_it_comes() -> None:
    story = Story(a_step("a", retry_delay_seconds=5)).start().taken().failed()

    assert said(story, 800) == "retry in 4.2 s"


def test_a_start_delay_says_when_it_ends() -> None:
    assert said(Story(a_step("a", start_delay_seconds=30)).start(), 10_000) == "first hand-out in 20 s"


def test_a_task_on_a_paused_queue_says_who_paused_it_and_how_it_goes_on() -> None:
    stop = Stop(queue_key("encode", "eu"), "user:ann", 0, "no licence")
    story = Story("a").start()
    paused = "its queue is paused by user:ann since 1970-01-01T00:00:00+00:00: no licence"
    how = "resume with `broker-engine queue resume eu/encode`"

    held = evolve(story.task, phase=Phase.PAUSED, waiting_for=WaitingFor.RESUME)
    assert explain(held, None, START_MS, stop=stop) == f"{paused}; {how}"
    story.pause(reason="look first")
    itself = "paused by user:ann: look first, for 0.0 s; resume with `broker-engine task resume w a`"
    assert explain(story.task, None, START_MS, stop=stop) == f"{itself}; {paused}; {how}"


@pytest.mark.parametrize(
    ("step", "reference", "sentence"),
    [
        (fork("f", [simple("a")], [simple("b")]), "f_join", "waits for 2 of the 2 tasks that it joins"),
        ([loop("l", [simple("a")])], "l", "in round 1"),
        ([each("l", [1, 2, 3], [simple("a")])], "l", "in round 1 of 3"),
        ([operator("WAIT", "w", inputParameters={"duration": "5 secs"})], "w", "waits for its moment, in 5.0 s"),
        (
            [operator("HUMAN", "h")],
            "h",
            "waits for somebody to end it; do it with `broker-engine task complete w h`",
        ),
    ],
)
def test_a_task_of_the_engine_s_own_says_what_it_waits_for(step: list[Json], reference: str, sentence: str) -> None:
    assert explain(Tree(*step).begin().row(reference), None, START_MS) == sentence


def test_a_parent_says_which_workflow_it_waits_for() -> None:
    tree = Tree(operator("SUB_WORKFLOW", "s", subWorkflowParam={"name": "child"})).begin()

    row = tree.row("s")
    assert explain(row, None, START_MS) == f"waits for its sub-workflow {row.sub_workflow_id}"


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
    story = Story("a", "b").start().taken().pause_workflow(reason="look first").completed()

    assert explain(story.task, None, START_MS + 30_000, held_by=story.workflow) == (
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


WAITS = evolve(Story("a").start().task, waiting_for=WaitingFor.SLOT)
HOLDER = Entry(Stage.STARTED, "T", 1, "W", "ref", Line("encode", "default"), 0, START_MS)


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        (Standing(Need("type encode", 3, WaitingFor.SLOT), 12), "12th in line for 3 slots of task type encode"),
        (Standing(Need("type encode", 1, WaitingFor.SLOT), 21), "21st in line for 1 slot of task type encode"),
        (Standing(Need("tenant acme", 2, WaitingFor.SLOT), 2), "2nd in line for 2 slots of tenant acme"),
        (Standing(Need("all tasks", 9, WaitingFor.SLOT), 3), "3rd in line for 9 slots of all tasks"),
        (
            Standing(Need("rate encode", 1, WaitingFor.SLOT, 60_000), 1, opens_at_ms=START_MS + 2_500),
            "1st in line for 1 start per 60 s of task type encode, the next in 2.5 s",
        ),
        (Standing(None, 1), "1st in line of task type encode; its limits have room"),
    ],
)
def test_a_limited_task_says_where_it_stands(place: Standing, sentence: str) -> None:
    assert explain(WAITS, None, START_MS, place=place) == sentence


def test_a_task_that_waits_for_a_lock_says_who_has_it() -> None:
    waits = evolve(WAITS, waiting_for=WaitingFor.LOCK, resource="film.mov")
    lock = Need("lock film.mov", 1, WaitingFor.LOCK)

    first = explain(waits, None, START_MS, place=Standing(lock, 1, (HOLDER,)))
    third = explain(waits, None, START_MS, place=Standing(lock, 3, (HOLDER,)))

    assert first == "waits for lock film.mov held by task T (ref of workflow W)"
    assert third == "waits for lock film.mov (3rd in line) held by task T (ref of workflow W)"


@pytest.mark.parametrize(
    ("live", "sentence"),
    [
        (
            ("eu",),
            "no worker has polled task type encode in domain us for 30 s; "
            "it will be re-routed to domain eu, where one lives",
        ),
        ((), "no worker has polled task type encode in domain us for 30 s; nor is there one in eu, where it may go"),
    ],
)
def test_a_task_in_a_silent_domain_says_where_else_it_may_go(live: tuple[str, ...], sentence: str) -> None:
    task = Story("a").start(task_to_domain=b'{"encode": "eu, us"}').task

    said = explain(task, START_MS - 30_000, START_MS, choices=("eu",), live_choices=live)

    assert said == sentence


def test_whatever_waits_says_what_ends_the_wait() -> None:
    story = Story(a_step("a", poll_timeout_seconds=60)).start()

    assert said(story, 12_000).endswith(", poll time-out in 48 s")
