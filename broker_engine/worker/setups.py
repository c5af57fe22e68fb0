"""What happens before a task's function runs: its input is bound, its secrets are found, its set-up runs (B5).

Whatever fails here ends the attempt early, under a code of its own: ``INIT_INPUT`` (never retried), ``INIT_SECRET`` and
``INIT_SETUP``.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from broker_engine.model.status import SETUP_STEP, ReasonCode, StepStatus
from broker_engine.wire.records import ScheduledTask
from broker_engine.worker.context import TaskContext
from broker_engine.worker.outcomes import InProgress, Superseded, TaskCanceled, TaskFailed, TaskPaused
from broker_engine.worker.secrets import Resolver, resolved
from broker_engine.worker.task import TaskWorker


class Beginning:
    """The way of one attempt up to its function."""

    def __init__(self, task: TaskWorker, work: ScheduledTask, context: TaskContext, secrets: Resolver) -> None:
        self._task = task
        self._work = work
        self.context = context
        self._secrets = secrets

    def arguments(self) -> dict[str, Any]:
        """Everything up to the function, which gets these arguments.

        Raises:
            TaskFailed: under a code that begins with ``INIT_``, unless the set-up chose its own.
        """
        given = self._given()
        if self._task.setup is not None:
            try:
                self.context.setup = self._task.setup(**self._setup_arguments())
            except BaseException as error:  # a user's set-up may raise anything
                raise _setup_failure(error) from error
            self._tell()
        return given

    async def arguments_async(self) -> dict[str, Any]:
        """As ``arguments``, for the asyncio pool: a plain set-up runs in a thread, so that it stops nothing else."""
        setup = self._task.setup
        if setup is None:
            return self._given()
        if not inspect.iscoroutinefunction(setup):
            return await asyncio.to_thread(self.arguments)
        given = self._given()
        try:
            self.context.setup = await setup(**self._setup_arguments())
        except BaseException as error:  # as above
            raise _setup_failure(error) from error
        self._tell()
        return given

    def _given(self) -> dict[str, Any]:
        self.context.check()  # stopped before it began
        given = self._task.arguments(self._work.input, self.context)
        if self._work.secrets:
            self.context._secrets = resolved(self._work.secrets, self._secrets)
        return given

    def _setup_arguments(self) -> dict[str, Any]:
        return self._task.setup_arguments(self._work.input, self.context)

    def _tell(self) -> None:
        self.context.check()
        if self.context._signals is not None:
            self.context._signals.step(SETUP_STEP, StepStatus.COMPLETED)


def _setup_failure(error: BaseException) -> BaseException:
    """What an attempt ends with whose set-up raised this."""
    if isinstance(error, TaskFailed):
        error.code = error.code or ReasonCode.INIT_SETUP.value
        return error
    if isinstance(error, Superseded | TaskCanceled | TaskPaused | InProgress | asyncio.CancelledError):
        return error
    return TaskFailed(f"the set-up failed: {type(error).__name__}: {error}", code=ReasonCode.INIT_SETUP.value)
