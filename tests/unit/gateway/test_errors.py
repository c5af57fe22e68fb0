"""Each error has one HTTP status."""

from __future__ import annotations

import pytest

from broker_engine import errors
from broker_engine.gateway.errors import STATUSES, status_of


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.BadRequest(), 400),
        (errors.NotFound(), 404),
        (errors.Conflict(), 409),
        (errors.PayloadTooLarge(), 413),
        (errors.TooManyRequests(), 429),
        (errors.NoAnswer(), 503),
        (errors.Unreachable(), 503),
        (errors.BrokerEngineError(), 500),
    ],
)
def test_an_error_has_one_status(error: errors.BrokerEngineError, status: int) -> None:
    assert status_of(error) == status


def test_the_caller_s_mistakes_have_the_status_that_their_class_names() -> None:
    named = {kind: kind.status for kind in STATUSES if issubclass(kind, errors.BadRequest)}

    assert named == {kind: status for kind, status in STATUSES.items() if kind in named}
