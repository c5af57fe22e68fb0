"""Cron schedules as a client sees them: registered, changed, listed, and looked ahead."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

import orjson

from broker_engine.decider.schedules import moments, parse_schedule
from broker_engine.errors import NotFound
from broker_engine.model.commands import DeleteSchedule, PauseSchedule, PutSchedule, ResumeSchedule
from broker_engine.model.schedules import CronSchedule
from broker_engine.topics import Topic
from broker_engine.worker.views import Views

#: Moments that are told at once.
MAX_AHEAD = 1_000


class Schedules:
    """The schedules of one namespace (``Client.schedules``).

    Args:
        ask: sends a command and returns what came of it (``Client.ask``).
        views: reads what is registered.
    """

    def __init__(self, ask: Callable[..., str], views: Views) -> None:
        self._ask = ask
        self._views = views

    def register(self, document: Mapping[str, Any], *, overwrite: bool = False) -> list[str]:
        """Register a schedule (the fields of ``decider.schedules.SCHEDULE_FIELDS``); returns warnings.

        Raises:
            BadRequest: it is not valid; every violation is listed.
            Conflict: the name is taken and ``overwrite`` is not set.
        """
        name = parse_schedule(document).unwrap().name
        answer = self._ask(PutSchedule, name, document=orjson.dumps(document), overwrite=overwrite)
        warnings: list[str] = orjson.loads(answer)["warnings"]
        return warnings

    def delete(self, name: str) -> None:
        """Raises: NotFound."""
        self._ask(DeleteSchedule, name)

    def pause(self, name: str, reason: str | None = None) -> None:
        """Start nothing until it is resumed. What passes meanwhile is not caught up.

        Raises:
            NotFound: there is no such schedule.
            Conflict: it is paused already.
        """
        self._ask(PauseSchedule, name, reason=reason)

    def resume(self, name: str) -> None:
        """Go on with the first moment from now.

        Raises:
            NotFound: there is no such schedule.
            Conflict: it is not paused.
        """
        self._ask(ResumeSchedule, name)

    def all(self) -> dict[str, dict[str, Any]]:
        """Every schedule by name, with ``nextRunTime``, ``lastRunTime``, ``lastWorkflowId`` and ``lastError``."""
        found = self._views.definitions(Topic.CRON)
        return {name: orjson.loads(definition.document) for name, definition in sorted(found.items())}

    def get(self, name: str) -> dict[str, Any]:
        """Raises: NotFound."""
        found = self.all().get(name)
        if found is None:
            raise NotFound(f"there is no schedule {name}: `broker-engine schedule list` shows all")
        return found


def ahead(schedule: CronSchedule, count: int, after_ms: int | None = None) -> list[int]:
    """The next moments of a schedule (epoch milliseconds), whether it is paused or not."""
    after = time.time_ns() // 1_000_000 if after_ms is None else after_ms
    return list(islice(moments(schedule, after), min(count, MAX_AHEAD)))
