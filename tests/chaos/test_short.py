"""The short form of the crash test: three kills of each role under a few hundred workflows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.run import options_of, run
from tests.support.roles import tell


@pytest.mark.kafka
@pytest.mark.slow
def test_nothing_is_lost_or_done_twice_when_processes_are_killed(bootstrap: str, tmp_path: Path) -> None:
    result = run(bootstrap, tmp_path, options_of(["--kills", "3", "--workflows", "300", "--seconds", "20"]))

    tell(f"chaos: {result}")
    assert result["problems"] == {}
    assert result["same_digest"]
    assert result["ok"]
    assert result["kills"] == {"decider": 3, "delays": 3, "worker": 3}
