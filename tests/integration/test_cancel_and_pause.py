"""Cancel and pause on real Kafka: a task of four steps stops at the safe point after the second."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from pathlib import Path

import pytest

from broker_engine.model.status import Phase
from broker_engine.worker import TaskContext, Worker, WorkflowView, task
from tests.support.roles import RunningEngine, running_engine, until

pytestmark = pytest.mark.kafka

STEPS = ("VALIDATE", "PARSE", "UPSERT", "REPORT")
#: What ran, by workflow.
RAN: defaultdict[str, list[str]] = defaultdict(list)
#: Lets the second step end, by workflow.
GO_ON: defaultdict[str, threading.Event] = defaultdict(threading.Event)


def note(context: TaskContext) -> None:
    RAN[context.workflow_id].append("clean-up")


@task(name="four-steps", retryCount=2, retryDelaySeconds=0, onWorkerLost="WAIT", cleanup=note)
def four_steps(context: TaskContext) -> list[str]:
    def run(step: str) -> str:
        RAN[context.workflow_id].append(step)
        if step == "PARSE":
            GO_ON[context.workflow_id].wait(60)
        return step.lower()

    return [context.run_step(step, run, step) for step in STEPS]


@task(name="sleeps-long", retryCount=2, onWorkerLost="WAIT")
async def sleeps_long(context: TaskContext) -> None:
    RAN[context.workflow_id].append("begun")
    await asyncio.sleep(600)


def in_parse(engine: RunningEngine) -> str:
    started = engine.client.start_task("four-steps")
    until(lambda: "PARSE" in RAN[started], what="the second step")
    return started


def heard(engine: RunningEngine, worker: Worker, workflow_id: str) -> None:
    """Wait until the worker knows what it was told, so that the next safe point is the one after the present step."""
    assert worker._controls is not None
    (only,) = engine.client.get(workflow_id).tasks
    known = worker._controls._known
    until(lambda: only.task_id in known, what="the word to the worker")


def wait_for_phase(engine: RunningEngine, workflow_id: str, phase: Phase) -> WorkflowView:
    until(lambda: engine.client.get(workflow_id).tasks[0].phase is phase, what=phase)
    return engine.client.get(workflow_id)


def test_a_task_stops_at_its_next_safe_point_and_goes_on_from_there(
    bootstrap: str, namespace: str, tmp_path: Path
) -> None:
    with running_engine(bootstrap, namespace, tmp_path, partitions=2) as engine:
        worker = engine.work(four_steps, sleeps_long)
        client = engine.client
        until(lambda: "sleeps-long" in client.task_definitions(), what="the registrations")
        canceled, paused, asleep = in_parse(engine), in_parse(engine), client.start_task("sleeps-long")

        said = client.cancel_task(canceled, "four-steps", reason="wrong file")
        client.pause_task(paused, "four-steps")
        (asked,) = client.get(canceled).tasks
        for each in (canceled, paused):
            heard(engine, worker, each)
            GO_ON[each].set()
        ended = client.wait(canceled, 30)
        held = wait_for_phase(engine, paused, Phase.PAUSED).tasks[0]
        again = [client.cancel_task(canceled, "four-steps"), client.cancel_task(ended.tasks[0].task_id)]
        ran_before = list(RAN[paused])
        client.resume_task(paused, "four-steps")
        finished = client.wait(paused, 30)
        late = client.cancel_task(paused, "four-steps")

        until(lambda: RAN[asleep], what="the async task")
        client.cancel_task(asleep, "sleeps-long")
        interrupted = client.wait(asleep, 10)

    assert "was asked to stop" in said
    assert (asked.phase, asked.status) == (Phase.CANCELING, "IN_PROGRESS")
    assert RAN[canceled] == ["VALIDATE", "PARSE", "clean-up"]
    assert [(t.status, t.attempt) for t in ended.tasks] == [("CANCELED", 0)]
    assert ended.tasks[0].reason is not None
    assert ended.tasks[0].reason.endswith("wrong file")
    assert ended.status == "TERMINATED"
    assert again == ["already ended: the workflow is TERMINATED", "already CANCELED"]

    assert ran_before == ["VALIDATE", "PARSE", "clean-up"]
    assert [step.name for step in held.steps] == ["VALIDATE", "PARSE"]
    assert RAN[paused] == [*ran_before, "UPSERT", "REPORT", "clean-up"]
    assert [(t.status, t.attempt, t.hand_out) for t in finished.tasks] == [("COMPLETED", 0, 2)]
    assert finished.output == {"result": ["validate", "parse", "upsert", "report"]}
    assert late == "already ended: the workflow is COMPLETED"

    assert interrupted.tasks[0].status == "CANCELED"
