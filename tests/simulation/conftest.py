"""Options of the simulation: `pytest tests/simulation --seed N --runs M`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog

#: What a run of the whole suite takes: some thirty seconds on two cores.
DEFAULT_RUNS = 10


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("simulation")
    group.addoption("--seed", type=int, default=1, help="the first seed (default 1)")
    group.addoption("--runs", type=int, default=DEFAULT_RUNS, help=f"how many seeds (default {DEFAULT_RUNS})")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        # The options exist only when this folder is named on the command line; the whole suite runs the defaults.
        first = metafunc.config.getoption("--seed", 1)
        runs = metafunc.config.getoption("--runs", DEFAULT_RUNS)
        metafunc.parametrize("seed", range(first, first + runs))


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield
