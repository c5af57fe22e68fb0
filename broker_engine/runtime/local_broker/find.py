"""Get hold of a broker, by the least trouble: the one given, a running one, jars, Docker."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Protocol, Self

from broker_engine.errors import Unreachable
from broker_engine.runtime.local_broker.broker import LocalBroker
from broker_engine.runtime.local_broker.detached import find_detached
from broker_engine.runtime.local_broker.docker import DockerBroker, docker_engine_answers
from broker_engine.runtime.local_broker.errors import JarsUnavailable, LocalBrokerError, NoJava
from broker_engine.runtime.local_broker.jars import Progress, ignore_progress
from broker_engine.runtime.local_broker.readiness import wait_until_ready

REACH_SECONDS = 10.0


class FoundBroker(Protocol):
    """A broker to use; leaving the context stops it only if it was started for us."""

    @property
    def bootstrap(self) -> str: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...


class GivenBroker:
    """Somebody else's broker: used, never stopped."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave it alone."""


def find_or_start(
    bootstrap: str | None,
    data_dir: Path,
    *,
    port: int | None = None,
    properties: Mapping[str, str] = MappingProxyType({}),
    broker_defaults: bool = False,
    die_with_parent: bool = True,
    progress: Progress = ignore_progress,
) -> FoundBroker:
    """Use `bootstrap` when given; else the broker that runs on `data_dir`; else start one.

    Raises:
        Unreachable: nothing answers at `bootstrap`.
        LocalBrokerError: none was given and none could be started; says what to do.
    """
    if bootstrap is not None:
        if not wait_until_ready(bootstrap, timeout=REACH_SECONDS):
            raise Unreachable(f"No broker is ready at {bootstrap}. Start it or correct the address.")
        return GivenBroker(bootstrap)
    running = find_detached(data_dir)
    if running is not None:
        return GivenBroker(running.bootstrap)
    try:
        return LocalBroker.start(
            data_dir,
            port=port,
            properties=properties,
            broker_defaults=broker_defaults,
            die_with_parent=die_with_parent,
            progress=progress,
        )
    except (JarsUnavailable, NoJava) as error:
        if docker_engine_answers():
            return DockerBroker.start(port=port, properties=properties)
        raise LocalBrokerError(
            f"No Kafka broker: none was given (`--kafka HOST:PORT`), {_uncapitalised(error)} "
            "And no Docker engine answers. Any one of the three is enough."
        ) from error


def _uncapitalised(error: Exception) -> str:
    text = str(error)
    return text[:1].lower() + text[1:]
