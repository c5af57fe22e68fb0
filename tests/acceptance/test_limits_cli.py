"""`limits` commands: caps are set, seen, met by tasks, named by `task explain`, and cleared."""

from __future__ import annotations

import uuid

import pytest

from tests.acceptance.conftest import Cli
from tests.support.roles import until

pytestmark = pytest.mark.kafka


def test_a_tenant_s_cap_holds_its_tasks_back_until_it_is_cleared(engine: Cli) -> None:
    name, tenant = f"w{uuid.uuid4().hex[:6]}", f"t{uuid.uuid4().hex[:6]}"
    engine("workflow", "create", engine.file({"name": name, "tasks": [{"name": name, "taskReferenceName": "a"}]}))
    made = engine("limits", "set", "--tenant", tenant, 1, "--json")
    assert made.code == 0, made.err
    assert (made.json["key"], made.json["limit"]) == (f"tenant:{tenant}", 1)

    _, second = (engine("workflow", "start", name, "--tenant", tenant).out.strip() for _ in range(2))

    def waits() -> str:
        (task,) = engine("workflow", "get", second, "--json").json["tasks"]
        return str(task["taskId"]) if task["waitingFor"] == "slot" else ""

    task = until(waits, what="the second task's waiting for the first")
    full = f"tenant {tenant}"

    def held_back_by() -> str | None:
        stands = engine("task", "explain", task, "--json").json["inLine"]
        return stands["limit"] if stands else None

    until(lambda: held_back_by() == full, what="the limit's name")
    assert full in engine("limits", "list").out

    assert engine("limits", "clear", "--tenant", tenant).code == 0
    until(lambda: not waits(), what="the hand-out of what waited")
    assert engine("limits", "clear", "--tenant", tenant).code == 3


def test_a_cap_is_about_one_thing(engine: Cli) -> None:
    ran = engine("limits", "set", "--tenant", "a", 1, "--global", 2)

    assert ran.code == 2
    assert "one of --global, --tenant and --domain" in ran.err.replace("\n", " ").replace("│", "")
