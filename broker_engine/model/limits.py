"""The sizes and times that several layers must agree on, each with its reason."""

from __future__ import annotations

_DAY_MS = 24 * 60 * 60 * 1_000

DEFAULT_DOMAIN = "default"
#: Where the operators that run outside the decider are handed out.
SYSTEM_DOMAIN = "system"

#: A record's largest encoded size. Kafka's default `max.message.bytes` is 1,048,588 including batch overhead.
MAX_RECORD_BYTES = 1_000_000
#: The largest JSON payload (an input or an output). A task-state record holds one of each and about 10 kB beside.
MAX_PAYLOAD_BYTES = 448 * 1024

#: How long a schedule record is kept.
SCHEDULE_RETENTION_MS = 14 * _DAY_MS
#: A hand-out this old is handed out again: its record nears the end of its topic's retention.
HAND_OUT_LIFETIME_MS = SCHEDULE_RETENTION_MS // 2
#: The key of everything that the limiter of a namespace is told: one place decides all limits.
LIMIT_KEY = "limits"
#: A granted task has to start within this time (log time).
START_WITHIN_MS = 5_000
