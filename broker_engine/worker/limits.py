"""The limits as anybody can see them: what each allows, what it counts, and who waits for it."""

from __future__ import annotations

from typing import NamedTuple

import orjson

from broker_engine.decider.definitions import parse_task_def
from broker_engine.decider.limits import LimitRules, usage
from broker_engine.model.caps import Cap, read_cap, together
from broker_engine.model.definitions import TaskDef
from broker_engine.model.slots import Entry, Stage
from broker_engine.topics import Topic
from broker_engine.worker.views import Views


class LimitInUse(NamedTuple):
    """One limit that counts something or is waited for."""

    #: ``all tasks``, ``tenant NAME``, ``domain NAME``, ``type NAME``, ``rate NAME`` or ``lock VALUE``.
    limit: str
    capacity: int
    #: In progress; of a rate the starts in its window, and what may start any moment.
    in_use: int
    waiting: int


class LimitsView:
    """The limiter's state and rules, read once from their topics."""

    def __init__(self, views: Views) -> None:
        self._state = views.limits()
        self._rules = limit_rules(views)

    def in_use(self, now_ms: int) -> list[LimitInUse]:
        """Every limit that counts something or is waited for, by name."""
        counted = usage(self._state, now_ms, self._rules)
        waiting: dict[str, int] = {}
        for entry in self._state.entries.values():
            for need in self._needs(entry):
                waiting[need] = waiting.get(need, 0) + (entry.stage is Stage.WAITING)
        return [
            LimitInUse(key, need.capacity, used, waiting.get(key, 0)) for key, (need, used) in sorted(counted.items())
        ]

    def _needs(self, entry: Entry) -> tuple[str, ...]:
        return tuple(need.key for need in self._rules.needs(entry.line))


def limit_rules(views: Views) -> LimitRules:
    """The limits in force: of the newest definitions, and the caps."""
    return LimitRules(_TaskDefs(views), together(caps(views).values()))


def caps(views: Views) -> dict[str, Cap]:
    """The caps in force, by key."""
    return {key: read_cap(key, found.document) for key, found in views.definitions(Topic.CAPS).items()}


class _TaskDefs:
    """Registered task definitions, parsed when asked for."""

    def __init__(self, views: Views) -> None:
        self._documents = {key: found.document for key, found in views.definitions(Topic.TASK_DEFS).items()}
        self._parsed: dict[str, TaskDef] = {}

    def __call__(self, name: str) -> TaskDef | None:
        if name in self._documents and name not in self._parsed:
            self._parsed[name] = parse_task_def(orjson.loads(self._documents[name])).unwrap()
        return self._parsed.get(name)
