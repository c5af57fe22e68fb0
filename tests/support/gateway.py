"""A gateway in threads of this process, and a plain HTTP client of it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx

from broker_engine.gateway.hub import Hub
from broker_engine.gateway.server import Server
from tests.support.roles import KEY, RunningEngine, until


class RunningGateway:
    """A gateway that serves at ``url``."""

    def __init__(self, engine: RunningEngine, folder: Path) -> None:
        self.hub = Hub(engine.log, engine.namespace, key=KEY, data=folder)
        self._server = Server(self.hub, port=0)
        self.url = self._server.url
        self._thread = threading.Thread(target=self._server.run, name="gateway", daemon=True)
        self.hub.start()
        self._thread.start()
        self.http = httpx.Client(base_url=f"{self.url}/api", timeout=60)
        until(lambda: self.http.get(f"{self.url}/readyz").status_code == 204, what="the read model")

    def close(self) -> None:
        self.http.close()
        self._server.stop()
        self._thread.join(20)
        self.hub.close()


@contextlib.contextmanager
def running_gateway(engine: RunningEngine, folder: Path) -> Iterator[RunningGateway]:
    gateway = RunningGateway(engine, folder)
    try:
        yield gateway
    finally:
        gateway.close()
