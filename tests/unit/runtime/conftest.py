"""An engine in memory, at rest: its first partitions are taken over, nothing is registered."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog

from broker_engine.testing import Engine


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Warnings of broken input are expected here."""
    with structlog.testing.capture_logs():
        yield


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine() as engine:
        engine.run()
        yield engine
