"""``@task``: a plain or async function becomes the worker of a task type.

Input arrives as the function wants it: one parameter annotated with a pydantic model or ``dict`` takes the whole
input, otherwise parameters are taken from it by name and checked against their annotations. A parameter annotated
``TaskContext`` gets the context. A dict or model that is returned is the output; any other value becomes
``{"result": value}``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar, get_type_hints, overload

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from broker_engine.errors import BadRequest
from broker_engine.model.limits import DEFAULT_DOMAIN
from broker_engine.worker.cleanup import CLEANUP_SECONDS, Hook
from broker_engine.worker.context import TaskContext, TaskFailedForGood

F = TypeVar("F", bound=Callable[..., Any])
Pool = Literal["thread", "asyncio", "process"]

DEFAULT_CONCURRENCY = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWorker:
    """A function and how it is run."""

    name: str
    function: Callable[..., Any]
    domain: str = DEFAULT_DOMAIN
    concurrency: int = DEFAULT_CONCURRENCY
    pool: Pool = "thread"
    #: Whether the worker extends the lease by itself while the function runs; never in the process pool.
    heartbeat: bool = True
    #: Called with the context when the function has ended, however it ends.
    cleanup: Callable[[TaskContext], Any] | None = None
    #: How long that, and what the context's ``on_cleanup`` was given, may take together.
    cleanup_timeout_seconds: float = CLEANUP_SECONDS
    #: Task definition fields to register at start; None registers nothing.
    definition: Mapping[str, Any] | None = None
    #: Runs before the function, while the task is STARTING; what it returns is ``TaskContext.setup``.
    setup: Callable[..., Any] | None = None
    _bind: Callable[[dict[str, Any], TaskContext], dict[str, Any]] = field(repr=False)
    _bind_setup: Callable[[dict[str, Any], TaskContext], dict[str, Any]] | None = field(default=None, repr=False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function as it is, for tests and for reuse."""
        return self.function(*args, **kwargs)

    def cleanups(self, context: TaskContext) -> Sequence[Hook]:
        """What is to be run now that the function has ended, the last first."""
        if self.cleanup is None:
            return context._cleanups
        cleanup = self.cleanup
        own: Hook = _async_hook(cleanup, context) if inspect.iscoroutinefunction(cleanup) else partial(cleanup, context)
        return [own, *context._cleanups]

    def arguments(self, data: bytes, context: TaskContext) -> dict[str, Any]:
        """The function's keyword arguments.

        Raises:
            TaskFailedForGood: INIT_INPUT, the input does not fit; a retry would not help.
        """
        return self._bound(self._bind, data, context)

    def setup_arguments(self, data: bytes, context: TaskContext) -> dict[str, Any]:
        """The same for the set-up."""
        assert self._bind_setup is not None, "there is a set-up"
        return self._bound(self._bind_setup, data, context)

    def _bound(
        self, bind: Callable[[dict[str, Any], TaskContext], dict[str, Any]], data: bytes, context: TaskContext
    ) -> dict[str, Any]:
        try:
            return bind(orjson.loads(data), context)
        except ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(map(str, problem['loc'])) or 'input'}: {problem['msg']}" for problem in error.errors()
            )
            raise TaskFailedForGood(f"the input does not fit: {problems}", code="INIT_INPUT") from error


def _async_hook(cleanup: Callable[[TaskContext], Any], context: TaskContext) -> Hook:
    async def hook() -> None:
        await cleanup(context)

    return hook


def output_bytes(value: Any) -> bytes:
    """What a function returned, as the JSON of the task's output.

    Raises:
        TaskFailedForGood: it has no JSON form.
    """
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    elif value is None:
        value = {}
    elif not isinstance(value, Mapping):
        value = {"result": value}
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS, default=_json_default)
    except TypeError as error:
        raise TaskFailedForGood(f"the result has no JSON form: {error}", code="INVALID_OUTPUT") from error


def _json_default(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} is not JSON serializable")


@overload
def task(function: F, /) -> TaskWorker: ...


@overload
def task(
    *,
    name: str | None = None,
    domain: str = DEFAULT_DOMAIN,
    concurrency: int = DEFAULT_CONCURRENCY,
    pool: Pool | None = None,
    heartbeat: bool = True,
    setup: Callable[..., Any] | None = None,
    cleanup: Callable[[TaskContext], Any] | None = None,
    cleanup_timeout_seconds: float = CLEANUP_SECONDS,
    **definition: Any,
) -> Callable[[F], TaskWorker]: ...


def task(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    domain: str = DEFAULT_DOMAIN,
    concurrency: int = DEFAULT_CONCURRENCY,
    pool: Pool | None = None,
    heartbeat: bool = True,
    setup: Callable[..., Any] | None = None,
    cleanup: Callable[[TaskContext], Any] | None = None,
    cleanup_timeout_seconds: float = CLEANUP_SECONDS,
    **definition: Any,
) -> TaskWorker | Callable[[F], TaskWorker]:
    """Make a function the worker of a task type.

    Args:
        name: the task type; the function's name by default.
        domain: the queue's domain.
        concurrency: how many tasks of this type one process runs at a time.
        pool: ``thread`` (default for plain functions), ``asyncio`` (always for async ones), or ``process`` for work
            that keeps a core busy (the function must be importable).
        heartbeat: extend the lease while the function runs, every third of the response time-out (at least a second
            apart). Without it a function that hangs is given up after ``responseTimeoutSeconds``. Not in processes.
        setup: called before the function, with input and context as it wants them: connections, credentials, data for
            the work. What it returns is ``context.setup``. Until it is done the task is STARTING; a failure ends the
            attempt early, as INIT_SETUP. Not in processes.
        cleanup: called with the context when the function has ended, however it ends; best effort. In the process pool
            it runs in the worker's own process.
        cleanup_timeout_seconds: how long the clean-up may hold up the report of the attempt.
        definition: fields of the task definition (``retryCount=3``, ``responseTimeoutSeconds=60`` …), registered when
            the worker starts.
    """

    def make(wrapped: Callable[..., Any]) -> TaskWorker:
        is_async = inspect.iscoroutinefunction(wrapped)
        if concurrency < 1:
            raise BadRequest(f"concurrency of task {name or wrapped.__name__} must be at least 1, not {concurrency}")
        if cleanup_timeout_seconds <= 0:
            raise BadRequest(
                f"cleanup_timeout_seconds of task {name or wrapped.__name__} must be more than 0, not "
                f"{cleanup_timeout_seconds:g}"
            )
        if is_async and pool not in (None, "asyncio"):
            raise BadRequest(f"async task {wrapped.__name__} runs in the asyncio pool, not {pool}")
        if setup is not None and pool == "process":
            raise BadRequest(f"the set-up of task {name or wrapped.__name__} needs pool='thread', not a process")
        if inspect.iscoroutinefunction(setup) and not is_async:
            raise BadRequest(f"the set-up of task {name or wrapped.__name__} is async: make the task async, too")
        return TaskWorker(
            name=name or wrapped.__name__,
            function=wrapped,
            domain=domain,
            concurrency=concurrency,
            pool="asyncio" if is_async else pool or "thread",
            heartbeat=heartbeat and pool != "process",
            cleanup=cleanup,
            cleanup_timeout_seconds=cleanup_timeout_seconds,
            definition={"name": name or wrapped.__name__, **definition} if definition else None,
            setup=setup,
            _bind=_binder(wrapped),
            _bind_setup=None if setup is None else _binder(setup),
        )

    return make if function is None else make(function)


def _binder(function: Callable[..., Any]) -> Callable[[dict[str, Any], TaskContext], dict[str, Any]]:
    """How a function takes its input, decided once from its signature."""
    hints = get_type_hints(function)
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    contexts = [p.name for p in parameters if hints.get(p.name) is TaskContext]
    inputs = [p for p in parameters if p.name not in contexts]

    def with_context(arguments: dict[str, Any], context: TaskContext) -> dict[str, Any]:
        for name in contexts:
            arguments[name] = context
        return arguments

    if len(inputs) == 1 and inputs[0].kind is not inspect.Parameter.VAR_KEYWORD:
        only, hint = inputs[0].name, hints.get(inputs[0].name)
        if isinstance(hint, type) and issubclass(hint, BaseModel):
            return lambda data, context: with_context({only: hint.model_validate(data)}, context)
        if hint in (dict, None) or getattr(hint, "__origin__", None) in (dict, Mapping):
            return lambda data, context: with_context({only: data}, context)
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in inputs):
        return lambda data, context: with_context(dict(data), context)
    fields: dict[str, Any] = {
        p.name: (hints.get(p.name, Any), ... if p.default is inspect.Parameter.empty else p.default) for p in inputs
    }
    if not fields:
        return lambda _data, context: with_context({}, context)
    model = create_model(
        f"{function.__name__}_input", __config__=ConfigDict(arbitrary_types_allowed=True, extra="ignore"), **fields
    )

    def by_name(data: dict[str, Any], context: TaskContext) -> dict[str, Any]:
        checked = model.model_validate(data)
        return with_context({name: getattr(checked, name) for name in fields}, context)

    return by_name
