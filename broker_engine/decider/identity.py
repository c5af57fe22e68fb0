"""Ids that are derived, never drawn: the same history gives the same ids on every machine."""

from __future__ import annotations

import uuid
from hashlib import blake2b, sha1

_TASKS = uuid.UUID("8f4d8f6e-0d0b-5d0a-9d8e-6b1b4c3a2f10")
_WORKFLOWS = uuid.UUID("2c1c0a52-7f54-5d55-8f0c-1f2f6f6d7a31")


def task_id(
    *,
    workflow_id: str,
    incarnation: str,
    run: int,
    reference: str,
    iteration: int = 0,
    attempt: int = 0,
) -> str:
    """The id of one attempt. ``incarnation`` tells a workflow id used again after its retention from its first use."""
    return _uuid5(_TASKS.bytes, f"{workflow_id}\x1f{incarnation}\x1f{run}\x1f{reference}\x1f{iteration}\x1f{attempt}")


def started_workflow_id(task_id: str) -> str:
    """The id of the workflow that an attempt starts: the same one, however often the decision is made."""
    return _uuid5(_WORKFLOWS.bytes, f"started by\x1f{task_id}")


def message_id(workflow_id: str, run: int, position: str, offset: int) -> str:
    """The id of a message whose command has none of its own."""
    return _uuid5(_WORKFLOWS.bytes, f"message\x1f{workflow_id}\x1f{run}\x1f{position}\x1f{offset}")


def failure_workflow_id(workflow_id: str, incarnation: str, run: int) -> str:
    """The id of the workflow that is started because a run has failed."""
    return _uuid5(_WORKFLOWS.bytes, f"failed\x1f{workflow_id}\x1f{incarnation}\x1f{run}")


def compensation_workflow_id(workflow_id: str, incarnation: str, run: int) -> str:
    """The id of the workflow that undoes what a run has done."""
    return _uuid5(_WORKFLOWS.bytes, f"undone\x1f{workflow_id}\x1f{incarnation}\x1f{run}")


def _uuid5(namespace: bytes, name: str) -> str:
    """``str(uuid.uuid5(...))`` without the detour through a UUID object (one is made for every task)."""
    digits = sha1(namespace + name.encode(), usedforsecurity=False).hexdigest()
    variant = "89ab"[int(digits[16], 16) & 3]
    return f"{digits[:8]}-{digits[8:12]}-5{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:32]}"


def workflow_id_for(name: str, idempotency_key: str) -> str:
    """The workflow id of (definition name, idempotency key): equal starts meet in one partition (D10)."""
    return str(uuid.uuid5(_WORKFLOWS, f"{name}\x1f{idempotency_key}"))


def jitter_ms(task_id: str, limit_ms: int) -> int:
    """An even spread over 0..limit_ms inclusive, fixed for each attempt.

    blake2b and not ``hash()``, which is salted per process.
    """
    if limit_ms <= 0:
        return 0
    return int.from_bytes(blake2b(task_id.encode(), digest_size=8).digest()) % (limit_ms + 1)
