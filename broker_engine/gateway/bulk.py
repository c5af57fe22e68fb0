"""The same operation on many workflows."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import Response

from broker_engine.errors import BrokerEngineError
from broker_engine.gateway.answers import json_answer
from broker_engine.gateway.bodies import bounded
from broker_engine.gateway.documents import bulk_document


def each(ids: list[str], act: Callable[[str], object]) -> Response:
    """Do it with each for itself; what was refused is listed with its reason."""
    done, failed = [], {}
    for one in bounded(ids):
        try:
            act(one)
            done.append(one)
        except BrokerEngineError as error:
            failed[one] = str(error)
    return json_answer(bulk_document(done, failed))
