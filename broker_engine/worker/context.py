"""What a running task knows about itself, and what it may tell before it ends."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import orjson

from broker_engine.errors import BadRequest
from broker_engine.wire.resume import Resume
from broker_engine.worker.outcomes import InProgress, Superseded, TaskCanceled, TaskFailed, TaskFailedForGood
from broker_engine.worker.signals import Signals
from broker_engine.worker.steps import StepRetry, StepRun, running_step, sizes

__all__ = ["InProgress", "Superseded", "TaskCanceled", "TaskContext", "TaskFailed", "TaskFailedForGood"]

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class TaskContext:
    """The attempt that is running. Ask for it by annotating a parameter with this type."""

    task_id: str
    workflow_id: str
    workflow_name: str
    reference: str
    task_type: str
    domain: str
    run: int
    #: 0 for the first attempt.
    attempt: int
    #: Fencing token: grows with every start of this task; pass it to systems that can refuse older ones.
    lease: int
    correlation_id: str | None
    #: What ``@task(setup=…)`` returned.
    setup: Any = None
    _superseded: bool = field(default=False, repr=False)
    _signals: Signals | None = field(default=None, repr=False, compare=False)
    #: What earlier attempts have done.
    _secrets: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    _folder: Path | None = field(default=None, repr=False, compare=False)
    _resume: Resume = field(default_factory=lambda: Resume({}), repr=False, compare=False)

    @property
    def is_superseded(self) -> bool:
        """Whether another worker has taken over (the response time-out passed, or the process seemed lost)."""
        return self._superseded

    def check(self) -> None:
        """A safe point: raises when going on is of no use.

        Raises:
            Superseded: another worker has taken over.
        """
        if self._superseded:
            raise Superseded

    def heartbeat(self, output: Mapping[str, Any] | None = None) -> None:
        """Tell that the task is alive: its response clock starts anew. Returns at once.

        Args:
            output: interim output, merged by key; the final result replaces it.

        Raises:
            Superseded: another worker has taken over.
            BadRequest: called in a process of the process pool, or the output is too large.
        """
        self.check()
        self._connected().heartbeat(None if output is None else orjson.dumps(dict(output)))

    def extend_lease(self) -> None:
        """Start the response clock anew and nothing else. Returns at once.

        Raises:
            Superseded: another worker has taken over.
            BadRequest: called in a process of the process pool.
        """
        self.check()
        self._connected().extend_lease()

    def secret(self, name: str) -> str:
        """A secret that the definition names in ``runtimeMetadata``; never stored or logged by the engine.

        Raises:
            BadRequest: the definition does not name it.
        """
        if name not in self._secrets:
            raise BadRequest(f"the definition of {self.task_type} does not name {name} in runtimeMetadata")
        return self._secrets[name]

    @property
    def folder(self) -> Path:
        """A working folder of this attempt, made when first asked for and removed when the function has ended."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="broker-engine-task-"))
        return self._folder

    def remove_folder(self) -> None:
        """Remove the working folder, if there is one; what cannot be removed is left (B15)."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    # --- steps

    def step(
        self, name: str, *, retry: StepRetry = StepRetry.WITH_TASK, input_size: int = 0
    ) -> AbstractContextManager[StepRun]:
        """A step of this task, measured and remembered: a later attempt finds it done.

        >>> with context.step("PARSE") as step:            # doctest: +SKIP
        ...     if not step.is_done:
        ...         step.result = parse(path)

        Args:
            name: unique within the task.
            retry: ``NEVER`` for side effects outside that must not happen twice.
            input_size: what the step is given, in bytes, if that is worth knowing.

        Raises:
            Superseded: another worker has taken over; the step does not begin.
            TaskFailedForGood: a ``NEVER`` step was begun before and its outcome is unknown.
        """
        self.check()
        return running_step(self._connected(), self._resume, name, retry=retry, input_size=input_size)

    def run_step(
        self, name: str, function: Callable[..., T], *args: Any, retry: StepRetry = StepRetry.WITH_TASK, **kwargs: Any
    ) -> T:
        """Run a function as a step, or return what it returned in an earlier attempt (as JSON gives it back).

        The result must have a JSON form. Raises as ``step``.
        """
        with self.step(name, retry=retry, input_size=sizes(args, kwargs)) as step:
            if not step.is_done:
                step.result = function(*args, **kwargs)
        result: T = step.result
        return result

    async def run_step_async(
        self,
        name: str,
        function: Callable[..., Awaitable[T]],
        *args: Any,
        retry: StepRetry = StepRetry.WITH_TASK,
        **kwargs: Any,
    ) -> T:
        """As ``run_step`` for an async function."""
        with self.step(name, retry=retry, input_size=sizes(args, kwargs)) as step:
            if not step.is_done:
                step.result = await function(*args, **kwargs)
        result: T = step.result
        return result

    @property
    def saved_checkpoint(self) -> Any:
        """What ``checkpoint`` stored last in the step that an earlier attempt did not complete; None if nothing."""
        return self._resume.checkpoint

    def checkpoint(self, value: Any) -> None:
        """Store how far the present step is (JSON): at most once a second, the last one for sure at the step's end."""
        self.check()
        self._connected().progress(checkpoint=orjson.dumps(value))

    def progress(self, done: int, total: int | None = None) -> None:
        """Show how much of the work is done; stored like checkpoints."""
        self.check()
        self._connected().progress(progress_done=done, progress_total=total)

    def _connected(self) -> Signals:
        if self._signals is None:
            raise BadRequest(
                "a task in the process pool cannot send signs of life: give it a responseTimeoutSeconds that covers "
                "it, or use pool='thread'"
            )
        return self._signals
