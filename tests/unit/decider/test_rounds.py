"""Loops of many rounds: bounded turns, flat costs, and a memory that holds no rounds that are over."""

from __future__ import annotations

import time
from typing import Any

import orjson
import pytest

from broker_engine.decider import rounds
from broker_engine.model.commands import ContinueLoop
from broker_engine.model.decision import Send
from broker_engine.model.status import WaitingFor
from broker_engine.wire.codecs import TASK_STATE, is_too_large
from tests.support.trees import Tree, each, fork, loop, operator, simple

Json = dict[str, Any]


def of_nothing(count: int, *after: Json, **fields: Any) -> Tree:
    """A loop whose body needs no worker."""
    tree = Tree(each("l", "${workflow.input.items}", [operator("NOOP", "n")], **fields), *after)
    return tree.begin(items=list(range(count)))


def turns(tree: Tree) -> list[ContinueLoop]:
    return [out.command for out in tree.now(Send) if isinstance(out.command, ContinueLoop)]


# --- turns


def test_a_decision_writes_a_bounded_number_of_rows_and_goes_on_by_a_command() -> None:
    tree = of_nothing(1_200, simple("last"))
    assert len(tree.decision.changed_tasks) <= rounds.MAX_ROWS + 10
    assert (tree.row("l").waiting_for, [command.task_id for command in turns(tree)]) == (
        WaitingFor.TURN,
        [tree.row("l").task_id],
    )

    tree.go_on()

    assert tree.waiting == ["last"]
    assert tree.output("l")["iteration"] == 1_200
    assert max(len(decision.changed_tasks) for _, decision in tree.told) <= rounds.MAX_ROWS + 10


def test_a_turn_that_comes_twice_changes_nothing() -> None:
    tree = of_nothing(1_200)
    (command,) = turns(tree)
    tree.send(command)
    before = tree.execution

    tree.send(command)

    assert (tree.execution, tree.now(Send)) == (before, [])
    assert "does not wait for its turn behind round" in (tree.ignored or "")


def test_a_pause_keeps_a_loop_from_its_turn_until_it_is_resumed() -> None:
    tree = of_nothing(1_200)
    (command,) = turns(tree)
    tree.pause_workflow()
    tree.send(command)
    assert (tree.row("l").iteration, tree.ignored) == (
        command.round,
        "the workflow is paused, the loop goes on with it",
    )

    tree.resume_workflow().go_on()

    assert tree.workflow.status == "COMPLETED"


def test_a_turn_that_is_lost_is_taken_after_a_minute() -> None:
    tree = of_nothing(300)
    at_ms = tree.row("l").next_deadline_at_ms
    assert (tree.row("l").next_deadline, at_ms) == ("wait", tree.now_ms + 60_000)

    tree.next_deadline()

    assert tree.workflow.status == "COMPLETED"


def test_a_workflow_can_be_ended_between_two_turns() -> None:
    tree = of_nothing(10_000)
    (command,) = turns(tree)

    tree.terminate("enough").send(command)

    assert (tree.workflow.status, tree.ignored) == ("TERMINATED", "the task is CANCELED already")


def test_other_branches_have_their_turn_in_between() -> None:
    branch = [each("l", list(range(2_000)), [operator("NOOP", "n")])]
    tree = Tree(*fork("f", branch, [simple("a"), simple("b")])).begin()

    tree.done("a")

    assert (tree.waiting, tree.row("l").waiting_for) == (["b"], WaitingFor.TURN)


def test_loops_in_loops_are_bounded_together() -> None:
    inner = each("inner", list(range(40)), [operator("NOOP", "n")])
    tree = Tree(each("outer", list(range(100)), [inner])).begin()
    tree.go_on()

    assert (tree.workflow.status, tree.output("outer")["100"]["inner"]["iteration"]) == ("COMPLETED", 40)
    assert max(len(decision.changed_tasks) for _, decision in tree.told) < rounds.MAX_ROWS + 10


# --- what it costs


def record_bytes(tree: Tree) -> list[int]:
    return [len(TASK_STATE.encode(row)) for row in tree.decision.changed_tasks]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["list", "condition"])
def test_ten_thousand_rounds_cost_the_same_from_first_to_last(kind: str) -> None:
    count = 10_000
    old, young = OneRoundAtATime(kind, count), OneRoundAtATime(kind, count)

    for _ in range(count - 1_000):
        old.take()
    # Side by side, so that a machine which slows down slows both.
    for _ in range(1_000):
        old.take()
        young.take()

    tree = old.tree
    assert (tree.workflow.status, tree.output("l")["iteration"]) == ("COMPLETED", count)
    assert sum(old.seconds[-1_000:]) <= 1.5 * sum(young.seconds)
    assert old.live <= 5, "rows of rounds that are over are not kept"
    assert not is_too_large(b" " * old.largest)


class OneRoundAtATime:
    """A loop over one worker task, with what its rounds cost and leave behind."""

    def __init__(self, kind: str, count: int) -> None:
        self.kind, self.count, self.number = kind, count, 0
        self.seconds: list[float] = []
        self.largest = self.live = 0
        body, kept = [simple("a")], {"keepLastN": 5}
        turning = each("l", "${workflow.input.items}", body, inputParameters=kept)
        self.tree = Tree(turning if kind == "list" else loop("l", body, inputParameters=kept))
        self.tree.begin(items=list(range(count)))

    def take(self) -> None:
        self.number += 1
        began = time.process_time()
        self._send(f"a__{self.number}", {})
        if self.kind == "condition":
            self._send("l", {"result": self.number < self.count})
        self.seconds.append(time.process_time() - began)
        self.live = max(self.live, len(self.tree.execution_now.tasks))
        self.tree.told.clear()

    def _send(self, reference: str, output: Json) -> None:
        self.tree.done(reference, output)
        self.largest = max(self.largest, *record_bytes(self.tree))


def test_the_items_are_written_by_their_size_not_with_every_round() -> None:
    tree = Tree(each("l", "${workflow.input.items}", [simple("a")])).begin(items=["x" * 100] * 400)
    written = 0
    for number in range(1, 401):
        tree.done(f"a__{number}")
        written += sum(len(TASK_STATE.encode(row)) for row in tree.decision.changed_tasks if row.reference == "l")

    assert tree.workflow.status == "COMPLETED"
    assert written < 400 * 2 * rounds.BYTES_PER_ROUND, "each round by itself would write 40 kB"


# --- what is kept


def test_the_outputs_of_all_rounds_come_out_although_their_rows_are_gone() -> None:
    tree = Tree(each("l", [1, 2, 3], [simple("a", inputParameters={"n": "${l.output.loopItem}"})])).begin()
    tree.done("a__1", {"n": 1}).done("a__2", {"n": 2})
    assert sorted(tree.execution_now.tasks) == ["a__3", "l"]

    tree.done("a__3", {"n": 3})

    assert tree.output("l") == {"iteration": 3, **{str(n): {"a": {"n": n}} for n in (1, 2, 3)}}
    assert not tree.execution_now.rounds, "nothing is kept of a loop that has ended"


def test_a_permissive_failure_of_an_earlier_round_still_fails_the_workflow() -> None:
    tree = Tree(each("l", [1, 2], [simple("a", permissive=True)])).begin().fails("a__1", "no stock").done("a__2")

    assert (tree.workflow.status, tree.workflow.reason) == ("FAILED", "a__1 FAILED: no stock")


def test_a_round_whose_branch_still_runs_is_kept_until_it_has_ended() -> None:
    body = fork("f", [simple("slow")], [simple("quick")], join_on=["quick"])
    tree = Tree(each("l", [1, 2], body)).begin().done("quick__1")
    assert "slow__1" in tree.execution_now.tasks

    tree.done("slow__1", {"v": 1}).done("slow__2", {"v": 2}).done("quick__2")

    assert tree.output("l")["1"]["slow"] == {"v": 1}


def test_a_loop_is_rebuilt_as_it_was_although_it_was_not_written_with_its_last_rounds() -> None:
    inner = each("inner", list(range(3)), [simple("a")])
    tree = Tree(each("outer", "${workflow.input.items}", [operator("NOOP", "n"), inner]))
    tree.begin(items=["x" * 100] * 200)
    for outer in range(1, 8):
        for number in (1, 2, 3):
            assert tree.restored() == tree.execution
            tree.done(f"a__{outer}__{number}", {"n": number})

    assert tree.row("outer").iteration == 8
    written = [row for _, d in tree.told for row in d.changed_tasks if row.reference == "outer"]
    assert written[-1].iteration < 8, "else there is nothing to find again"


def test_a_loop_that_waits_for_its_turn_is_rebuilt_as_it_was() -> None:
    tree = of_nothing(2_000)
    assert tree.restored() == tree.execution
    (command,) = turns(tree)
    tree.send(command)

    assert tree.restored() == tree.execution


def test_an_ended_round_is_no_task_that_can_be_canceled() -> None:
    tree = Tree(each("l", [1, 2], [simple("a")])).begin().done("a__1")
    tree.cancel("a__1", command_id="c", expires_at_ms=tree.now_ms + 1_000, reply_to="me")

    assert tree.ignored == "task a__1 of workflow w is in no round that is going on"


def test_what_was_kept_of_a_loop_goes_with_it_however_it_ends() -> None:
    tree = Tree(each("l", [1, 2, 3], [simple("a")], optional=True), simple("last")).begin().done("a__1")
    assert tree.execution_now.rounds

    tree.cancel("l")

    assert (tree.waiting, dict(tree.execution_now.rounds)) == (["last"], {})
    assert orjson.loads(tree.row("l").input)["items"] == [1, 2, 3]
