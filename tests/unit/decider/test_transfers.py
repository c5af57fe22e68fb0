"""A waiting task goes to another domain: by an operator's hand, or because its own domain has no worker."""

from __future__ import annotations

from typing import Any

import pytest

from broker_engine.decider.transfers import live_choice
from broker_engine.model.commands import SlotGranted
from broker_engine.model.decision import TellLimiter
from broker_engine.model.slots import ReleaseSlot, RequestSlot
from broker_engine.model.state import TaskState
from broker_engine.model.status import Phase, ReasonCode, WaitingFor
from tests.builders import START_MS, Pollers, Story, a_step, a_task_def, asked

CHOICES = b'{"encode": "eu, us"}'


def waiting(**start: Any) -> Story:
    """A task on the queue of domain us, the last of its list."""
    return Story("a").start(task_to_domain=CHOICES, **start)


def limited() -> Story:
    definition = a_task_def(concurrent_exec_limit=1)
    story = Story(a_step("a", definition))
    story.definitions.tasks[definition.name] = definition
    return story.start(task_to_domain=CHOICES)


def granted(story: Story, hand_out: int) -> Story:
    task = story.task
    about = {"key": task.workflow_id, "reference": task.reference, "task_id": task.task_id}
    return story.send(SlotGranted(**about, hand_out=hand_out))


def told(story: Story) -> list[Any]:
    return [output.slot for output in story.decision.outputs if isinstance(output, TellLimiter)]


# --- moved by an operator


def test_a_moved_task_is_handed_out_in_the_other_domain_under_a_new_number() -> None:
    story = Story("a").start().later(5_000).moved("eu", **asked())

    assert (story.task.domain, story.task.hand_out, story.task.phase) == ("eu", 2, Phase.QUEUED)
    assert [(s.task.domain, s.task.hand_out) for s in story.schedules] == [("default", 1), ("eu", 2)]
    assert story.task.handed_out_at_ms == START_MS + 5_000
    assert story.answer.status == 200


def test_the_old_hand_out_of_a_moved_task_is_void() -> None:
    story = Story("a").start()
    before = story.task
    moved = story.moved("eu").execution

    story.started(of=before, wants_confirmation=True)

    story.assert_untouched(moved, says="hand-out 1 is void, the current one is 2")
    assert not story.confirm.accepted


def test_the_event_says_where_it_went_and_why() -> None:
    story = Story("a").start().moved("eu", reason="the old host is full", operator="user:ada")

    (transition,) = story.decision.transitions
    assert (transition.reason_code, transition.reason) == (ReasonCode.MOVED, "the old host is full")
    assert (transition.from_phase, transition.to_phase) == (Phase.QUEUED, Phase.QUEUED)


def test_without_a_reason_the_event_names_both_domains() -> None:
    assert Story("a").start().moved("eu").task.reason == "moved from domain default to eu"


def test_a_task_that_waits_for_its_retry_gets_there_when_that_is_over() -> None:
    story = Story("a").start().fail_once()
    story.taken().failed().moved("eu")

    assert (story.task.phase, story.task.domain, story.task.hand_out) == (Phase.RETRY_WAIT, "eu", 0)
    handed_out = story.later(1_000).delay_due().schedules[-1].task
    assert (handed_out.domain, handed_out.hand_out) == ("eu", 1)


def test_a_task_without_a_topic_in_the_other_domain_waits_for_it_and_its_old_hand_out_is_void() -> None:
    story = Story("a").start()
    before = story.task
    story.queues.missing.add("encode")
    story.moved("eu")

    assert (story.task.waiting_for, story.task.hand_out) == (WaitingFor.TOPIC, 2)
    assert "void" in str(story.started(of=before).ignored)


def test_a_task_that_waits_for_its_slot_asks_anew_in_the_other_domain() -> None:
    story = limited().moved("eu")

    released, requested = told(story)
    assert released == ReleaseSlot(story.task.task_id, 1)
    assert isinstance(requested, RequestSlot)
    assert (requested.hand_out, requested.line.domain) == (2, "eu")


def test_a_grant_that_was_on_its_way_when_the_task_was_moved_is_given_back() -> None:
    story = granted(limited().moved("eu"), 1)

    assert told(story) == [ReleaseSlot(story.task.task_id, 1)]
    assert story.schedules == []


def test_a_granted_task_gives_its_slot_back_once_and_asks_anew() -> None:
    story = granted(limited(), 1).moved("eu")

    assert [type(slot) for slot in told(story)] == [ReleaseSlot, RequestSlot]
    assert granted(story, 3).schedules[-1].task.hand_out == 3


@pytest.mark.parametrize("happens", [lambda story: story.taken(), lambda story: story.taken().completed({})])
def test_a_running_or_ended_task_is_not_moved(happens: Any) -> None:
    story = happens(Story("a").start())
    before: TaskState = story.task

    story.moved("eu", **asked())

    assert story.answer.status == 409
    assert "only a waiting task can be moved" in story.answer.message
    assert story.task == before


def test_an_earlier_attempt_is_not_moved() -> None:
    story = Story("a").start()
    first = story.task
    story.fail_once().moved("eu", of=first, **asked())

    assert (story.answer.status, story.task.domain) == (409, "default")


def test_a_task_that_is_there_already_stays_as_it_is() -> None:
    story = Story("a").start()
    before = story.task

    story.moved("NO_DOMAIN", **asked())

    assert (story.answer.status, story.task) == (200, before)


@pytest.mark.parametrize("domain", ["", " ", "a,b", "tab\t", "x" * 61])
def test_a_domain_that_cannot_be_is_refused(domain: str) -> None:
    story = Story("a").start().moved(domain, **asked())

    assert (story.answer.status, story.task.domain) == (400, "default")


# --- re-routed


def test_a_rerouted_task_is_handed_out_in_the_domain_that_is_polled() -> None:
    story = waiting().later(11_000).rerouted("eu", reason="nobody polls us")

    assert (story.task.domain, story.task.hand_out, story.task.domain_choices) == ("eu", 2, "eu,us")
    assert [(t.reason_code, t.reason) for t in story.decision.transitions] == [(ReasonCode.REROUTED, "nobody polls us")]
    assert story.schedules[-1].task.domain == "eu"


def test_a_task_is_rerouted_to_domains_of_its_list_only() -> None:
    story = waiting()
    before = story.execution

    story.rerouted("mars")
    story.assert_untouched(before, says="none that the task may go to")


def test_a_task_with_one_domain_is_never_rerouted() -> None:
    story = Story("a").start(task_to_domain=b'{"encode": "us"}')
    before = story.execution

    story.rerouted("us")
    story.assert_untouched(before, says="waits for no worker")


def test_a_task_that_was_started_meanwhile_is_not_rerouted() -> None:
    story = waiting()
    before = story.task
    started = story.taken().execution

    story.rerouted("eu", of=before)
    story.assert_untouched(started, says="RUNNING")


def test_a_task_that_was_put_away_by_its_worker_is_not_rerouted() -> None:
    """Its worker may have left something in the domain that goes on there."""
    story = waiting().taken().progressed(callback_after_ms=1_000).later(1_000).delay_due()
    before = story.execution
    assert story.task.waiting_for is WaitingFor.WORKER

    story.rerouted("eu")
    story.assert_untouched(before, says="waits for no worker")


def test_a_reroute_of_an_earlier_hand_out_changes_nothing() -> None:
    story = waiting()
    before = story.task
    rerouted = story.rerouted("eu").execution

    story.rerouted("eu", of=before)
    story.assert_untouched(rerouted, says="hand-out 1 is void")


def test_a_task_that_was_moved_by_hand_stays_there() -> None:
    story = waiting().moved("mars")
    before = story.execution

    story.rerouted("eu")
    story.assert_untouched(before, says="waits for no worker")


def test_the_next_attempt_chooses_among_all_domains_again() -> None:
    story = waiting().moved("mars").taken().failed()

    assert (story.task.domain, story.task.domain_choices) == ("us", "eu,us")


def test_the_first_domain_of_the_list_that_lives_is_taken() -> None:
    pollers = Pollers({("eu", "encode"): START_MS - 10_000, ("us", "encode"): START_MS - 9_999})

    assert live_choice("eu,us", "encode", pollers, START_MS) == "us"
    assert live_choice("eu", "encode", pollers, START_MS) is None
