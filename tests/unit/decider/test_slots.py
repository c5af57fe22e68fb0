"""What a limited task asks of the limiter and tells it, one workflow at a time."""

from __future__ import annotations

from typing import Any

from broker_engine.decider.deadlines import SLOT_GRACE_MS
from broker_engine.decider.decide import decide
from broker_engine.model.commands import GrantExpired, SlotGranted
from broker_engine.model.decision import TellLimiter
from broker_engine.model.limits import START_WITHIN_MS
from broker_engine.model.slots import Line, ReleaseSlot, RequestSlot, SlotMessage, SlotStarted
from broker_engine.model.state import TaskState
from broker_engine.model.status import Phase, WaitingFor
from tests.builders import START_MS, Story, a_context, a_step, a_task_def
from tests.support.trees import Tree, operator


def limited(*references: str, **fields: Any) -> Story:
    """A story whose task type has a limit (of 1, when no other is given)."""
    definition = a_task_def(**(fields or {"concurrent_exec_limit": 1}))
    story = Story(*(a_step(reference, definition) for reference in references or ("a",)))
    story.definitions.tasks[definition.name] = definition
    return story


def unlimit(story: Story) -> Story:
    story.definitions.tasks["encode"] = a_task_def()
    return story


def grant(story: Story, *, of: TaskState | None = None) -> Story:
    task = of or story.task
    return story.send(SlotGranted(**about(task, task.hand_out + 1)))


def expire(story: Story, *, of: TaskState | None = None) -> Story:
    task = of or story.task
    return story.send(GrantExpired(**about(task, task.hand_out)))


def about(task: TaskState, hand_out: int) -> dict[str, Any]:
    return {"key": task.workflow_id, "reference": task.reference, "task_id": task.task_id, "hand_out": hand_out}


def told(story: Story) -> list[SlotMessage]:
    """What the last decision tells the limiter."""
    return [output.slot for output in story.decision.outputs if isinstance(output, TellLimiter)]


def test_a_limited_task_asks_instead_of_being_handed_out() -> None:
    story = limited().start(priority=7, tenant="acme")

    task = story.task
    assert (task.phase, task.waiting_for, task.hand_out) == (Phase.QUEUED, WaitingFor.SLOT, 0)
    assert (task.handed_out_at_ms, task.holds_slot, story.schedules) == (None, True, [])
    line = Line("encode", "default", "acme")
    assert told(story) == [RequestSlot(task.task_id, 1, "w", "a", line, 7, START_MS)]


def test_a_task_without_limits_tells_nothing() -> None:
    story = unlimit(limited()).start()

    assert (story.task.waiting_for, story.task.holds_slot, told(story)) == (WaitingFor.WORKER, False, [])


def test_a_grant_hands_it_out_and_says_until_when_it_has_to_start() -> None:
    story = grant(limited().start().later(2_000))

    assert (story.task.waiting_for, story.task.hand_out) == (WaitingFor.WORKER, 1)
    assert story.task.handed_out_at_ms == story.now_ms
    assert [schedule.start_before_ms for schedule in story.schedules] == [story.now_ms + START_WITHIN_MS]


def test_the_limiter_hears_of_start_and_end_once() -> None:
    story = grant(limited().start()).later(10).started()
    assert told(story) == [SlotStarted(story.task.task_id, 1, story.now_ms)]
    story.started()  # a second one takes over
    assert told(story) == []

    story.completed()
    assert told(story) == [ReleaseSlot(story.task.task_id, 1, story.now_ms)]
    assert not story.task.holds_slot


def test_a_callback_gives_the_slot_back_and_asks_for_the_next_as_old_as_it_was() -> None:
    story = grant(limited().start()).later(10).started().progressed(callback_after_ms=1_000)
    assert told(story) == [ReleaseSlot(story.task.task_id, 1, story.now_ms)]

    story.later(1_000).delay_due()
    (request,) = told(story)
    assert isinstance(request, RequestSlot)
    assert (request.hand_out, request.asked_at_ms) == (2, START_MS)


def test_a_retry_asks_with_its_own_age_from_the_end_of_its_back_off() -> None:
    story = grant(limited().start()).started().later(500).failed()
    story.later(1_000).delay_due()

    (request,) = told(story)
    assert isinstance(request, RequestSlot)
    assert (request.hand_out, request.asked_at_ms) == (1, START_MS + 1_500)


def test_the_end_of_the_workflow_takes_the_request_back() -> None:
    story = limited().start().terminate()

    assert told(story) == [ReleaseSlot(story.task.task_id, 1)]


def test_a_grant_that_comes_after_the_end_is_given_back() -> None:
    story = limited().start()
    waits = story.task
    grant(story.terminate(), of=waits)

    assert told(story) == [ReleaseSlot(waits.task_id, 1)]


def test_a_grant_for_a_workflow_that_is_gone_is_given_back() -> None:
    task = limited().start().task
    decision = decide(None, SlotGranted(**about(task, 1)), a_context())

    assert decision.outputs == (TellLimiter(slot=ReleaseSlot(task.task_id, 1)),)


def test_a_grant_that_comes_twice_hands_out_once() -> None:
    story = limited().start()
    waits = story.task
    grant(grant(story), of=waits)

    assert (told(story), len(story.schedules)) == ([], 1)


def test_a_grant_for_a_queue_that_is_gone_goes_back_and_is_asked_for_when_the_topic_is_there() -> None:
    story = limited().start()
    story.queues.missing.add("encode")
    grant(story)
    assert (story.task.waiting_for, told(story)) == (WaitingFor.TOPIC, [ReleaseSlot(story.task.task_id, 1)])

    story.queues.missing.clear()
    story.queue_ready()
    assert [type(message) for message in told(story)] == [RequestSlot]


def test_an_expired_grant_is_void_and_asked_for_again_under_the_next_number() -> None:
    story = expire(grant(limited().start()).later(6_000))
    first, second = told(story)
    assert first == ReleaseSlot(story.task.task_id, 1)
    assert isinstance(second, RequestSlot)
    assert (second.hand_out, second.asked_at_ms) == (2, START_MS)

    story.started(hand_out=1)
    assert story.task.phase is Phase.QUEUED
    assert "void" in (story.ignored or "")


def test_asked_before_the_time_to_start_is_over_the_hand_out_stays_valid() -> None:
    """A worker that starts in time does not ask: voided, it would run beside the next one."""
    story = expire(grant(limited().start()).later(START_WITHIN_MS - 1))
    assert told(story) == []

    assert story.started().task.phase is Phase.RUNNING


def test_asked_about_a_grant_that_was_started_the_decider_says_so() -> None:
    story = grant(limited().start()).started()
    expire(story)

    assert told(story) == [SlotStarted(story.task.task_id, 1, story.now_ms)]
    assert story.task.phase is Phase.RUNNING


def test_asked_about_an_earlier_grant_the_decider_gives_it_back() -> None:
    story = grant(limited().start())
    old = story.task
    grant(expire(story.later(6_000)))
    expire(story, of=old)

    assert told(story) == [ReleaseSlot(old.task_id, 1)]
    assert story.task.waiting_for is WaitingFor.WORKER


def test_a_waiting_task_repeats_its_request_and_nothing_else() -> None:
    story = limited().start()
    before = told(story)
    story.later(SLOT_GRACE_MS).deadline()

    assert told(story) == before
    assert story.decision.transitions == ()
    assert story.task.next_deadline_at_ms == story.now_ms + SLOT_GRACE_MS


def test_a_waiting_task_goes_out_by_itself_when_its_limit_is_gone() -> None:
    story = unlimit(limited().start()).later(SLOT_GRACE_MS).deadline()
    assert (story.task.waiting_for, story.task.hand_out) == (WaitingFor.WORKER, 1)

    story.started().completed()
    assert told(story) == [ReleaseSlot(story.task.task_id, 1, story.now_ms)]


def test_no_poll_clock_runs_while_it_waits() -> None:
    definition = a_task_def(concurrent_exec_limit=1, poll_timeout_seconds=5)
    story = Story(a_step("a", definition))
    story.definitions.tasks["encode"] = definition
    story.start().later(6_000).deadline()
    assert story.task.phase is Phase.QUEUED

    grant(story).next_deadline()
    assert story.now_ms == START_MS + 11_000


def test_a_lock_is_a_resolved_value_and_none_without_one() -> None:
    lock = {"resource_lock": "${workflow.input.file}"}
    story = limited(**lock).start(input=b'{"file":"film.mov"}')
    assert (story.task.waiting_for, story.task.resource) == (WaitingFor.LOCK, "film.mov")
    (request,) = told(story)
    assert isinstance(request, RequestSlot)
    assert request.line.resource == "film.mov"

    free = limited(**lock).start()
    assert (free.task.waiting_for, free.task.resource) == (WaitingFor.WORKER, None)


def test_finished_by_hand_while_it_waits_it_takes_its_request_back() -> None:
    story = limited().start().completed()

    assert story.task.phase is Phase.SUCCEEDED
    assert told(story) == [ReleaseSlot(story.task.task_id, 1)]


def test_an_operator_is_limited_by_the_definition_of_its_step_s_name() -> None:
    fetch = operator("HTTP", "a", inputParameters={"uri": "http://x"}) | {"name": "fetch"}
    tree = Tree(fetch)
    tree.definitions.tasks["fetch"] = a_task_def("fetch", concurrent_exec_limit=1)
    tree.definitions.tasks["HTTP"] = a_task_def("HTTP")
    tree.begin()

    (asked,) = tree.now(TellLimiter)
    assert isinstance(asked.slot, RequestSlot)
    assert (asked.slot.line.task_type, asked.slot.line.domain, tree.row("a").waiting_for) == ("fetch", "system", "slot")


def test_an_operator_is_not_limited_by_a_definition_of_the_operator_s_name() -> None:
    tree = Tree(operator("HTTP", "a", inputParameters={"uri": "http://x"}))
    tree.definitions.tasks["HTTP"] = a_task_def("HTTP", concurrent_exec_limit=1)

    assert tree.begin().waiting == ["a"]
