"""Kafka's answers, as the engine's exceptions: the one place that decides what happens next."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError

from broker_engine.errors import (
    Fenced,
    LogError,
    RecordTooLarge,
    Retriable,
    TransactionAborted,
    UnknownTopic,
    Unreachable,
)
from broker_engine.log.confluent import translate
from broker_engine.log.confluent.client import ANSWERS, REFUSALS, Health


@pytest.mark.parametrize(
    ("code", "flags", "meaning"),
    [
        (KafkaError._TIMED_OUT, {"retriable": True}, Retriable),
        (KafkaError._STATE, {"txn_requires_abort": True}, TransactionAborted),
        (KafkaError._STATE, {"fatal": True}, Fenced),
        (KafkaError._STATE, {}, LogError),
        (KafkaError.INVALID_PRODUCER_EPOCH, {}, Fenced),
        (KafkaError.MSG_SIZE_TOO_LARGE, {}, RecordTooLarge),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, {}, UnknownTopic),
        (KafkaError._ALL_BROKERS_DOWN, {}, Unreachable),
        # The client says "abort" of both, but only one of them may be tried again by this process.
        (KafkaError.UNKNOWN_MEMBER_ID, {"txn_requires_abort": True}, Fenced),
        (KafkaError.ILLEGAL_GENERATION, {"txn_requires_abort": True}, TransactionAborted),
        # A commit without a transaction: read, so that the rebalance can finish, then repeat.
        (KafkaError.ILLEGAL_GENERATION, {}, Retriable),
        # Fatal to the client, but no other process took over: rebuilding would not help.
        (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, {"fatal": True}, LogError),
    ],
)
def test_error_means(code: int, flags: dict[str, Any], meaning: type[LogError]) -> None:
    assert type(translate(KafkaError(code, "reason", **flags))) is meaning


@pytest.mark.parametrize("code", [*ANSWERS, *REFUSALS])
def test_every_answer_keeps_kafkas_own_words(code: int) -> None:
    assert "in its own words" in str(translate(KafkaError(code, "in its own words")))


def test_refused_login_is_raised_at_the_next_call_and_then_left_to_the_next_report() -> None:
    health = Health("client")
    health.on_error(KafkaError(KafkaError._AUTHENTICATION, "wrong password"))

    with pytest.raises(Unreachable, match=r"wrong password.*security settings"):
        health.check()
    health.check()
