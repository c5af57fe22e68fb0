"""What a decision may know beside state and command: looked up by the shell, so that deciding stays a pure function."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

from broker_engine.model.caps import Cap, Caps
from broker_engine.model.definitions import TaskDef, WorkflowDef
from broker_engine.model.limits import DEFAULT_DOMAIN, MAX_PAYLOAD_BYTES
from broker_engine.model.schedules import CronSchedule
from broker_engine.model.stops import Stop

#: Remembered commands per workflow; beyond it new ones get 429 (none is evicted).
MAX_REMEMBERED = 64


class Definitions(Protocol):
    """The registered definitions as of this batch."""

    def task_def(self, name: str) -> TaskDef | None: ...

    def workflow_def(self, name: str, version: int | None) -> WorkflowDef | None:
        """The snapshot (task definitions embedded) of a version, the newest when None."""

    def workflow_versions(self, name: str) -> tuple[int, ...]: ...

    def stop_of(self, workflow: str, tenant: str | None) -> Stop | None:
        """The stop that keeps such a workflow from starting."""

    def stop(self, key: str) -> Stop | None: ...

    def stop_of_queue(self, domain: str, task_type: str) -> Stop | None:
        """The stop that pauses this queue."""

    @property
    def caps(self) -> Caps: ...

    def cap(self, key: str) -> Cap | None: ...

    def schedule(self, name: str) -> CronSchedule | None: ...

    def inline(self, document: bytes) -> WorkflowDef:
        """The snapshot of a definition that comes with a start (definitions.inline_definition)."""


class Queues(Protocol):
    """Which queues' topics are known to exist."""

    def exists(self, domain: str, task_type: str) -> bool: ...


class Pollers(Protocol):
    """Which queues are polled."""

    def last_seen_ms(self, domain: str, task_type: str) -> int | None:
        """When (log time) a worker of this queue was last heard of."""


class NoPollers:
    """Nobody was ever heard of."""

    def last_seen_ms(self, domain: str, task_type: str) -> int | None:  # noqa: ARG002 - the protocol's signature
        return None


_NO_POLLERS = NoPollers()


class Context(NamedTuple):
    """The surroundings of a decision.

    ``now_ms`` is log time: the largest LogAppendTime read from the partition, never a clock.
    """

    now_ms: int
    #: ``topic/partition/offset`` of the command.
    position: str
    definitions: Definitions
    queues: Queues
    #: The run under which this workflow id was used before it was retired, if its idempotency record still stands.
    retired_run: int | None = None
    environment: Mapping[str, str] = MappingProxyType({})
    max_payload_bytes: int = MAX_PAYLOAD_BYTES
    default_domain: str = DEFAULT_DOMAIN
    pollers: Pollers = _NO_POLLERS
