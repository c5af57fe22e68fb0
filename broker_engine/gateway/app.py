"""The application: a table of routers over one hub."""

from __future__ import annotations

from fastapi import FastAPI

from broker_engine import __version__
from broker_engine.gateway import admin, errors, metadata, operations, schedules, tasks, workflows
from broker_engine.gateway.hub import Hub

#: One per group of endpoints.
ROUTERS = (metadata.router, operations.router, workflows.router, tasks.router, schedules.router, admin.router)


def make_app(hub: Hub) -> FastAPI:
    """The REST API over an opened hub; whoever opened it closes it."""
    app = FastAPI(
        title="broker-engine",
        version=__version__,
        description="Conductor's REST API over a workflow engine whose only infrastructure is Kafka.",
        docs_url="/api-docs/ui",
        redoc_url=None,
        openapi_url="/api-docs",
    )
    app.state.hub = hub
    errors.install(app)
    for router in ROUTERS:
        app.include_router(router)
    return app
