"""Libraries that not every installation has."""

from __future__ import annotations

import importlib
from types import ModuleType

from broker_engine.worker.outcomes import TaskFailedForGood


def optional(module: str, *, needed_for: str) -> ModuleType:
    """Import a library of the extra ``system``.

    Raises:
        TaskFailedForGood: MISSING_EXTRA, it is not installed in this worker.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise TaskFailedForGood(
            f"{needed_for} needs a library that this system worker does not have: install broker-engine[system] there",
            code="MISSING_EXTRA",
        ) from error
