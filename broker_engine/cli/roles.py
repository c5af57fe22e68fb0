"""How a role runs as a process: it waits for its cluster, stops cleanly at the first signal and at once at the second.

The role itself runs in a thread. Python handles signals in the main thread only, between two of its instructions; a
main thread inside a Kafka call would hear a signal when that call returns, perhaps a minute later.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

import structlog
import typer

from broker_engine.cli import exits
from broker_engine.cli.session import Session
from broker_engine.errors import BrokerEngineError, Retriable, UnknownTopic, Unreachable
from broker_engine.runtime.local_broker.readiness import accepts_connections

T = TypeVar("T")

_log = structlog.get_logger(__name__)

#: How often an absent broker is looked for, and how often the wait is spoken of.
_LOOK_SECONDS = 0.5
_REMIND_SECONDS = 10.0


class Stopping:
    """Whether the process was asked to stop."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._on_stop: list[Callable[[], None]] = []

    def ask(self) -> None:
        self._asked.set()
        for act in self._on_stop:
            act()

    def then(self, act: Callable[[], None]) -> None:
        """Call this when asked (at once, if that has happened)."""
        self._on_stop.append(act)
        if self._asked.is_set():
            act()

    @property
    def is_asked(self) -> bool:
        return self._asked.is_set()

    def wait(self, seconds: float) -> bool:
        return self._asked.wait(seconds)


@contextmanager
def signals() -> Iterator[Stopping]:
    """Within: the first SIGINT or SIGTERM asks to stop, the second ends the process at once."""
    stopping = Stopping()

    def heard(number: int, _frame: FrameType | None) -> None:
        if stopping.is_asked:
            _log.warning("role.ends_at_once", signal=signal.Signals(number).name)
            os._exit(exits.FAILED)
        _log.info("role.stops", signal=signal.Signals(number).name)
        stopping.ask()

    before = {number: signal.signal(number, heard) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_until_stopped(work: Callable[[Stopping], None]) -> None:
    """Run a role's work; returns when it returned, raises what it raised."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work(stopping)
        except BaseException as error:  # raised again in the main thread
            raised.append(error)

    with signals() as stopping:
        thread = threading.Thread(target=run, name="role", daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(0.2)
    if raised and isinstance(raised[0], BrokerEngineError | typer.Exit):
        raise raised[0]
    if raised:
        _log.error("role.crashed", exc_info=raised[0])
        raise typer.Exit(exits.FAILED) from raised[0]


def patiently(session: Session, stopping: Stopping, ask: Callable[[], T | None], *, waits_for: str) -> T | None:
    """Ask the cluster until it has an answer, saying from time to time what is waited for; None when stopped."""
    silent_seconds = _REMIND_SECONDS
    while not stopping.is_asked:
        reason = waits_for
        try:
            if not accepts_connections(session.bootstrap):
                raise Unreachable(f"no broker answers at {session.bootstrap}")
            found = ask()
            if found is not None:
                return found
        except (Unreachable, Retriable, UnknownTopic) as error:
            reason = str(error)
        if silent_seconds >= _REMIND_SECONDS:
            _log.warning("role.waits", reason=reason, kafka=session.bootstrap)
            silent_seconds = 0.0
        stopping.wait(_LOOK_SECONDS)
        silent_seconds += _LOOK_SECONDS
    return None
