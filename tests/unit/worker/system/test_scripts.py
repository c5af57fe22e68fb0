"""Scripts of workflows: what they see, what they give, and what they cannot do."""

from __future__ import annotations

from typing import Any

import pytest

from broker_engine.worker import TaskFailedForGood
from broker_engine.worker.system import extras, scripts


def result(expression: str, **data: Any) -> Any:
    return scripts.evaluate({"expression": expression, **data})["result"]


def failure(expression: Any, **data: Any) -> TaskFailedForGood:
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
def test_a_script_sees_its_input_as_dollar_and_gives_its_last_value(script: str, expected: object) -> None:
    assert result(script, a=3, list=[1, 2], deep={"er": [1]}) == expected


def test_graaljs_is_javascript_here() -> None:
    assert result("$.a", evaluatorType="graaljs", a=1) == 1


def test_value_param_takes_the_input_that_is_named() -> None:
    assert result("choice", evaluatorType="value-param", choice="b") == "b"
    assert result("choice", evaluatorType="value-param") is None


def test_a_lambda_is_the_body_of_a_function() -> None:
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
def test_what_is_wrong_with_a_script_is_said_in_one_line(script: str, reason: str) -> None:
    error = failure(script)

    assert error.code == "SCRIPT_ERROR"
    assert reason in str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize("name", ["require", "process", "fetch", "XMLHttpRequest", "Java", "load"])
def test_a_script_reaches_nothing_outside(name: str) -> None:
    assert result(f"typeof {name}") == "undefined"


def test_a_script_that_runs_for_ever_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripts, "SCRIPT_SECONDS", 0.2)

    error = failure("while (true) {}")

    assert (error.code, str(error)) == ("SCRIPT_TIMEOUT", "the script ran longer than 0.2 s")


def test_a_script_that_eats_the_memory_is_ended() -> None:
    error = failure("var all = []; while (true) { all.push(new Array(100000).fill(1)) }")

    assert error.code == "SCRIPT_MEMORY"
    assert "64 MiB" in str(error)


def test_what_one_script_changes_the_next_one_does_not_see() -> None:
    result("JSON.stringify = () => '{\"value\": 666}'; globalThis.left = 1; Object.prototype.a = 5; 1")

    assert result("[typeof left, ({}).a === undefined, 7]") == ["undefined", True, 7]


@pytest.mark.parametrize("expression", [None, "", "  ", 5])
def test_a_missing_expression_is_asked_for(expression: object) -> None:
    assert "expression is missing" in str(failure(expression))


def test_an_unknown_evaluator_is_named_beside_the_known_ones() -> None:
    error = failure("1", evaluatorType="cobol")

    assert error.code == "UNKNOWN_EVALUATOR"
    assert "'cobol' is not one of value-param, graaljs, javascript" in str(error)


def test_a_worker_without_the_library_says_what_to_install() -> None:
    with pytest.raises(TaskFailedForGood, match=r"install broker-engine\[system\] there") as failed:
        extras.optional("no_such_library", needed_for="JavaScript")

    assert failed.value.code == "MISSING_EXTRA"
