"""Every exception of the product, in one tree: whose fault it is decides the class.

``BadRequest`` is the caller's, ``DecodeError`` is in the bytes, ``LogError`` is Kafka's (with Kafka's own
three answers), ``InvariantViolation`` is ours. A class's docstring is its default message, written for the
person who reads it, with the remedy in it.
"""

from __future__ import annotations

from dataclasses import dataclass


class BrokerEngineError(Exception):
    """The engine could not do what was asked."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or " ".join((type(self).__doc__ or "").split()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One broken rule of a definition or request: where, what, and the offending value."""

    path: str
    message: str
    invalid_value: object = None

    def __str__(self) -> str:
        return f"{self.path}: {self.message} (got {self.invalid_value!r})"


class BadRequest(BrokerEngineError):
    """The request cannot be carried out as written; correct it and send it again."""

    #: The HTTP status that says the same (RFC 9110); the CLI derives its exit code from it.
    status = 400

    def __init__(self, message: str | None = None, *, violations: tuple[Violation, ...] = ()) -> None:
        super().__init__(message or ("; ".join(map(str, violations)) or None))
        self.violations = violations


class NotFound(BadRequest):
    """Nothing of that name or id exists here."""

    status = 404


class Conflict(BadRequest):
    """The current state does not allow this request."""

    status = 409


class PayloadTooLarge(BadRequest):
    """The payload is over the size limit; store it elsewhere and pass a reference."""

    status = 413


class TooManyRequests(BadRequest):
    """Too many commands are still remembered for this workflow; wait until some expire."""

    status = 429


class NoAnswer(BrokerEngineError):
    """No decider answered in time. The command is in the log and may still be carried out:
    start a decider, or send the same command again (it is carried out once)."""


class DecodeError(BrokerEngineError):
    """A record could not be decoded. It was moved to `<ns>.dead-letters`; see its headers for topic,
    partition and offset."""


class BadSignature(DecodeError):
    """A command was not signed with the namespace key. Give the sender the key
    (BROKER_ENGINE_NAMESPACE_KEY) or start the namespace without one."""


class UnsafeSettings(BrokerEngineError):
    """A setting would lose or duplicate work, so the process refuses to start."""


class LogError(BrokerEngineError):
    """Kafka refused or failed an operation."""


class Unreachable(LogError):
    """No broker answers at the given address. Start one (`broker-engine kafka start`) or correct
    `--kafka HOST:PORT`."""


class Retriable(LogError):
    """Kafka could not do it now; the same call may succeed when repeated."""


class UnknownTopic(LogError):
    """The topic does not exist on this cluster."""


class RecordTooLarge(LogError):
    """The record is over the topic's `max.message.bytes`."""


class TransactionAborted(LogError):
    """The transaction must be aborted; forget what it wrote and read its input again."""


class Fenced(LogError):
    """Another process took over this transactional id or these partitions: drop the producer and
    rebuild from the log."""


class OutcomeUnknown(LogError):
    """A commit did not answer in time: it may or may not have happened. Drop the producer and
    rebuild from the log; never abort."""


class InvariantViolation(BrokerEngineError):
    """A rule of the engine itself was broken. The workflow is quarantined; its partition goes on."""
