"""The HTTP server of the role: uvicorn in the thread of the role, stopped from another."""

from __future__ import annotations

import socket
from typing import Any

import uvicorn

from broker_engine.errors import UnsafeSettings
from broker_engine.gateway.app import make_app
from broker_engine.gateway.hub import Hub

#: Requests that wait (long polls, streams) are ended after this when the process stops.
DRAIN_SECONDS = 6


class Server:
    """Serves until stopped.

    Args:
        hub: what requests are answered from; opened and closed by the caller.
        host: where to listen; only this machine by default, for there is no access control.
        port: 0 for any that is free.

    Raises:
        UnsafeSettings: the address cannot be listened at.
    """

    def __init__(self, hub: Hub, *, host: str = "127.0.0.1", port: int = 8080) -> None:
        config = uvicorn.Config(
            make_app(hub),
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=DRAIN_SECONDS,
            timeout_keep_alive=75,
        )
        self._socket = _listen(host, port)
        self._server = _Quiet(config)

    @property
    def url(self) -> str:
        host, port = self._socket.getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def run(self) -> None:
        """Serve; returns when stopped."""
        self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        self._server.should_exit = True


class _Quiet(uvicorn.Server):
    """Signals are the role's."""

    def capture_signals(self) -> Any:
        from contextlib import nullcontext

        return nullcontext()


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(2_048)
    except OSError as error:
        raise UnsafeSettings(
            f"cannot listen at {host}:{port}: {error.strerror or error}; choose another `--port`"
        ) from error
    return listening
