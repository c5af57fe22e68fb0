"""JavaScript of INLINE, LAMBDA, SWITCH, DECISION and DO_WHILE, each evaluation in a V8 isolate of its own.

Nothing is shared between two evaluations (a script could redefine ``JSON`` for the next one), there is no network, no
file and no process to reach, and time and memory are bounded. An isolate costs 10 ms (measured).

Isolates stand in child processes, one at a time in each: two that are made or closed at once in one process end it
(a segmentation fault, always within 200 evaluations in 8 threads), and so does V8 itself when it gets no memory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import orjson

from broker_engine.worker.outcomes import TaskFailedForGood
from broker_engine.worker.system.extras import optional
from broker_engine.worker.system.processes import ProcessEndedError, Processes

#: What one evaluation may take. Conditions and small calculations take milliseconds.
SCRIPT_SECONDS = 4.0
SCRIPT_MEMORY_BYTES = 64 * 1024 * 1024
#: How much longer than its script a child process may take before it is killed.
_SPARE_SECONDS = 2.0
#: The names of Conductor's evaluators that mean JavaScript.
JAVASCRIPT = frozenset({"javascript", "graaljs"})
VALUE_PARAM = "value-param"

#: Runs the script where it sees ``$`` and nothing of ours. Indirect eval: its value is that of the last statement.
_EVALUATE = "var $ = JSON.parse({data}); JSON.stringify({{value: (0, eval)({script})}})"


class Scripts:
    """The child processes of one worker, made when the first script comes.

    Args:
        seconds: what one script may take.
    """

    def __init__(self, seconds: float = SCRIPT_SECONDS) -> None:
        self._seconds = seconds
        self._processes = Processes(confine, needed_for="JavaScript")

    def evaluate(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """The output of a script task: ``{"result": …}``.

        Args:
            data: the task's resolved input; ``evaluatorType`` (default ``javascript``), ``expression``, and what the
                script sees as ``$``.

        Raises:
            TaskFailedForGood: SCRIPT_ERROR (it does not parse, it throws, its value has no JSON form), SCRIPT_TIMEOUT,
                SCRIPT_MEMORY, UNKNOWN_EVALUATOR. A retry would do the same again.
        """
        expression = data.get("expression")
        if not isinstance(expression, str) or not expression.strip():
            raise TaskFailedForGood("expression is missing: give the script as a text", code="SCRIPT_ERROR")
        evaluator = data.get("evaluatorType") or "javascript"
        if evaluator == VALUE_PARAM:
            return {"result": data.get(expression)}
        if evaluator not in JAVASCRIPT:
            known = ", ".join([VALUE_PARAM, *sorted(JAVASCRIPT)])
            raise TaskFailedForGood(f"evaluatorType {evaluator!r} is not one of {known}", code="UNKNOWN_EVALUATOR")
        return {"result": self._run(expression, data)}

    def evaluate_lambda(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """The output of a LAMBDA task, whose ``scriptExpression`` is the body of a function."""
        body = data.get("scriptExpression") or data.get("expression")
        return self.evaluate({**data, "evaluatorType": "javascript", "expression": f"(function () {{ {body}\n }})()"})

    def _run(self, script: str, data: Mapping[str, Any]) -> Any:
        _racer()
        try:
            return self._processes.call(run, script, dict(data), self._seconds, seconds=self._seconds + _SPARE_SECONDS)
        except TimeoutError as error:
            raise _too_slow(self._seconds) from error
        except ProcessEndedError as error:
            raise _too_large() from error

    def close(self) -> None:
        """End the processes."""
        self._processes.close()


def confine() -> None:
    """Take from this process what a script must not have, should it ever get out of its isolate."""
    run("0", {})  # whatever V8 loads, it loads before the environment goes
    os.environ.clear()


def run(script: str, data: Mapping[str, Any], seconds: float = SCRIPT_SECONDS) -> Any:
    """The JSON value of a script that sees ``data`` as ``$``, in the child process; ``undefined`` is null."""
    racer = _racer()
    source = _EVALUATE.format(data=_literal(orjson.dumps(data).decode()), script=_literal(script))
    isolate = racer.MiniRacer()
    try:
        found = isolate.eval(source, timeout_sec=seconds, max_memory=SCRIPT_MEMORY_BYTES)
    except racer.JSTimeoutException as error:
        _settle(racer, isolate)
        raise _too_slow(seconds) from error
    except racer.JSOOMException as error:
        _settle(racer, isolate)
        raise _too_large() from error
    except racer.JSEvalException as error:
        raise TaskFailedForGood(f"the script failed: {_message(str(error))}", code="SCRIPT_ERROR") from error
    finally:
        isolate.close()
    return orjson.loads(found).get("value")


def _settle(racer: Any, isolate: Any) -> None:
    """Wait until the isolate has told of the script that was ended: closed before, it tells a loop that is gone."""
    with suppress(racer.JSEvalException):
        isolate.eval("0", timeout_sec=SCRIPT_SECONDS)


def _too_slow(seconds: float) -> TaskFailedForGood:
    return TaskFailedForGood(f"the script ran longer than {seconds:g} s", code="SCRIPT_TIMEOUT")


def _too_large() -> TaskFailedForGood:
    limit = SCRIPT_MEMORY_BYTES // 1024 // 1024
    return TaskFailedForGood(f"the script took more than {limit} MiB", code="SCRIPT_MEMORY")


def _racer() -> Any:
    return optional("py_mini_racer", needed_for="JavaScript")


def _literal(text: str) -> str:
    """A text as a JavaScript literal: JSON, which ES2019 made a subset of the language."""
    return orjson.dumps(text).decode()


def _message(error: str) -> str:
    """The line of V8's report that says what is wrong, without our own source."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    for line in reversed(lines):
        if "Error" in line.split(":")[0]:
            return line
    return lines[0] if lines else "no reason given"
