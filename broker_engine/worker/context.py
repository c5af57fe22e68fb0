"""What a running task knows about itself, and what it may tell before it ends."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, assert_never

import orjson

from broker_engine.errors import BadRequest
from broker_engine.model.decision import ControlKind
from broker_engine.wire.records import Control
from broker_engine.wire.resume import Resume
from broker_engine.worker.cleanup import Hook
from broker_engine.worker.outcomes import (
    InProgress,
    Superseded,
    TaskCanceled,
    TaskFailed,
    TaskFailedForGood,
    TaskPaused,
)
from broker_engine.worker.signals import Signals
from broker_engine.worker.steps import StepRetry, StepRun, running_step, sizes

__all__ = [
    "InProgress",
    "Superseded",
    "TaskCanceled",
    "TaskContext",
    "TaskFailed",
    "TaskFailedForGood",
    "TaskPaused",
]

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
    #: What was told about this hand-out.
    _told: Control | None = field(default=None, repr=False, compare=False)
    #: Interrupts the function (async ones only).
    _interrupt: Callable[[], object] | None = field(default=None, repr=False, compare=False)
    #: Inside a step that may not run twice a pause has to wait.
    _in_unrepeatable: bool = field(default=False, repr=False, compare=False)
    _cleanups: list[Hook] = field(default_factory=list, repr=False, compare=False)

    @property
    def is_superseded(self) -> bool:
        """Whether another worker has taken over (the response time-out passed, or the process seemed lost)."""
        return self._superseded

    @property
    def is_canceled(self) -> bool:
        """Whether somebody asked this task to stop, or its workflow has ended."""
        return self._told is not None and self._told.kind is ControlKind.CANCEL

    def check(self) -> None:
        """A safe point: raises when the task is to stop here. Let what it raises pass.

        Called before each step, and by ``progress``, ``checkpoint``, ``heartbeat`` and ``extend_lease``; call it in
        long loops and before calls to other systems. In the process pool it knows of nothing.

        Raises:
            TaskCanceled: somebody asked the task to stop.
            TaskPaused: somebody paused it.
            Superseded: another worker has taken over, or the attempt was given up.
        """
        if self._superseded:
            raise Superseded
        if self._told is not None:
            stop = self._stop_for(self._told)
            if stop is not None:
                raise stop

    def on_cleanup(self, hook: Hook) -> None:
        """Run this (a plain or async function without arguments) when the function has ended, however it ends.

        The last one added runs first. Best effort and within the task's ``cleanup_timeout_seconds``; the attempt is
        reported afterwards in any case. Do not call ``check`` there: it would raise again.
        """
        self._cleanups.append(hook)

    def _stop_for(self, told: Control) -> Exception | None:
        match told.kind:
            case ControlKind.CANCEL:
                return TaskCanceled(told.reason)
            case ControlKind.PAUSE:
                return None if self._in_unrepeatable else TaskPaused(told.reason)
            case ControlKind.SUPERSEDED:
                return Superseded(told.reason)
            case _:
                assert_never(told.kind)

    def _hear(self, told: Control) -> None:
        """Called in the thread that reads what is told."""
        self._told = told
        interrupt = self._interrupt
        if interrupt is not None and told.kind is not ControlKind.PAUSE:
            interrupt()

    def _interrupted(self) -> Exception | None:
        """What an interrupted function ends with."""
        return None if self._told is None else self._stop_for(self._told)

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
            TaskCanceled, TaskPaused, Superseded: as ``check``; the step does not begin.
            TaskFailedForGood: a ``NEVER`` step was begun before and its outcome is unknown.
        """
        self.check()
        step = running_step(self._connected(), self._resume, name, retry=retry, input_size=input_size)
        return step if retry is StepRetry.WITH_TASK else self._unrepeatable(step)

    @contextmanager
    def _unrepeatable(self, step: AbstractContextManager[StepRun]) -> Iterator[StepRun]:
        self._in_unrepeatable = True
        try:
            with step as run:
                yield run
        finally:
            self._in_unrepeatable = False

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
