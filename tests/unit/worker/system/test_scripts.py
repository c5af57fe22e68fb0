"""Scripts of workflows: what they see, what they give, and what they cannot do."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from broker_engine.worker import TaskFailedForGood
from broker_engine.worker.system import extras
from broker_engine.worker.system.scripts import Scripts


@pytest.fixture(scope="module")
def scripts() -> Iterator[Scripts]:
    made = Scripts()
    yield made
    made.close()


def result(scripts: Scripts, expression: str, **data: Any) -> Any:
    return scripts.evaluate({"expression": expression, **data})["result"]


def failure(scripts: Scripts, expression: Any, **data: Any) -> TaskFailedForGood:
    with pytest.raises(TaskFailedForGood) as failed:
        scripts.evaluate({"expression": expression, **data})
    return failed.value


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("$.a + 1", 4),
        ("(function () { return $.a * 2; })()", 6),
        ("function e() { if ($.a > 2) { return 'big' } else { return 'small' } } e();", "big"),
        ("if ($.a === 3) { true } else { false }", True),
        ("({list: $.list.map(x => x * 10), text: `a is ${$.a}`})", {"list": [10, 20], "text": "a is 3"}),
        ("$.missing", None),
        ("null", None),
        ("var unused = 1;", None),
        ("$['deep']['er']", [1]),
        ("'quotes \" and \\u2028 and \\n stay'", 'quotes " and \u2028 and \n stay'),
    ],
)
def test_a_script_sees_its_input_as_dollar_and_gives_its_last_value(
    scripts: Scripts, script: str, expected: object
) -> None:
    assert result(scripts, script, a=3, list=[1, 2], deep={"er": [1]}) == expected


def test_graaljs_is_javascript_here(scripts: Scripts) -> None:
    assert result(scripts, "$.a", evaluatorType="graaljs", a=1) == 1


def test_value_param_takes_the_input_that_is_named(scripts: Scripts) -> None:
    assert result(scripts, "choice", evaluatorType="value-param", choice="b") == "b"
    assert result(scripts, "choice", evaluatorType="value-param") is None


def test_a_lambda_is_the_body_of_a_function(scripts: Scripts) -> None:
    script = "if ($.n > 1) { return {big: true} } // not otherwise"

    assert scripts.evaluate_lambda({"scriptExpression": script, "n": 2}) == {"result": {"big": True}}
    assert scripts.evaluate_lambda({"scriptExpression": script, "n": 1}) == {"result": None}


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("throw new Error('no stock')", "Error: no stock"),
        ("$.a.b.c", "TypeError"),
        ("this is no script", "SyntaxError"),
        ("undefinedName", "ReferenceError: undefinedName is not defined"),
        ("var a = {}; a.a = a; a", "TypeError: Converting circular structure to JSON"),
    ],
)
def test_what_is_wrong_with_a_script_is_said_in_one_line(scripts: Scripts, script: str, reason: str) -> None:
    error = failure(scripts, script)

    assert error.code == "SCRIPT_ERROR"
    assert reason in str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize("name", ["require", "process", "fetch", "XMLHttpRequest", "Java", "load"])
def test_a_script_reaches_nothing_outside(scripts: Scripts, name: str) -> None:
    assert result(scripts, f"typeof {name}") == "undefined"


def test_a_script_that_runs_for_ever_is_ended() -> None:
    with closing(Scripts(seconds=0.2)) as hasty:
        error = failure(hasty, "while (true) {}")

    assert (error.code, str(error)) == ("SCRIPT_TIMEOUT", "the script ran longer than 0.2 s")


def test_a_script_that_eats_the_memory_is_ended(scripts: Scripts) -> None:
    error = failure(scripts, "var all = []; while (true) { all.push(new Array(100000).fill(1)) }")

    assert error.code == "SCRIPT_MEMORY"
    assert "64 MiB" in str(error)


def test_what_one_script_changes_the_next_one_does_not_see(scripts: Scripts) -> None:
    result(scripts, "JSON.stringify = () => '{\"value\": 666}'; globalThis.left = 1; Object.prototype.a = 5; 1")

    assert result(scripts, "[typeof left, ({}).a === undefined, 7]") == ["undefined", True, 7]


@pytest.mark.parametrize("expression", [None, "", "  ", 5])
def test_a_missing_expression_is_asked_for(scripts: Scripts, expression: object) -> None:
    assert "expression is missing" in str(failure(scripts, expression))


def test_an_unknown_evaluator_is_named_beside_the_known_ones(scripts: Scripts) -> None:
    error = failure(scripts, "1", evaluatorType="cobol")

    assert error.code == "UNKNOWN_EVALUATOR"
    assert "'cobol' is not one of value-param, graaljs, javascript" in str(error)


def test_a_worker_without_the_library_says_what_to_install() -> None:
    with pytest.raises(TaskFailedForGood, match=r"install broker-engine\[system\] there") as failed:
        extras.optional("no_such_library", needed_for="JavaScript")

    assert failed.value.code == "MISSING_EXTRA"


def test_scripts_of_many_threads_do_not_end_the_worker(scripts: Scripts) -> None:
    """Two isolates made at once in one process end it with a segmentation fault."""
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda n: result(scripts, "$.n * 2", n=n), range(100)))

    assert found == [n * 2 for n in range(100)]


def test_a_script_after_one_that_ended_its_process_runs(scripts: Scripts) -> None:
    failure(scripts, "var all = []; while (true) { all.push(new Array(100000).fill(1)) }")

    assert result(scripts, "1 + 1") == 2
