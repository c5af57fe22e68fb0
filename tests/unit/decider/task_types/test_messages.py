"""PULL_WORKFLOW_MESSAGES, and the messages that it takes."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from broker_engine.decider.messages import MAX_MESSAGES, MAX_MESSAGES_BYTES
from broker_engine.model.commands import PushMessage
from broker_engine.model.decision import Answer
from broker_engine.wire.codecs import WORKFLOW_STATE
from tests.builders import asked
from tests.support.trees import Tree, operator, simple, violations


def pull(**inputs: Any) -> dict[str, Any]:
    return operator("PULL_WORKFLOW_MESSAGES", "p", inputParameters=inputs)


def push(tree: Tree, payload: Any, *, command_id: str = "c") -> Tree:
    data = payload if isinstance(payload, bytes) else orjson.dumps(payload)
    tree.send(PushMessage(key="w", payload=data, **asked(command_id, tree.now_ms + 60_000)))
    return tree


def answer(tree: Tree) -> tuple[int, str]:
    (found,) = tree.now(Answer)
    return found.status, found.message


def test_a_task_waits_for_a_message_and_gives_it() -> None:
    tree = Tree(pull(batchSize=5), simple("last", inputParameters={"m": "${p.output.messages[0].payload.n}"})).begin()
    assert (tree.statuses["p"], tree.row("p").waiting_for) == ("IN_PROGRESS", "messages")

    push(tree, {"n": 1})

    assert answer(tree) == (200, "c")
    assert tree.output("p") == {
        "messages": [{"id": "c", "workflowId": "w", "payload": {"n": 1}, "receivedAt": tree.now_ms}],
        "count": 1,
    }
    assert (tree.input("last"), tree.workflow.messages) == ({"m": 1}, ())


def test_what_came_before_is_kept_and_taken_up_to_the_batch_size() -> None:
    tree = Tree(simple("first"), pull(batchSize=2), pull(batchSize=2) | {"taskReferenceName": "q"}).begin()
    for n in range(3):
        push(tree, {"n": n}, command_id=f"c{n}")
    assert WORKFLOW_STATE.decode(WORKFLOW_STATE.encode(tree.workflow)).messages == tree.workflow.messages

    tree.done("first")

    assert [message["payload"]["n"] for message in tree.output("p")["messages"]] == [0, 1]
    assert [message["payload"]["n"] for message in tree.output("q")["messages"]] == [2]
    assert tree.workflow.status == "COMPLETED"


def test_a_task_that_does_not_block_goes_on_without_any() -> None:
    tree = Tree(pull(blocking=False)).begin()

    assert tree.result == ("COMPLETED", {"messages": [], "count": 0})


def test_a_message_that_is_sent_twice_is_there_once() -> None:
    tree = Tree(simple("a")).begin()
    push(push(tree, {"n": 1}), {"n": 1})

    assert (answer(tree), len(tree.workflow.messages)) == ((200, "c"), 1)


def test_in_a_pause_messages_are_kept_and_delivered_when_it_is_resumed() -> None:
    tree = Tree(pull()).begin()
    tree.pause_workflow()
    push(tree, {"n": 1})
    assert (tree.statuses["p"], len(tree.workflow.messages)) == ("IN_PROGRESS", 1)

    tree.resume_workflow()

    assert tree.output("p")["count"] == 1


def test_what_waits_to_be_taken_is_bounded() -> None:
    tree = Tree(simple("a")).begin()
    for _ in range(MAX_MESSAGES):
        tree.send(PushMessage(key="w", payload=b"{}"))
    assert len({message.message_id for message in tree.workflow.messages}) == MAX_MESSAGES, "each has an id of its own"

    push(tree, {"n": 1}, command_id="more")

    assert answer(tree)[0] == 429
    assert "try again later" in answer(tree)[1]


@pytest.mark.parametrize(
    ("payload", "status", "says"),
    [
        (b"{", 400, "the message is not valid JSON"),
        ([1], 400, "the message must be a JSON object, not list"),
        ({"t": "x" * MAX_MESSAGES_BYTES}, 413, "store it elsewhere and send a reference"),
    ],
)
def test_what_is_no_message_is_refused(payload: Any, status: int, says: str) -> None:
    tree = push(Tree(simple("a")).begin(), payload)

    assert answer(tree)[0] == status
    assert says in answer(tree)[1]
    assert tree.workflow.messages == ()


def test_an_ended_workflow_takes_none_and_keeps_none() -> None:
    tree = push(Tree(simple("a")).begin(), {"n": 1})
    tree.done("a")
    assert tree.workflow.messages == ()

    push(tree, {"n": 2}, command_id="late")

    assert answer(tree) == (409, "the workflow is COMPLETED: only a live workflow takes messages")


def test_a_batch_size_that_makes_no_sense_is_a_terminal_error() -> None:
    tree = Tree(pull(batchSize=0)).begin()

    assert tree.workflow.reason == "batchSize must be a whole number from 1 to 100, not 0"


def test_nothing_is_required() -> None:
    assert violations(operator("PULL_WORKFLOW_MESSAGES", "p")) == {}
