"""What the command line decides without a broker: options, exit codes, shapes, help."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
import typer
from typer.testing import CliRunner

from broker_engine.cli import exits
from broker_engine.cli.demo.rows import cut, find_file
from broker_engine.cli.demo.tasks import parse, validate
from broker_engine.cli.main import app
from broker_engine.cli.session import Flags, open_session
from broker_engine.cli.shapes import payload
from broker_engine.errors import (
    BadRequest,
    BrokerEngineError,
    Conflict,
    NoAnswer,
    NotFound,
    PayloadTooLarge,
    Unreachable,
    UnsafeSettings,
    Violation,
)
from broker_engine.worker import TaskContext

runner = CliRunner()


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """A command configures logging for its process; here the process goes on."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BadRequest(), 1),
        (PayloadTooLarge(), 1),
        (UnsafeSettings(), 1),
        (BrokerEngineError(), 1),
        (NotFound(), 3),
        (Conflict(), 4),
        (NoAnswer(), 5),
        (Unreachable(), 5),
    ],
)
def test_an_error_has_one_exit_code(error: BrokerEngineError, code: int) -> None:
    assert exits.exit_code(error) == code
    assert exits.as_json(error)["exitCode"] == code


def test_every_violation_is_told_with_path_message_and_value() -> None:
    error = BadRequest(
        violations=(
            Violation(path="name", message="must not be empty", invalid_value=""),
            Violation(path="retryCount", message="must be at least 0", invalid_value=-1),
        )
    )

    assert len(exits.sentences(error)) == 2
    assert exits.as_json(error)["violations"][1] == {
        "path": "retryCount",
        "message": "must be at least 0",
        "invalidValue": -1,
    }


def test_a_flag_wins_over_the_one_before_the_noun_and_that_over_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BROKER_ENGINE_KAFKA__BOOTSTRAP_SERVERS", "env:1")
    monkeypatch.setenv("BROKER_ENGINE_NAMESPACE", "env")
    monkeypatch.setenv("BROKER_ENGINE_NAMESPACE_KEY", "env-key")

    session = open_session(Flags(kafka="own:3").over(Flags(kafka="outer:2", ns="outer")), json=False)

    assert session.bootstrap == "own:3"
    assert session.namespace.name == "outer"
    assert session.settings.key == "env-key"


def test_a_default_address_is_not_taken_for_a_given_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BROKER_ENGINE_KAFKA__BOOTSTRAP_SERVERS", raising=False)
    assert open_session(Flags(), json=False).given_bootstrap is None
    assert open_session(Flags(kafka="h:1"), json=False).given_bootstrap == "h:1"


@pytest.mark.parametrize("flags", [Flags(ns="a b"), Flags(kafka="nohost"), Flags(kafka="h:port")])
def test_what_cannot_be_an_address_or_a_namespace_is_a_usage_error(flags: Flags) -> None:
    with pytest.raises(typer.BadParameter):
        open_session(flags, json=False)


def test_a_bad_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER_ENGINE_PARTITIONS", "many")
    with pytest.raises(typer.BadParameter, match="BROKER_ENGINE_PARTITIONS"):
        open_session(Flags(), json=False)


def test_config_is_shown_without_secrets_and_without_a_broker() -> None:
    ran = runner.invoke(app, ["config", "show", "--key", "top-secret", "--json"])

    assert ran.exit_code == 0
    assert "top-secret" not in ran.output
    assert json.loads(ran.stdout)["namespace_key"]


COMMANDS = [
    *(["task", verb] for verb in ("create", "update", "get", "list", "delete")),
    *(["workflow", v] for v in ("create", "definitions", "start", "get", "list", "watch", "terminate")),
    *(["limits", verb] for verb in ("set", "clear", "list")),
    *(["topics", verb] for verb in ("list", "verify", "apply")),
    *(["queue", verb] for verb in ("list", "show", "move")),
    *(["dead-letters", verb] for verb in ("list", "redrive")),
    ["config", "show"],
    ["decider"],
    ["delays"],
    ["worker"],
    ["dev"],
    ["demo"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself_with_an_example(command: list[str]) -> None:
    ran = runner.invoke(app, [*command, "--help"])

    assert ran.exit_code == 0
    assert f"broker-engine {' '.join(command)}" in ran.output.partition("Examples:")[2]
    assert all(option in ran.output for option in ("--kafka", "--ns", "--key", "--log-level"))


@pytest.mark.parametrize("given", [[], ["some", "--queue", "greet"]])
def test_a_move_is_about_a_task_or_a_queue(given: list[str]) -> None:
    assert runner.invoke(app, ["queue", "move", *given, "--to", "eu"]).exit_code == 2


def test_payloads_are_shown_as_the_json_they_hold() -> None:
    assert payload(b'{"a":1}') == {"a": 1}
    assert payload(b"\xff\xfe") == "//4="


def test_the_demo_cuts_the_whole_file_and_finds_each_row_it_broke(tmp_path: Path) -> None:
    source = cut(find_file(), tmp_path, 1_000)
    context = TaskContext(
        task_id="t",
        workflow_id="w",
        workflow_name="n",
        reference="r",
        task_type="PARSE",
        domain="default",
        run=0,
        attempt=0,
        lease=1,
        correlation_id=None,
    )

    parsed = [parse(chunk.file, 0.0, context) for chunk in source.chunks]
    rows = [validate(chunk.file)["rows"] for chunk in source.chunks]

    assert source.rows > 28_000
    assert sum(rows) == source.rows
    assert sum(chunk["skipped"] for chunk in parsed) == source.broken == 63
