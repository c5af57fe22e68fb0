"""The demo, with fewer rows."""

from __future__ import annotations

import json
import re

import pytest

from tests.acceptance.conftest import Cli

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


def test_the_demo_imports_every_row_once_while_processes_are_killed(cli: Cli) -> None:
    ran = cli("demo", "--limit-rows", 1_500, "--rows-per-chunk", 50, timeout=240)

    assert ran.code == 0, ran.out + ran.err
    last = ran.out.strip().splitlines()[-1]
    figures = re.fullmatch(
        r"demo ok: imported=(\d+) skipped=(\d+) workflows=30 attempts=(\d+) retries=(\d+) lost=0 duplicated=0", last
    )
    assert figures is not None, last
    imported, skipped, attempts, retries = map(int, figures.groups())
    assert imported + skipped == 1_500
    assert skipped == 4  # rows 13, 21, 34 and 1010 are broken on purpose
    assert attempts == 30 + retries
    assert retries >= 5, "four chunks found the notifier busy, and one worker was killed"
    assert ran.out.count("kill -9") == 2


def test_too_few_rows_are_refused(cli: Cli) -> None:
    ran = cli("demo", "--limit-rows", 100, "--json")

    assert ran.code == 1
    assert json.loads(ran.out)["ok"] is False
    assert "fewer rows per chunk" in ran.err
