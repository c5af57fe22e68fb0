"""Ids are derived: each ingredient counts, and no process or hash seed changes them."""

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from broker_engine.decider.identity import task_id, workflow_id_for
from tests.builders import Story, a_step

INGREDIENTS = {
    "workflow_id": "w",
    "incarnation": "starts/0/7",
    "run": 0,
    "reference": "a",
    "iteration": 0,
    "attempt": 0,
}
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "other",
    [
        {"workflow_id": "w2"},
        {"incarnation": "starts/0/8"},
        {"run": 1},
        {"reference": "b"},
        {"iteration": 1},
        {"attempt": 1},
    ],
    ids=lambda other: next(iter(other)),
)
def test_each_ingredient_gives_another_task_id(other: dict[str, object]) -> None:
    assert task_id(**{**INGREDIENTS, **other}) != task_id(**INGREDIENTS)  # type: ignore[arg-type]


def test_the_same_ingredients_give_the_same_task_id() -> None:
    assert task_id(**INGREDIENTS) == task_id(**INGREDIENTS)  # type: ignore[arg-type]
    assert uuid.UUID(task_id(**INGREDIENTS)).version == 5  # type: ignore[arg-type]


def test_ingredients_do_not_run_into_each_other() -> None:
    assert task_id(workflow_id="w", incarnation="x", run=1, reference="1") != task_id(
        workflow_id="w", incarnation="x1", run=1, reference=""
    )
    assert task_id(workflow_id="w", incarnation="", run=1, reference="a", iteration=1, attempt=0) != task_id(
        workflow_id="w", incarnation="", run=1, reference="a", iteration=0, attempt=1
    )


def test_a_workflow_id_comes_from_name_and_key() -> None:
    assert workflow_id_for("film", "k") == workflow_id_for("film", "k")
    assert len({workflow_id_for(*pair) for pair in [("film", "k"), ("film", "l"), ("fil", "mk"), ("k", "film")]}) == 4


def test_an_id_used_again_after_its_retention_gives_new_task_ids() -> None:
    first, second = Story("a"), Story("a")
    second.offset = 10

    assert first.start().task.task_id != second.start().task.task_id


_DIGEST = """
from tests.unit.decider.test_identity import a_history
print(a_history())
"""


def a_history() -> str:
    """Everything a small story decided, as text."""
    story = Story(a_step("a", backoff_jitter_ms=5_000, retry_delay_seconds=60), "b").start(input=b'{"z": 1, "y": 2}')
    story.taken().failed("first").next_deadline().taken().completed({"x": 1}).taken().completed()
    return "\n".join(
        f"{decision.changed_tasks} {decision.outputs} {decision.transitions}" for _, decision in story.told
    )


def test_every_process_decides_the_same_whatever_its_hash_seed() -> None:
    told = {
        subprocess.run(
            [sys.executable, "-c", _DIGEST],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        for seed in ("1", "4711")
    }

    assert told == {a_history()}
