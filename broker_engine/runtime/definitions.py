"""The registered definitions as a decider sees them: a view of two compacted topics, read as far as is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
import structlog

from broker_engine.decider.definition_tree import inline_definition, snapshot
from broker_engine.decider.definitions import parse_task_def
from broker_engine.decider.schedules import parse_schedule
from broker_engine.errors import BadRequest, DecodeError
from broker_engine.log.ports import BEGINNING, FOLLOW_MS, Log, Record, TopicPartition
from broker_engine.model.caps import NO_CAPS, Cap, Caps, read_cap, together
from broker_engine.model.decision import WriteDefinition
from broker_engine.model.definitions import TaskDef, WorkflowDef
from broker_engine.model.schedules import CronSchedule
from broker_engine.model.stops import Stop, is_queue_key, keys_against, read_stop, stop_of_queue
from broker_engine.topics import DEFINITION_TOPICS, Namespace
from broker_engine.wire.codecs import DEFINITION

_log = structlog.get_logger(__name__)

#: Definitions that came with a start and are remembered: tasks submitted alone bring the same one again and again.
MAX_INLINE = 256
#: How long a batch waits for a definition that is committed but not yet readable (the last stable offset lags).
CATCH_UP_SECONDS = 0.5
_POLL_SECONDS = 0.02


class DefinitionView:
    """Every registered definition (decider.context.Definitions), parsed once.

    Writes of the batch being decided count at once (``stage``) and are dropped with it (``unstage``).
    """

    def __init__(self, log: Log, namespace: Namespace) -> None:
        self._kinds = {namespace.topic(topic): kind for kind, topic in DEFINITION_TOPICS.items()}
        #: What has to be read before a batch with starts or registrations is decided.
        self.partitions = tuple(TopicPartition(topic, 0) for topic in self._kinds)
        self._reader = log.reader(fetch_wait_ms=FOLLOW_MS)
        self._reader.assign(dict.fromkeys(self.partitions, BEGINNING))
        self._stops: dict[str, bytes] = {}
        #: The queues that are paused, and how often that has changed.
        self.paused_queues: dict[str, Stop] = {}
        self.queue_changes = 0
        self._caps: dict[str, bytes] = {}
        #: The caps in force.
        self.caps: Caps = NO_CAPS
        self._schedules: dict[str, bytes] = {}
        self._tasks: dict[str, bytes] = {}
        self._workflows: dict[str, dict[int, bytes]] = {}
        self._staged: list[tuple[WriteDefinition, bytes | None]] = []
        self._task_cache: dict[str, TaskDef] = {}
        self._snapshots: dict[tuple[str, int], WorkflowDef] = {}
        self._inline: dict[bytes, WorkflowDef] = {}

    # --- decider.context.Definitions

    def task_def(self, name: str) -> TaskDef | None:
        document = self._tasks.get(name)
        if document is None:
            return None
        if name not in self._task_cache:
            self._task_cache[name] = parse_task_def(orjson.loads(document)).unwrap()
        return self._task_cache[name]

    def workflow_def(self, name: str, version: int | None) -> WorkflowDef | None:
        versions = self._workflows.get(name)
        if not versions:
            return None
        chosen = max(versions) if version is None else version
        if chosen not in versions:
            return None
        key = (name, chosen)
        if key not in self._snapshots:
            self._snapshots[key] = snapshot(orjson.loads(versions[chosen]), self.task_def)
        return self._snapshots[key]

    def workflow_versions(self, name: str) -> tuple[int, ...]:
        return tuple(sorted(self._workflows.get(name, ())))

    def inline(self, document: bytes) -> WorkflowDef:
        found = self._inline.get(document)
        if found is None:
            found = inline_definition(document, self.task_def)
            if len(self._inline) >= MAX_INLINE:
                self._inline.clear()
            self._inline[document] = found
        return found

    def stop(self, key: str) -> Stop | None:
        document = self._stops.get(key)
        return None if document is None else read_stop(key, document)

    def stop_of(self, workflow: str, tenant: str | None) -> Stop | None:
        if not self._stops:
            return None
        return next((stop for key in keys_against(workflow, tenant) if (stop := self.stop(key)) is not None), None)

    def stop_of_queue(self, domain: str, task_type: str) -> Stop | None:
        if not self.paused_queues:
            return None
        return stop_of_queue(self.paused_queues, domain, task_type)

    def cap(self, key: str) -> Cap | None:
        document = self._caps.get(key)
        return None if document is None else read_cap(key, document)

    def schedule(self, name: str) -> CronSchedule | None:
        document = self._schedules.get(name)
        return None if document is None else parse_schedule(orjson.loads(document)).unwrap()

    # --- reading

    def catch_up(self, ends: Mapping[TopicPartition, int], timeout: float = CATCH_UP_SECONDS) -> bool:
        """Read to these offsets; False when they could not be reached in time (decide with what is committed)."""
        waited = 0.0
        while any(self._reader.position(tp) < end for tp, end in ends.items()):
            if waited >= timeout:
                return False
            records = self._reader.read(1_000, _POLL_SECONDS)
            self._apply(records)
            waited += 0.0 if records else _POLL_SECONDS
        return True

    def read_on(self) -> bool:
        """Take in what has arrived, without waiting; whether there was anything."""
        if self._staged:
            return False  # what is read here may be older than what is being committed
        records = self._reader.read(1_000, 0.0)
        self._apply(records)
        return bool(records)

    def stage(self, write: WriteDefinition) -> None:
        """Let a definition of the batch being decided count."""
        self._staged.append((write, self._put(write.kind, write.key, write.document)))

    def unstage(self) -> None:
        """The batch was aborted: forget its definitions."""
        for write, before in reversed(self._staged):
            self._put(write.kind, write.key, before)
        self._staged.clear()

    def settle(self) -> None:
        """The batch was committed."""
        self._staged.clear()

    def close(self) -> None:
        self._reader.close()

    def _apply(self, records: list[Record]) -> None:
        for record in records:
            kind = self._kinds[record.topic]
            try:
                document = DEFINITION.decode(record.value).document if record.value is not None else None
                self._put(kind, (record.key or b"").decode(), document)
            except (DecodeError, BadRequest, ValueError) as error:
                _log.warning("definitions.unreadable", topic=record.topic, offset=record.offset, error=str(error))

    def _put(self, kind: str, key: str, document: bytes | None) -> bytes | None:
        """Store or remove; returns what was there before."""
        if kind == "stop":
            if is_queue_key(key):
                self._pause_queue(key, document)
            return _put(self._stops, key, document)
        if kind == "cap":
            before = _put(self._caps, key, document)
            self.caps = together(read_cap(name, found) for name, found in self._caps.items())
            return before
        if kind == "schedule":
            return _put(self._schedules, key, document)
        self._snapshots.clear()
        self._inline.clear()
        if kind == "task":
            self._task_cache.pop(key, None)
            return _put(self._tasks, key, document)
        name, _, version = key.rpartition(":")
        return _put(self._workflows.setdefault(name, {}), int(version), document)

    def _pause_queue(self, key: str, document: bytes | None) -> None:
        self.queue_changes += 1
        if document is None:
            self.paused_queues.pop(key, None)
        else:
            self.paused_queues[key] = read_stop(key, document)


def _put(documents: dict[Any, bytes], key: Any, document: bytes | None) -> bytes | None:
    before = documents.get(key)
    if document is None:
        documents.pop(key, None)
    else:
        documents[key] = document
    return before
