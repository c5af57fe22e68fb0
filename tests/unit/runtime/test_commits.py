"""A write beside the loop: what it raises is told, and one that never comes back does not hold the engine up."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from broker_engine.errors import OutcomeUnknown, TransactionAborted
from broker_engine.runtime.commits import ThreadedCommits


@pytest.fixture
def hang() -> Iterator[threading.Event]:
    """What a hung call waits for; it comes back when the test is over."""
    event = threading.Event()
    yield event
    event.set()


def test_the_outcome_is_what_the_write_raised() -> None:
    def refused() -> None:
        raise TransactionAborted("a record was refused")

    commits = ThreadedCommits()
    commits.submit(refused)

    with pytest.raises(TransactionAborted, match="refused"):
        commits.outcome()

    commits.submit(lambda: None)
    commits.outcome()
    commits.close()


def test_a_write_that_does_not_come_back_has_an_unknown_outcome_and_holds_up_nobody(hang: threading.Event) -> None:
    commits = ThreadedCommits(patience=0.05)
    commits.submit(lambda: bool(hang.wait()))  # type: ignore[arg-type]

    with pytest.raises(OutcomeUnknown, match="did not come back"):
        commits.outcome()

    began = time.monotonic()
    commits.close()
    assert time.monotonic() - began < 5, "closing waited for the hung write"
