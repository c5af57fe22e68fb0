"""`make bench`: the floor and the product on the same broker, in turns, three times.

    python -m tests.benchmarks.run [--kafka HOST:PORT] [--tasks N] [--rounds N]

The floor (floor.py) is the least that the design must do per one-task workflow: no rules, no definitions, no client
library. Absolute figures differ from machine to machine, so what counts are the ratios of the medians, both measured
here. A noisy machine shows in the spread between rounds. The last line is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from broker_engine.runtime.local_broker import LocalBroker

FLOOR = Path(__file__).with_name("floor.py")
PARTITIONS = 8


@contextlib.contextmanager
def broker(bootstrap: str | None) -> Iterator[str]:
    """The broker given, or one of our own for the length of the run."""
    if bootstrap is not None:
        yield bootstrap
        return
    with tempfile.TemporaryDirectory() as folder, LocalBroker.start(Path(folder)) as own:
        yield own.bootstrap


def measure(what: list[str], bootstrap: str, tasks: int) -> dict[str, Any]:
    """One run; its last line of output is its result."""
    command = [sys.executable, *what, bootstrap, str(tasks), str(PARTITIONS)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if ran.returncode != 0:
        sys.exit(f"{' '.join(what)} failed:\n{ran.stdout}\n{ran.stderr}")
    result: dict[str, Any] = json.loads(ran.stdout.strip().splitlines()[-1])
    return result


def medians(results: list[dict[str, Any]]) -> dict[str, Any]:
    names = [name for name, value in results[0].items() if isinstance(value, int | float)]
    return {name: statistics.median(result[name] for result in results) for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kafka", metavar="HOST:PORT", help="a running broker (default: an own one)")
    parser.add_argument("--tasks", type=int, default=10_000, help="workflows per run (default: 10000)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each (default: 3)")
    options = parser.parse_args()
    floors, products = [], []
    with broker(options.kafka) as bootstrap:
        for number in range(options.rounds):
            floors.append(measure([str(FLOOR)], bootstrap, options.tasks))
            print(f"round {number + 1} floor   {json.dumps(floors[-1])}", flush=True)
            products.append(measure(["-m", "tests.benchmarks.product"], bootstrap, options.tasks))
            print(f"round {number + 1} product {json.dumps(products[-1])}", flush=True)
    floor, product = medians(floors), medians(products)
    cpu_us = product["decider_us_per_workflow"] + product["worker_us_per_workflow"]
    print(
        json.dumps(
            {
                "floor": floor,
                "floor_sha256": hashlib.sha256(FLOOR.read_bytes()).hexdigest(),
                "product": product,
                "ratio_throughput": round(product["tasks_per_s"] / floor["tasks_per_s"], 2),
                "ratio_p50": round(product["p50_ms"] / floor["p50_ms"], 2),
                "cpu_s_per_1000": round(cpu_us / 1000, 2),
            }
        )
    )


if __name__ == "__main__":
    main()
