"""How long a retry waits. One function per retry logic; ``RETRY_LOGICS`` is the whole list.

Conductor's formulas with its overflow mended (D1): ``n`` is the attempt that failed, 0 for the first; whole seconds,
saturating, capped by ``maxRetryDelaySeconds`` for every logic, then jitter in milliseconds on top.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from broker_engine.decider.identity import jitter_ms
from broker_engine.model.definitions import RetryLogic, TaskDef

#: Where Conductor's 32-bit seconds saturate.
MAX_DELAY_SECONDS = 2**31 - 1


def _fixed(definition: TaskDef, _n: int) -> int:
    return definition.retry_delay_seconds


def _linear(definition: TaskDef, n: int) -> int:
    return definition.retry_delay_seconds * definition.backoff_scale_factor * (n + 1)


def _exponential(definition: TaskDef, n: int) -> int:
    return definition.retry_delay_seconds << min(n, 31)


RETRY_LOGICS: Mapping[RetryLogic, Callable[[TaskDef, int], int]] = {
    RetryLogic.FIXED: _fixed,
    RetryLogic.LINEAR_BACKOFF: _linear,
    RetryLogic.EXPONENTIAL_BACKOFF: _exponential,
}


def retry_delay_seconds(definition: TaskDef, failed_attempt: int) -> int:
    """The delay before the next attempt without jitter, in whole seconds."""
    delay = min(max(RETRY_LOGICS[definition.retry_logic](definition, failed_attempt), 0), MAX_DELAY_SECONDS)
    cap = definition.max_retry_delay_seconds
    return min(delay, cap) if cap > 0 else delay


def is_fatal(definition: TaskDef, error_code: str | None) -> bool:
    """Whether a failure with this code may not be retried (B11): named fatal, or left out of the retryable ones."""
    if error_code in definition.fatal_errors:
        return True
    return bool(definition.retryable_errors) and error_code not in definition.retryable_errors


def retry_delay_ms(definition: TaskDef, failed_attempt: int, next_task_id: str) -> int:
    """The delay before the next attempt, jitter included."""
    return retry_delay_seconds(definition, failed_attempt) * 1_000 + jitter_ms(
        next_task_id, definition.backoff_jitter_ms
    )
