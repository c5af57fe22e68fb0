"""Starts in lanes, on real Kafka: one tenant's flood does not hold up another's start."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from broker_engine.topics import lane_of
from tests.support.roles import crowded, running_engine, tell

pytestmark = pytest.mark.kafka

FLOOD = 10_000
ALONE = {"name": "unserved", "tasks": [{"name": "unserved", "taskReferenceName": "a"}]}


def test_a_flood_of_one_tenant_does_not_hold_up_another(bootstrap: str, namespace: str, tmp_path: Path) -> None:
    other = next(f"t{n}" for n in range(100) if lane_of(f"t{n}") != lane_of("big"))
    with running_engine(bootstrap, namespace, tmp_path, partitions=4) as engine:
        client = engine.client
        client.register_workflow(ALONE)
        for number in range(FLOOD):
            client.start_async("unserved", workflow_id=f"f{number}", tenant="big", wants_answer=False)
        client.flush()
        waits = []
        for number in range(3):
            started = time.monotonic()
            client.start("unserved", workflow_id=f"small-{number}", tenant=other)
            waits.append(time.monotonic() - started)
        left = FLOOD - sum(state.tenant == "big" for state in client.list())

    tell(f"starts beside a flood of {FLOOD}: {', '.join(f'{wait:.2f}' for wait in waits)} s; {left} still waited")
    assert left > 0, "the flood is over: nothing was shown"
    assert max(waits) <= 1.0 * crowded()
