"""The catalogue of topics: every name, key, partitioning and policy the engine uses. Nothing else knows a topic name.

Pure: computes names, partitions and configurations; creating and checking them is ``runtime/``'s. A namespace is
letters, digits and ``-``; the parts a user chooses (domain, task type) are spelled by ``model.names``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from struct import unpack_from

from broker_engine.errors import BadRequest, Violation
from broker_engine.model.limits import SCHEDULE_RETENTION_MS
from broker_engine.model.names import decode_name, encode_name

#: Kafka's own limit on the length of a topic name.
MAX_TOPIC_NAME = 249
DEFAULT_PARTITIONS = 8

_SECOND = 1_000
_MINUTE = 60 * _SECOND
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR

#: Local copies older than half of this would resurrect tombstoned records, so it is far above Kafka's default of 1 d.
DELETE_RETENTION_MS = 7 * _DAY
COMMANDS_RETENTION_MS = 7 * _DAY


class Topic(StrEnum):
    """The fixed topics of a namespace; the value is the last part of the name."""

    COMMANDS = "commands"
    WORKFLOW_STATE = "workflow-state"
    TASK_STATE = "task-state"
    SNAPSHOTS = "definition-snapshots"
    IDEMPOTENCY = "idempotency"
    CHECKPOINTS = "checkpoints"
    LIMIT_STATE = "limit-state"
    EVENTS = "events"
    TASK_DEFS = "task-defs"
    WORKFLOW_DEFS = "workflow-defs"
    STOPS = "stops"
    CAPS = "caps"
    CRON = "cron"
    NAMESPACE = "namespace"
    WORKERS = "workers"
    TASK_LOGS = "task-logs"
    REPLIES = "replies"
    DEAD_LETTERS = "dead-letters"


#: The delay tiers, in milliseconds, by the last part of their topic's name: a constant delay each, factor 4.
#: ``last`` is the last hop: shorter rests wait there in an in-memory heap (see decisions/0005).
DELAY_TIERS: Mapping[str, int] = {
    "last": 0,
    "15s": 15 * _SECOND,
    "1m": _MINUTE,
    "4m": 4 * _MINUTE,
    "16m": 16 * _MINUTE,
    "1h": _HOUR,
    "4h": 4 * _HOUR,
    "1d": _DAY,
}
LAST_HOP = "last"
#: How long all delay roles may be down before a delay record is lost to retention.
TOLERATED_OUTAGE_MS = 7 * _DAY

#: 64 MiB segments: the active segment is never compacted, so large ones make restore read dead records.
_COMPACT = {
    "cleanup.policy": "compact",
    "segment.bytes": str(64 * 1024 * 1024),
    "segment.ms": str(_HOUR),
    "min.cleanable.dirty.ratio": "0.1",
    "max.compaction.lag.ms": str(6 * _HOUR),
    "delete.retention.ms": str(DELETE_RETENTION_MS),
}
_LOG_TIME = {"message.timestamp.type": "LogAppendTime"}


def _delete(retention_ms: int) -> dict[str, str]:
    return {"cleanup.policy": "delete", "retention.ms": str(retention_ms), "retention.bytes": "-1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSpec:
    """How one topic is made and what `topics verify` checks.

    ``partitions`` is None where the namespace's own count P applies.
    """

    key: str
    value: str
    partitions: int | None = None
    config: Mapping[str, str] = field(default_factory=dict)

    @property
    def policy(self) -> str:
        return self.config.get("cleanup.policy", "delete")


#: The fixed topics. ``key`` and ``value`` are what the docs table shows; ``value`` names the record's schema.
CATALOGUE: Mapping[Topic, TopicSpec] = {
    Topic.COMMANDS: TopicSpec(key="workflow id", value="Command", config=_delete(COMMANDS_RETENTION_MS) | _LOG_TIME),
    Topic.WORKFLOW_STATE: TopicSpec(key="workflow id", value="WorkflowState", config=_COMPACT),
    Topic.TASK_STATE: TopicSpec(key="task id, in the partition of its workflow", value="TaskState", config=_COMPACT),
    Topic.SNAPSHOTS: TopicSpec(
        key="content hash, in each partition that uses it",
        value="DefinitionSnapshot",
        config=_COMPACT,
    ),
    Topic.IDEMPOTENCY: TopicSpec(key="workflow id derived from (name, key)", value="Idempotency", config=_COMPACT),
    Topic.CHECKPOINTS: TopicSpec(
        key="partition number, in that partition",
        value="Checkpoint",
        config=_COMPACT | {"segment.bytes": str(1024 * 1024), "segment.ms": str(10 * _MINUTE)},
    ),
    Topic.LIMIT_STATE: TopicSpec(
        key="task id and hand-out, in the partition of the limiter", value="LimitEntry", config=_COMPACT
    ),
    Topic.EVENTS: TopicSpec(key="workflow id", value="TransitionEvent", config=_delete(30 * _DAY)),
    Topic.TASK_DEFS: TopicSpec(key="name", value="Definition", partitions=1, config=_COMPACT),
    Topic.WORKFLOW_DEFS: TopicSpec(key="name:version", value="Definition", partitions=1, config=_COMPACT),
    Topic.STOPS: TopicSpec(
        key="all, or the workflow or tenant that may not start", value="Definition", partitions=1, config=_COMPACT
    ),
    Topic.CAPS: TopicSpec(
        key="all, or the tenant or domain that is capped", value="Definition", partitions=1, config=_COMPACT
    ),
    Topic.CRON: TopicSpec(key="name of the schedule", value="Definition", partitions=1, config=_COMPACT),
    Topic.NAMESPACE: TopicSpec(key="namespace", value="Namespace", partitions=1, config=_COMPACT),
    Topic.WORKERS: TopicSpec(
        key="worker id",
        value="WorkerPresence",
        partitions=1,
        config=_COMPACT
        | _LOG_TIME
        | {
            "cleanup.policy": "compact,delete",
            "retention.ms": str(_HOUR),
            "segment.bytes": str(1024 * 1024),
            "segment.ms": str(10 * _MINUTE),
        },
    ),
    Topic.TASK_LOGS: TopicSpec(
        key="task id, in the partition of its workflow", value="TaskLog", config=_delete(7 * _DAY)
    ),
    Topic.REPLIES: TopicSpec(key="client or worker id", value="Reply", config=_delete(_HOUR) | _LOG_TIME),
    Topic.DEAD_LETTERS: TopicSpec(
        key="the original key",
        value="bytes",
        # The headers make a dead letter larger than its record, which may be as large as `commands` takes.
        config=_delete(90 * _DAY) | {"max.message.bytes": str(2 * 1024 * 1024)},
    ),
}

#: Starts by tenant: in a lane of its own, one tenant's flood holds nobody else up. Fixed: a start's lane must be found
#: by every client and every decider.
START_LANES = 8
STARTS_SPEC = CATALOGUE[Topic.COMMANDS]

#: Where each kind of definition stands (WriteDefinition.kind).
DEFINITION_TOPICS: Mapping[str, Topic] = {
    "task": Topic.TASK_DEFS,
    "workflow": Topic.WORKFLOW_DEFS,
    "stop": Topic.STOPS,
    "cap": Topic.CAPS,
    "schedule": Topic.CRON,
}

SCHEDULE_SPEC = TopicSpec(key="task id", value="ScheduledTask", config=_delete(SCHEDULE_RETENTION_MS) | _LOG_TIME)

#: In place of a task type: the topic that the rare types of a domain share. No task type is spelled so (model.names).
SHARED = "-shared"
#: Kept as long as the hand-outs that it is about; whoever comes later reads it from the start.
CONTROL_SPEC = TopicSpec(
    key="task id",
    value="Control",
    partitions=1,
    config=_COMPACT
    | _LOG_TIME
    | {
        "cleanup.policy": "compact,delete",
        "retention.ms": str(SCHEDULE_RETENTION_MS),
        "segment.bytes": str(1024 * 1024),
    },
)

_NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,59}")


def delay_spec(tier: str) -> TopicSpec:
    """The tier's topic: kept for the tier's delay and the tolerated outage."""
    return TopicSpec(
        key="workflow id",
        value="DelayedCommand",
        config=_delete(DELAY_TIERS[tier] + TOLERATED_OUTAGE_MS) | _LOG_TIME,
    )


def tier_for(rest_ms: int) -> str:
    """The largest tier that fits into the rest of a delay (the last hop below the smallest)."""
    fitting = [name for name, tier_ms in DELAY_TIERS.items() if tier_ms <= max(rest_ms, 0)]
    return fitting[-1]


def lane_of(tenant: str | None) -> int:
    """The lane in which a tenant's starts wait."""
    return partition_of(tenant or "", START_LANES)


@dataclass(frozen=True, slots=True)
class Namespace:
    """The names of one namespace's topics, groups and transactional ids."""

    name: str = "engine"

    def __post_init__(self) -> None:
        if not _NAMESPACE.fullmatch(self.name):
            raise BadRequest(
                violations=(
                    Violation(
                        path="namespace",
                        message="must be letters, digits and '-', 1 to 60 long, starting with a letter or digit",
                        invalid_value=self.name,
                    ),
                )
            )

    def topic(self, topic: Topic) -> str:
        return f"{self.name}.{topic.value}"

    def schedule(self, domain: str, task_type: str) -> str:
        """The topic of a queue.

        Raises:
            BadRequest: the encoded name is longer than Kafka allows.
        """
        name = f"{self.name}.schedule.{encode_name(domain)}.{encode_name(task_type)}"
        if len(name) > MAX_TOPIC_NAME:
            raise BadRequest(
                violations=(
                    Violation(
                        path="name",
                        message=f"makes a topic name of {len(name)} characters, Kafka allows {MAX_TOPIC_NAME}",
                        invalid_value=task_type,
                    ),
                )
            )
        return name

    def queue_of(self, topic: str) -> tuple[str, str] | None:
        """(domain, task type) of a schedule topic, None for any other topic."""
        if not self.is_schedule(topic):
            return None
        domain, _, task_type = topic[len(self._schedules) :].partition(".")
        return None if task_type == SHARED else (decode_name(domain), decode_name(task_type))

    def is_schedule(self, topic: str) -> bool:
        """Whether hand-outs stand there, of one task type or of several."""
        return topic.startswith(self._schedules)

    def shared_schedule(self, domain: str) -> str:
        """The topic of those task types of a domain that share one (``sharedQueue``)."""
        return f"{self._schedules}{encode_name(domain)}.{SHARED}"

    def shared_domain_of(self, topic: str) -> str | None:
        """The domain of a shared topic, None for any other topic."""
        if not self.is_schedule(topic):
            return None
        domain, _, task_type = topic[len(self._schedules) :].partition(".")
        return decode_name(domain) if task_type == SHARED else None

    def domain_of(self, topic: str) -> str:
        """The domain of a topic with hand-outs."""
        assert self.is_schedule(topic)
        return decode_name(topic[len(self._schedules) :].partition(".")[0])

    @property
    def _schedules(self) -> str:
        return f"{self.name}.schedule."

    def control(self, domain: str) -> str:
        """The topic that tells the workers of a domain to stop."""
        return f"{self.name}.control.{encode_name(domain)}"

    def control_domain(self, topic: str) -> str | None:
        """The domain of a control topic, None for any other topic."""
        prefix = f"{self.name}.control."
        return decode_name(topic[len(prefix) :]) if topic.startswith(prefix) else None

    def starts(self, lane: int) -> str:
        return f"{self.name}.starts.{lane}"

    def start_lanes(self) -> dict[str, int]:
        """The lane of each topic of starts."""
        return {self.starts(lane): lane for lane in range(START_LANES)}

    def delay(self, tier: str) -> str:
        return f"{self.name}.delay.{tier}"

    @property
    def engine_group(self) -> str:
        return f"{self.name}.engine"

    def delays_group(self, tier: str) -> str:
        return f"{self.name}.delays.{tier}"

    def worker_group(self, domain: str, task_type: str) -> str:
        return f"{self.name}.worker.{encode_name(domain)}.{encode_name(task_type)}"

    def shared_worker_group(self, domain: str, task_type: str) -> str:
        """The group in which the workers of one task type read the shared topic of its domain."""
        return f"{self.worker_group(domain, task_type)}.shared"

    def transactional_id(self, slot: str) -> str:
        return f"{self.name}.engine.{slot}"

    def fixed_topics(self) -> dict[str, TopicSpec]:
        """Every topic that must exist before a role starts, by full name."""
        fixed = {self.topic(topic): spec for topic, spec in CATALOGUE.items()}
        fixed |= dict.fromkeys(self.start_lanes(), STARTS_SPEC)
        return fixed | {self.delay(tier): delay_spec(tier) for tier in DELAY_TIERS}


def markdown_table() -> str:
    """The catalogue as it stands in the README (a test compares them)."""
    rows = ["| topic | key | value | partitions | policy |", "|---|---|---|---|---|"]
    specs: list[tuple[str, TopicSpec]] = [(f"<ns>.{topic.value}", spec) for topic, spec in CATALOGUE.items()]
    specs += [(f"<ns>.starts.<0 to {START_LANES - 1}>", STARTS_SPEC)]
    specs += [
        ("<ns>.schedule.<domain>.<task type>", SCHEDULE_SPEC),
        (f"<ns>.schedule.<domain>.{SHARED}", SCHEDULE_SPEC),
        ("<ns>.control.<domain>", CONTROL_SPEC),
    ]
    specs += [(f"<ns>.delay.<{', '.join(DELAY_TIERS)}>", delay_spec(LAST_HOP))]
    for name, spec in specs:
        partitions = "per queue" if spec is SCHEDULE_SPEC else str(spec.partitions or "P")
        rows.append(f"| `{name}` | {spec.key} | `{spec.value}` | {partitions} | {_policy(spec)} |")
    return "\n".join(rows)


def _policy(spec: TopicSpec) -> str:
    retention = spec.config.get("retention.ms")
    hours = None if retention is None else int(retention) // _HOUR
    kept = "" if hours is None else f" {hours} h" if hours < 24 else f" {hours // 24} d"
    log_time = ", LogAppendTime" if spec.config.get("message.timestamp.type") else ""
    return f"{spec.policy}{kept}{log_time}"


def murmur2(key: bytes) -> int:
    """Kafka's murmur2 as Java's client computes it (org.apache.kafka.common.utils.Utils.murmur2), unsigned 32 bit."""
    length = len(key)
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = 0x9747B28C ^ length
    whole = length & ~3
    for word in unpack_from(f"<{whole // 4}I", key):
        k = word * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
    if whole < length:
        h = (h ^ int.from_bytes(key[whole:], "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


def partition_of(key: str, partitions: int) -> int:
    """The partition of a key: murmur2 with the sign bit cleared, as Java's default partitioner."""
    return (murmur2(key.encode()) & 0x7FFFFFFF) % partitions
