"""jq programs of workflows: in processes that have nothing and can be ended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from broker_engine.worker import TaskFailedForGood
from broker_engine.worker.system import transforms
from broker_engine.worker.system.transforms import Transforms


@pytest.fixture(scope="module")
def run() -> Iterator[Transforms]:
    made = Transforms()
    yield made
    made.close()


def failure(run: Transforms, program: Any, **data: Any) -> TaskFailedForGood:
    with pytest.raises(TaskFailedForGood) as failed:
        run({"queryExpression": program, **data})
    return failed.value


def test_the_first_value_is_the_result_and_all_are_listed(run: Transforms) -> None:
    output = run({"queryExpression": ".orders[] | {id, total: (.lines | add)}", "orders": [
        {"id": "a", "lines": [1, 2]}, {"id": "b", "lines": [3]},
    ]})  # fmt: skip

    assert output == {
        "result": {"id": "a", "total": 3},
        "resultList": [{"id": "a", "total": 3}, {"id": "b", "total": 3}],
    }


def test_a_program_that_gives_nothing_has_no_result(run: Transforms) -> None:
    assert run({"queryExpression": "empty"}) == {"result": None, "resultList": []}


@pytest.mark.parametrize(
    ("program", "reason"),
    [(".a[", "syntax error"), ('error("no stock")', "no stock"), (".n.b", "Cannot index number")],
)
def test_what_is_wrong_with_a_program_is_said(run: Transforms, program: str, reason: str) -> None:
    error = failure(run, program, n=1)

    assert error.code == "JQ_ERROR"
    assert reason in str(error)


def test_a_program_sees_no_environment_and_opens_no_file(
    run: Transforms, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("modules")
    (folder / "secret.json").write_text('{"key": "sesame"}')

    assert run({"queryExpression": "env"})["result"] == {}
    error = failure(run, f'import "secret" as $s {{search: "{folder}"}}; $s')
    assert error.code == "JQ_ERROR"
    assert "sesame" not in str(error)
    assert "Too many" in str(error), "no file can be opened"


def test_a_program_that_runs_for_ever_is_ended_and_the_next_one_runs(
    run: Transforms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transforms, "JQ_SECONDS", 1.0)

    error = failure(run, "last(range(1e15))")

    assert (error.code, str(error)) == ("JQ_TIMEOUT", "the program ran longer than 1 s")
    monkeypatch.undo()
    assert run({"queryExpression": ".a", "a": 1})["result"] == 1


def test_a_program_that_eats_the_memory_is_ended_and_the_next_one_runs(run: Transforms) -> None:
    error = failure(run, 'reduce range(60) as $i ("abcdefgh"; . + .) | length')

    assert error.code == "JQ_MEMORY"
    assert run({"queryExpression": ".a", "a": 1})["result"] == 1


@pytest.mark.parametrize("program", [None, "", 5])
def test_a_missing_program_is_asked_for(run: Transforms, program: object) -> None:
    assert "queryExpression is missing" in str(failure(run, program))
