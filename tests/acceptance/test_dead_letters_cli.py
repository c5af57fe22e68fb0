"""`dead-letters`: what could not be decided is seen, and sent again."""

from __future__ import annotations

import pytest

from broker_engine.log.confluent import ConfluentLog
from broker_engine.topics import Namespace, Topic
from broker_engine.worker import Client
from tests.acceptance.conftest import Cli, until

pytestmark = pytest.mark.kafka


def test_undecodable_bytes_are_listed_and_not_sent_again(engine: Cli) -> None:
    writer = ConfluentLog(engine.bootstrap).writer(client_id="stranger")
    writer.send(Namespace(engine.namespace).topic(Topic.COMMANDS), 1, b"someone", b"hello")
    assert writer.flush(30) == 0
    writer.close()

    until(lambda: any(x["key"] == "someone" for x in engine("dead-letters", "list", "--json").json))
    (letter,) = [x for x in engine("dead-letters", "list", "--json", "--values").json if x["key"] == "someone"]
    assert letter["type"] is None
    assert letter["value"] == "aGVsbG8="
    assert letter["original"]["topic"] == f"{engine.namespace}.commands"
    assert letter["original"]["partition"] == 1
    assert "not a framed Avro record" in letter["reason"]
    assert "undecodable" in engine("dead-letters", "list").out

    ran = engine("dead-letters", "redrive", "--workflow", "someone", "--json")
    assert ran.code == 1
    assert [left["key"] for left in ran.json["left"]] == ["someone"]
    assert ran.json["sent"] == []


def test_a_quarantined_workflow_is_released_and_its_commands_are_sent_again(engine: Cli) -> None:
    # The state of this workflow outgrows a record: input, variables and output are each near their limit.
    big = 440_000
    with Client(ConfluentLog(engine.bootstrap), Namespace(engine.namespace)) as client:
        client.register_workflow(
            {
                "name": "outgrows",
                "tasks": [{"name": "echo", "taskReferenceName": "echo", "inputParameters": {"size": big}}],
                "outputParameters": {"text": "${echo.output.text}"},
                "variables": {"pad": "v" * big},
            }
        )
        own = client.start("outgrows", {"pad": "x" * big}, workflow_id="outgrown")
        until(lambda: client.get(own).workflow.quarantine is not None)
    assert "in quarantine: InvariantViolation" in engine("workflow", "get", own).out

    ran = engine("dead-letters", "redrive", "--workflow", own, "--json")

    assert ran.code == 0, ran.err
    assert ran.json["released"] == [own]
    assert [sent["type"] for sent in ran.json["sent"]] == ["TASK_REPORTED"]
    # The cause has not gone, so the same command comes back: a second letter, from further on in the log.
    until(lambda: len(engine("dead-letters", "list", "--workflow", own, "--json").json) == 2)
    first, second = engine("dead-letters", "list", "--workflow", own, "--json").json
    assert second["original"]["offset"] > first["original"]["offset"]


def test_a_workflow_without_dead_letters_is_not_found(engine: Cli) -> None:
    assert engine("dead-letters", "redrive", "--workflow", "unheard-of").code == 3
    assert engine("dead-letters", "list", "--workflow", "unheard-of").out == ""
