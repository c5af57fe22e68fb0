"""What a hand-out says of the work already done: the steps of earlier attempts and the checkpoint, as JSON."""

from __future__ import annotations

from typing import Any, NamedTuple

import orjson

from broker_engine.model.state import Step
from broker_engine.model.status import StepStatus


class KnownStep(NamedTuple):
    """A step that was begun before. ``result``: what it returned, when it is completed."""

    status: StepStatus
    result: Any = None


class Resume(NamedTuple):
    """The steps by name, and the checkpoint (None: none was stored)."""

    steps: dict[str, KnownStep]
    checkpoint: Any = None

    def taken_over(self, data: bytes | None) -> Resume:
        """This, and what ``data`` knows beyond it. The steps stay one dictionary: an attempt in hand learns of it."""
        if data is None:
            return self
        later = decode_resume(data)
        self.steps.update({name: step for name, step in later.steps.items() if not _is_completed(self.steps.get(name))})
        return Resume(self.steps, later.checkpoint if later.checkpoint is not None else self.checkpoint)


def _is_completed(step: KnownStep | None) -> bool:
    return step is not None and step.status is StepStatus.COMPLETED


def encode_resume(steps: tuple[Step, ...], checkpoint: bytes | None) -> bytes:
    """Results are JSON already and go in as they are."""
    return orjson.dumps(
        {
            "steps": {
                step.name: {
                    "status": step.status,
                    "result": orjson.Fragment(step.result) if step.result is not None else None,
                }
                for step in steps
            },
            "checkpoint": orjson.Fragment(checkpoint) if checkpoint is not None else None,
        }
    )


def decode_resume(data: bytes | None) -> Resume:
    if data is None:
        return Resume({})
    document = orjson.loads(data)
    known = {name: KnownStep(StepStatus(step["status"]), step["result"]) for name, step in document["steps"].items()}
    return Resume(known, document["checkpoint"])
