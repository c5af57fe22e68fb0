"""JSON_JQ_TRANSFORM: a jq program over the task's input, in a process of its own.

jq runs in C and cannot be interrupted, may take any memory, and can read the environment and files. So programs run
in child processes without an environment, that may open nothing and grow by a bounded amount, and that are killed
when the time is over.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from itertools import islice
from typing import Any

from broker_engine.worker.outcomes import TaskFailed, TaskFailedForGood
from broker_engine.worker.system.extras import optional
from broker_engine.worker.system.processes import ProcessEndedError, Processes

#: What one program may take; the memory comes on top of what the process has when it begins.
JQ_SECONDS = 4.0
JQ_MEMORY_BYTES = 256 * 1024 * 1024
#: Values that a program may give; more do not fit into a record anyway.
MAX_RESULTS = 100_000


class Transforms:
    """The child processes of one worker, made when the first program comes."""

    def __init__(self) -> None:
        self._processes = Processes(confine, needed_for="JSON_JQ_TRANSFORM")

    def __call__(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """The output: ``result`` is the first value of the program, ``resultList`` holds all of them.

        Raises:
            TaskFailedForGood: JQ_ERROR, JQ_TIMEOUT, JQ_MEMORY.
        """
        program = data.get("queryExpression")
        if not isinstance(program, str) or not program.strip():
            raise TaskFailedForGood("queryExpression is missing: give a jq program as a text", code="JQ_ERROR")
        _jq()
        try:
            found = self._processes.call(transform, program, dict(data), seconds=JQ_SECONDS)
        except TimeoutError as error:
            raise TaskFailedForGood(f"the program ran longer than {JQ_SECONDS:g} s", code="JQ_TIMEOUT") from error
        except (ProcessEndedError, MemoryError) as error:  # jq aborts when it gets no memory
            limit = JQ_MEMORY_BYTES // 1024 // 1024
            raise TaskFailedForGood(
                f"the program ended its process: it probably took more than {limit} MiB", code="JQ_MEMORY"
            ) from error
        except ValueError as error:  # how the library tells of a program that is wrong, or fails
            raise TaskFailedForGood(f"the program failed: {error}", code="JQ_ERROR") from error
        except OSError as error:
            raise TaskFailed(f"the program could not be run: {error}", code="JQ_UNAVAILABLE") from error
        return {"result": found[0] if found else None, "resultList": found}

    def close(self) -> None:
        """End the processes."""
        self._processes.close()


def confine() -> None:
    """Take from this process what a program must not have."""
    _jq().compile(".").input_value(None).all()  # whatever it loads, it loads before the door closes
    os.environ.clear()
    limit_memory()
    # Opening a file takes a descriptor; those that are open (the pool's pipes) stay usable.
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))


def limit_memory() -> None:
    """Let this process grow by no more than ``JQ_MEMORY_BYTES``."""
    try:
        with open("/proc/self/statm") as statm:
            size = int(statm.read().split()[0]) * resource.getpagesize()
    except OSError:  # no Linux: the time limit has to do
        return
    resource.setrlimit(resource.RLIMIT_AS, (size + JQ_MEMORY_BYTES,) * 2)


def transform(program: str, data: Any) -> list[Any]:
    """Every value of a jq program, in the child process."""
    found = list(islice(_jq().compile(program).input_value(data), MAX_RESULTS + 1))
    if len(found) > MAX_RESULTS:
        raise ValueError(f"it gives more than {MAX_RESULTS} values")
    return found


def _jq() -> Any:
    return optional("jq", needed_for="JSON_JQ_TRANSFORM")
