"""WAIT and HUMAN: for a moment, or for somebody."""

from __future__ import annotations

import pytest

from broker_engine.decider.task_types.waits import duration_seconds, until_ms
from tests.builders import START_MS
from tests.support.trees import Tree, fork, operator, simple, violations


def wait(**data: object) -> dict[str, object]:
    return operator("WAIT", "w", inputParameters=data)


def test_a_duration_is_waited_for_to_the_millisecond() -> None:
    tree = Tree(wait(duration="2 seconds"), simple("last")).begin()
    row = tree.row("w")
    assert (row.status, row.waiting_for, row.due_at_ms) == ("IN_PROGRESS", "time", START_MS + 2_000)

    tree.later(1_999).deadline()
    assert tree.statuses["w"] == "IN_PROGRESS"
    tree.later(1).deadline()

    assert (tree.statuses["w"], tree.row("w").reason_code, tree.waiting) == ("COMPLETED", "WAIT_OVER", ["last"])


def test_its_moment_is_the_workflow_s_next_deadline() -> None:
    tree = Tree(wait(duration="1 days")).begin()
    tree.next_deadline()

    assert (tree.now_ms, tree.workflow.status) == (START_MS + 86_400_000, "COMPLETED")


def test_a_moment_that_has_passed_is_not_waited_for() -> None:
    tree = Tree(wait(until="1970-01-01 00:00 UTC"), simple("last")).begin()
    tree.deadline()

    assert tree.waiting == ["last"]


@pytest.mark.parametrize("kind", ["WAIT", "HUMAN"])
def test_without_a_moment_somebody_has_to_end_it(kind: str) -> None:
    tree = Tree(operator(kind, "w"), simple("last", inputParameters={"ok": "${w.output.ok}"})).begin()
    assert (tree.row("w").waiting_for, tree.row("w").next_deadline_at_ms) == ("update", None)

    tree.completed({"ok": True}, of=tree.row("w"))

    assert (tree.statuses["w"], tree.input("last")) == ("COMPLETED", {"ok": True})


def test_somebody_may_end_a_wait_before_its_moment() -> None:
    tree = Tree(wait(duration="1 days"), simple("last")).begin()
    tree.completed({}, of=tree.row("w"))

    assert tree.waiting == ["last"]


def test_a_pause_stops_its_clock() -> None:
    """D14."""
    tree = Tree(wait(duration="10 secs"), simple("last")).begin().later(4_000)
    tree.pause_workflow()
    tree.later(60_000).deadline()
    assert tree.statuses["w"] == "IN_PROGRESS"  # type: ignore[attr-defined]

    tree.resume_workflow()
    tree.later(5_999).deadline()
    assert tree.statuses["w"] == "IN_PROGRESS"  # type: ignore[attr-defined]
    tree.later(1).deadline()
    assert tree.waiting == ["last"]  # type: ignore[attr-defined]


def test_a_canceled_wait_terminates_the_workflow() -> None:
    tree = Tree(wait(duration="1 days")).begin()
    tree.cancel("w")

    assert (tree.statuses["w"], tree.workflow.status) == ("CANCELED", "TERMINATED")


def test_a_canceled_optional_wait_lets_the_flow_go_on() -> None:
    tree = Tree({**wait(duration="1 days"), "optional": True}, simple("last")).begin()
    tree.cancel("w")

    assert (tree.statuses["w"], tree.waiting) == ("COMPLETED_WITH_ERRORS", ["last"])


def test_a_wait_may_time_out() -> None:
    limit = {"name": "w", "timeoutSeconds": 3, "responseTimeoutSeconds": 3}
    tree = Tree({**operator("HUMAN", "w"), "taskDefinition": limit}).begin()
    tree.next_deadline()

    assert (tree.statuses["w"], tree.workflow.status) == ("TIMED_OUT", "TIMED_OUT")


def test_a_wait_may_stand_in_a_branch() -> None:
    tree = Tree(*fork("f", [wait(duration="1 s")], [simple("a")]), simple("last")).begin().done("a")
    tree.next_deadline()

    assert tree.waiting == ["last"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1 days 2 hours 3 mins 4 secs", 93_784),
        ("2 minutes", 120),
        ("1h30m", 5_400),
        ("10 s", 10),
        ("0 sec", 0),
        ("soon", None),
        ("5", None),
        ("5 parsecs", None),
        ("", None),
        ("1 day tomorrow", None),
        ("99999999999 days", None),
    ],
)
def test_a_duration_reads_as_people_write_it(text: str, seconds: int | None) -> None:
    assert duration_seconds(text) == seconds


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1970-01-02", 86_400_000),
        ("1970-01-01 00:01", 60_000),
        ("1970-01-01 01:00 GMT+1", 0),
        ("1970-01-01 01:00 +01:00", 0),
        ("1970-01-01T02:30 +0230", 0),
        ("1970-01-01 00:00 UTC", 0),
        ("1970-01-01 00:00 Mars/Olympus", None),
        ("1970-13-01", None),
        ("tomorrow", None),
    ],
)
def test_a_moment_is_a_date_with_an_offset(text: str, ms: int | None) -> None:
    assert until_ms(text) == ms


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"duration": "soon"}, "duration 'soon' must read like"),
        ({"until": "soon"}, "until 'soon' must read like"),
        ({"duration": "1 s", "until": "${workflow.input.none}"}, None),
    ],
)
def test_what_reads_otherwise_is_a_terminal_error(data: dict[str, object], reason: str | None) -> None:
    tree = Tree({**wait(), "inputParameters": "${workflow.input}"}).begin(**data) if reason else None

    if tree is None:
        assert "tasks[0].inputParameters.until" in violations(wait(**data))
    else:
        assert tree.statuses["w"] == "FAILED_WITH_TERMINAL_ERROR"
        assert (tree.workflow.reason or "").startswith(str(reason))
