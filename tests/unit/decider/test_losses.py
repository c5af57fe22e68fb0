"""What becomes of the attempts of a worker that fell silent."""

import pytest

from broker_engine.model.commands import WorkerLost
from broker_engine.model.definitions import OnWorkerLost, TimeoutPolicy
from broker_engine.model.status import Phase, ReasonCode, TaskStatus
from tests.builders import START_MS, Story, a_step


def lost(story: Story, worker: str = "worker-1", at_ms: int = START_MS + 10_000) -> Story:
    story.now_ms = max(story.now_ms, at_ms)
    return story.send(WorkerLost(key=story.workflow.workflow_id, worker_id=worker, lost_at_ms=at_ms))


@pytest.mark.parametrize("policy", TimeoutPolicy)
def test_its_attempt_times_out_and_is_retried_whatever_the_policy(policy: TimeoutPolicy) -> None:
    story = Story(a_step("a", timeout_policy=policy, response_timeout_seconds=3_600)).start().taken()
    first = story.task

    lost(story)

    assert (story.task.attempt, story.task.phase, story.task.retried_task_id) == (1, Phase.RETRY_WAIT, first.task_id)
    ended = next(t for t in story.decision.changed_tasks if t.task_id == first.task_id and t.is_terminal)
    assert (ended.status, ended.reason_code) == (TaskStatus.TIMED_OUT, ReasonCode.WORKER_LOST)
    assert ended.reason == "worker worker-1 fell silent"


def test_without_an_attempt_left_the_workflow_times_out() -> None:
    story = lost(Story(a_step("a", retry_count=0)).start().taken())

    assert (story.workflow.status, story.workflow.reason_code) == ("TIMED_OUT", ReasonCode.WORKER_LOST)


def test_a_definition_may_wait_for_its_own_time_outs() -> None:
    story = Story(a_step("a", on_worker_lost=OnWorkerLost.WAIT)).start().taken()
    before = story.task

    assert lost(story).task == before


def test_the_attempt_of_another_worker_goes_on() -> None:
    story = Story("a").start().taken(worker="worker-2")
    before = story.task

    assert lost(story).task == before


def test_an_attempt_with_a_sign_of_life_after_the_loss_goes_on() -> None:
    story = Story("a").start().taken().later(10_001).progressed()
    before = story.task

    assert lost(story, at_ms=START_MS + 10_000).task == before


def test_what_waits_on_its_queue_goes_on_waiting() -> None:
    story = Story("a").start().taken().progressed(callback_after_ms=60_000)
    before = story.task

    assert lost(story).task == before


def test_a_loss_that_is_told_twice_costs_one_attempt() -> None:
    story = lost(Story("a").start().taken())
    before = story.execution

    assert lost(story).execution == before
