"""The waiting tasks of a partition that may go to several domains, sorted so that a look at them is cheap."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from broker_engine.decider.transfers import may_be_rerouted
from broker_engine.model.state import Execution, TaskState

#: (workflow id, reference)
_Key = tuple[str, str]


class Bucket(NamedTuple):
    """Tasks that go to the same domain, whichever that is: a look costs one question per bucket."""

    domain: str
    task_type: str
    #: As TaskState.domain_choices.
    choices: str


class Choosers:
    """Knows only workflows that were started with ``taskToDomain``; all others cost nothing here."""

    def __init__(self) -> None:
        self._buckets: dict[Bucket, dict[_Key, None]] = {}
        self._where: dict[_Key, Bucket] = {}

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        return tuple(self._buckets)

    def note(self, execution: Execution) -> None:
        """Take in a new state of a workflow."""
        for task in execution.tasks.values():
            key = (task.workflow_id, task.reference)
            bucket = Bucket(task.domain, task.task_type, task.domain_choices) if may_be_rerouted(task) else None
            if self._where.get(key) == bucket:
                continue
            self._drop(key)
            if bucket is not None:
                self._buckets.setdefault(bucket, {})[key] = None
                self._where[key] = bucket

    def take(self, bucket: Bucket, live: Mapping[str, Execution], limit: int) -> Iterator[TaskState]:
        """Up to so many tasks of a bucket, those first that came first; forgotten until they are noted again."""
        for key in list(self._buckets.get(bucket, ()))[:limit]:
            self._drop(key)
            execution = live.get(key[0])
            if execution is not None and key[1] in execution.tasks:
                yield execution.tasks[key[1]]

    def __len__(self) -> int:
        return len(self._where)

    def _drop(self, key: _Key) -> None:
        bucket = self._where.pop(key, None)
        if bucket is None:
            return
        waiting = self._buckets[bucket]
        del waiting[key]
        if not waiting:
            del self._buckets[bucket]
