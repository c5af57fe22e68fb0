"""The names of stops of queues."""

from __future__ import annotations

import pytest

from broker_engine.model.stops import Stop, keys_against, keys_against_queue, queue_key, stop_key


@pytest.mark.parametrize("key", [queue_key("encode"), queue_key("encode", "gpu")])
def test_a_queue_meets_the_stop_of_its_type_and_its_own(key: str) -> None:
    assert key in keys_against_queue("gpu", "encode")


@pytest.mark.parametrize("key", [queue_key("other"), queue_key("encode", "cpu"), stop_key(workflow="encode"), "all"])
def test_a_queue_does_not_meet_other_stops(key: str) -> None:
    assert key not in keys_against_queue("gpu", "encode")


def test_a_stop_of_queues_keeps_no_workflow_from_starting() -> None:
    assert not set(keys_against("encode", "gpu")) & set(keys_against_queue("gpu", "encode"))


@pytest.mark.parametrize(
    ("key", "about"),
    [
        (queue_key("encode", "gpu"), "task type encode in domain gpu"),
        (queue_key("encode"), "task type encode in every domain"),
    ],
)
def test_a_stop_of_queues_says_what_it_is_about(key: str, about: str) -> None:
    assert Stop(key, "ada", 0).about == about
