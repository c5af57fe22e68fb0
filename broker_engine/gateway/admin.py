"""Health, what this gateway knows of itself, and the rest of Conductor's surface."""

from __future__ import annotations

from fastapi import APIRouter, Response

from broker_engine import __version__
from broker_engine.errors import BadRequest
from broker_engine.gateway.answers import Engine, empty_answer, json_answer

router = APIRouter(tags=["admin"])


@router.get("/health")
@router.get("/api/health")
def health(engine: Engine) -> Response:
    """Whether requests can be served; 503 while the read model catches up."""
    tail = engine.tail
    is_healthy = tail.is_caught_up and tail.failure is None
    document = {
        "healthy": is_healthy,
        "version": __version__,
        "namespace": engine.namespace.name,
        "readModel": {"isCaughtUp": tail.is_caught_up, "failure": tail.failure},
    }
    return json_answer(document, 200 if is_healthy else 503)


@router.get("/livez")
def is_alive() -> Response:
    return empty_answer()


@router.get("/readyz")
def is_ready(engine: Engine) -> Response:
    """204 once everything that was in the topics at the start can be read here, 503 until then."""
    is_so = engine.tail.is_caught_up and engine.tail.failure is None
    return empty_answer(204) if is_so else json_answer({"ready": False, "failure": engine.tail.failure}, 503)


@router.get("/api/admin/config")
def config(engine: Engine) -> Response:
    return json_answer({"version": __version__, "namespace": engine.namespace.name, "gateway": engine.gateway_id})


@router.get("/api/admin/read-model")
def read_model(engine: Engine) -> Response:
    """How many offsets behind the topics the read model is."""
    return json_answer({"lag": engine.tail.lag(), "isCaughtUp": engine.tail.is_caught_up})


@router.api_route("/api/event", methods=["GET", "POST", "PUT"])
@router.api_route("/api/event/{name}", methods=["GET", "DELETE"])
def event_handlers() -> Response:
    raise BadRequest("event handlers: not yet supported here")
