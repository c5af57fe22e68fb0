"""The table of moves: every legal move is reached by driving ``decide``, every other one is refused."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from broker_engine.decider.draft import Draft
from broker_engine.decider.moves import MOVES, Cause, mermaid
from broker_engine.errors import InvariantViolation
from broker_engine.model.commands import SkipTask, SubWorkflowEnded, Tick
from broker_engine.model.definitions import TimeoutPolicy
from broker_engine.model.status import (
    FACTS,
    STARTED,
    STATUSES_OF,
    TERMINAL_PHASES,
    Phase,
    ReasonCode,
    TaskStatus,
    WorkflowStatus,
)
from tests.builders import SMALL_PAYLOAD, Story, a_context, a_step
from tests.support.trees import Tree, loop, operator, simple

Move = tuple[Phase | None, Cause, Phase]
LEGAL: tuple[Move, ...] = tuple(
    (source, cause, target) for (source, cause), targets in MOVES.items() for target in sorted(targets)
)
TOO_LARGE = {"text": "x" * SMALL_PAYLOAD}


def reach(phase: Phase, *, optional: bool, policy: TimeoutPolicy) -> Story:
    """A story whose only task is in this live phase, a minute before its total time-out."""
    step = a_step(
        "a",
        total_timeout_seconds=60,
        timeout_policy=policy,
        optional=optional,
        retry_count=1 if phase is Phase.RETRY_WAIT else 0,
        start_delay_seconds=30 if phase is Phase.CREATED else 0,
    )
    story = Story(step).given(max_payload_bytes=SMALL_PAYLOAD).start()
    match phase:
        case Phase.RUNNING:
            story.taken()
        case Phase.STARTING:
            story.taken(prepares=True)
        case Phase.PAUSED:
            story.pause()
        case Phase.CANCELING:
            story.taken().cancel()
        case Phase.RETRY_WAIT:
            story.taken().failed()
        case _:
            pass
    assert story.task.phase is phase
    return story


def appear(target: Phase) -> Story:
    match target:
        case Phase.CREATED:
            return Story(a_step("a", start_delay_seconds=1)).start()
        case Phase.QUEUED:
            return Story("a").start()
        case Phase.RETRY_WAIT:
            return Story("a").start().taken().failed()
        case Phase.SKIPPED:
            tree = Tree(simple("a"), simple("b")).begin()
            tree.operate(SkipTask, reference="b")
            return tree.done("a")
        case Phase.PAUSED:
            return Story("a", "b").start().taken().pause_workflow().completed()
        case _:
            # Twice the input is over the limit.
            template = {"once": "${workflow.input.text}", "again": "${workflow.input.text}"}
            step = a_step("a", input_parameters=template, optional=target is Phase.SUCCEEDED)
            half = b'{"text": "%s"}' % (b"x" * (SMALL_PAYLOAD // 2))
            return Story(step).given(max_payload_bytes=SMALL_PAYLOAD).start(input=half)


def a_draft(story: Story) -> Draft:
    return Draft(story.execution_now, Tick(key="w"), a_context())


HAPPENINGS: dict[Cause, Callable[[Story], object]] = {
    Cause.DELAY_OVER: lambda story: story.later(30_000).delay_due(),
    Cause.PUT_AWAY: lambda story: story.progressed(callback_after_ms=1_000),
    Cause.PREPARED: lambda story: story.prepared(),
    Cause.FAILED: lambda story: story.failed(),
    Cause.FAILED_TERMINALLY: lambda story: story.failed_terminally(),
    Cause.CANCELED_BY_WORKER: lambda story: story.canceled(),
    Cause.TIMED_OUT: lambda story: story.later(60_000).deadline(),
    Cause.ALERTED: lambda story: story.later(60_000).deadline(),
    Cause.WORKFLOW_ENDS: lambda story: story.terminate(),
    Cause.MOVED: lambda story: story.moved("elsewhere"),
    Cause.CANCELED: lambda story: story.cancel(),
    Cause.CANCEL_ASKED: lambda story: story.cancel(),
    Cause.PAUSE_ASKED: lambda story: story.pause(),
}


def told(source: Phase | None, cause: Cause, target: Phase) -> Story:
    """A story that goes through one move."""
    if (source, target) == (None, Phase.RUNNING) or (source, cause) == (Phase.RUNNING, Cause.CANCELED):
        human = Tree(operator("HUMAN", "a", optional=target is Phase.SUCCEEDED)).begin()
        return human if source is None else human.cancel("a")
    if source is None:
        return appear(target)
    if cause is Cause.EVALUATES or cause is Cause.ITERATES:
        tree = Tree(loop("l", [simple("a")])).begin().done("a__1")
        if cause is Cause.ITERATES and source is not Phase.QUEUED:
            tree.started(of=tree.row("l"), prepares=source is Phase.STARTING)
        return tree.completed({"result": True}, of=tree.row("l")) if cause is Cause.ITERATES else tree
    if cause is Cause.CHILD_STARTED:
        return retried_child(is_paused=source is Phase.PAUSED)
    if cause is Cause.READY:
        return ready(target)
    if cause is Cause.HANDED_OUT_AGAIN:
        return Story("a").start().next_deadline()
    if (source, cause) == (Phase.QUEUED, Cause.DELAY_OVER):
        return Story("a").start().taken().progressed(callback_after_ms=30_000).later(30_000).delay_due()
    if source in STARTED and cause is Cause.PAUSED:
        return Story("a").start().taken(prepares=source is Phase.STARTING).pause().paused()
    if source in STARTED and cause is Cause.RESUMED:
        return Story("a").start().taken(prepares=source is Phase.STARTING).pause().resume()
    if cause is Cause.PAUSED:
        return reach(source, optional=False, policy=TimeoutPolicy.RETRY).pause()
    if cause is Cause.RESUMED:
        return reach(target, optional=False, policy=TimeoutPolicy.RETRY).pause().resume()
    policy = TimeoutPolicy.ALERT_ONLY if cause is Cause.ALERTED else TimeoutPolicy.TIME_OUT_WF
    story = reach(source, optional=target is Phase.SUCCEEDED, policy=policy)
    if cause is Cause.COMPLETED:
        story.completed(TOO_LARGE if target in (Phase.FAILED, Phase.CANCELED) else {})
    elif cause is Cause.STARTED:
        story.taken(prepares=target is Phase.STARTING)
    else:
        HAPPENINGS[cause](story)
    return story


def ready(target: Phase) -> Story:
    """A task that depends on another one, which ends."""
    twice = {"text": "${a.output.text}", "again": "${a.output.text}"}
    step: dict[str, Any] = simple("b", inputParameters=twice)
    match target:
        case Phase.CREATED:
            step["startDelay"] = 5
        case Phase.RUNNING:
            step = operator("HUMAN", "b")
        case Phase.SUCCEEDED:
            step = operator("NOOP", "b")
        case _:
            pass
    tree = Tree(simple("a"), {**step, "dependsOn": ["a"]}).begin().take("a")
    if target is Phase.PAUSED:
        tree.pause_workflow()
    if target is Phase.SKIPPED:
        tree.send(SkipTask(key="w", reference="b"))
    if target is Phase.FAILED:
        tree.given(max_payload_bytes=SMALL_PAYLOAD)
        return tree.completed({"text": "x" * (SMALL_PAYLOAD // 2)}, of=tree.row("a"))
    return tree.completed({}, of=tree.row("a"))


def retried_child(*, is_paused: bool) -> Story:
    """A sub-workflow that has failed, and is started again."""
    again = {"name": "a", "retryCount": 1, "retryDelaySeconds": 5}
    step = operator("SUB_WORKFLOW", "a", subWorkflowParam={"name": "child"}, taskDefinition=again)
    tree = Tree(step).begin()
    about = {"key": "w", "reference": "a", "task_id": tree.row("a").task_id, "hand_out": 0}
    story = tree.send(SubWorkflowEnded(**about, status=WorkflowStatus.FAILED))
    if is_paused:
        return story.pause("a").later(5_000).delay_due().resume("a")
    return story.later(5_000).delay_due()


@pytest.mark.parametrize(("source", "cause", "target"), LEGAL)
def test_every_legal_move_is_reached_by_some_command(source: Phase | None, cause: Cause, target: Phase) -> None:
    assert (source, cause, target) in set(told(source, cause, target).moves())


def test_stories_go_through_exactly_the_moves_of_the_table() -> None:
    """Counted as a whole: a move that is not in the table, or one that nothing reaches, fails here."""
    visited = {move for legal in LEGAL for move in told(*legal).moves()}

    assert visited == set(LEGAL)
    assert len(visited) == sum(map(len, MOVES.values()))


def test_every_other_move_is_refused() -> None:
    story = Story("a").start()
    refused = 0
    for source, cause, target in product(Phase, Cause, Phase):
        if (source, cause, target) in LEGAL:
            continue
        task = story.task._replace(phase=source, status=STATUSES_OF[source][0])
        with pytest.raises(InvariantViolation, match="may not go from"):
            a_draft(story).move(task, cause, target, ReasonCode.WORKER_REPORTED)
        refused += 1

    assert refused == len(Phase) * len(Cause) * len(Phase) - sum(source is not None for source, _, _ in LEGAL)


@pytest.mark.parametrize("phase", sorted(set(Phase) - MOVES[None, Cause.APPEARS]))
def test_no_task_appears_in_any_other_phase(phase: Phase) -> None:
    story = Story("a").start()

    with pytest.raises(InvariantViolation, match="may not go from None"):
        a_draft(story).appear(
            story.task._replace(phase=phase, status=STATUSES_OF[phase][0]), ReasonCode.WORKFLOW_STARTED
        )


@pytest.mark.parametrize("phase", Phase)
def test_a_move_to_a_status_that_its_phase_does_not_allow_is_refused(phase: Phase) -> None:
    story = Story("a").start().taken()
    for status in set(TaskStatus) - set(STATUSES_OF[phase]):
        with pytest.raises(InvariantViolation):
            a_draft(story).move(story.task, Cause.COMPLETED, phase, ReasonCode.WORKER_REPORTED, status=status)


def test_nothing_leads_out_of_an_ended_task() -> None:
    assert not {source for source, _ in MOVES} & TERMINAL_PHASES


def test_every_cause_is_in_the_table() -> None:
    assert {cause for _, cause in MOVES} == set(Cause)


def test_the_phases_of_a_status_agree_with_its_facts() -> None:
    assert {status for statuses in STATUSES_OF.values() for status in statuses} == set(TaskStatus)
    for phase, statuses in STATUSES_OF.items():
        for status in statuses:
            assert FACTS[status].is_terminal == (phase in TERMINAL_PHASES)


def test_the_diagram_shows_every_move() -> None:
    lines = mermaid().splitlines()

    assert lines[0] == "stateDiagram-v2"
    edges = {line.split(": ")[0].strip(): line.split(": ")[1].split(", ") for line in lines if ": " in line}
    for source, cause, target in LEGAL:
        assert cause in edges[f"{source or '[*]'} --> {target}"]
    ends = {line.split()[0] for line in lines if line.endswith("--> [*]")}
    assert ends == {phase for phase in TERMINAL_PHASES if any(phase in targets for targets in MOVES.values())}
