"""The same broker in a container, for machines that have Docker but cannot fetch the jars.

Only the `docker` command and a socket are needed. `docker` on the PATH proves nothing, so the
engine itself is asked first.
"""

import os
import shutil
import socket
import subprocess
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from broker_engine.runtime.local_broker.configuration import HERE, HOST, read_properties
from broker_engine.runtime.local_broker.errors import BrokerDied, LocalBrokerError
from broker_engine.runtime.local_broker.ports import reserve_port
from broker_engine.runtime.local_broker.readiness import wait_until_ready

IMAGE = "apache/kafka:4.4.0"
VOLUME = "broker-engine-kafka"
CONTROLLER_PORT = 9093  # inside the container only
DEFAULT_SOCKET = "unix:///var/run/docker.sock"
START_SECONDS = 180.0  # the first start pulls the image


def docker_engine_answers(environment: Mapping[str, str] = os.environ, *, timeout: float = 1.0) -> bool:
    """Whether a Docker engine answers a ping; takes milliseconds and never raises.

    Engines behind ssh or TLS count as absent: they would not publish ports on this machine.
    """
    try:
        with _connect(environment.get("DOCKER_HOST") or DEFAULT_SOCKET, timeout) as connection:
            connection.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
            return connection.recv(64).startswith(b"HTTP/1.")
    except (OSError, ValueError):
        return False


def _connect(host: str, timeout: float) -> socket.socket:
    scheme, _, address = host.partition("://")
    if scheme == "tcp":
        name, _, port = address.partition(":")
        return socket.create_connection((name, int(port or 2375)), timeout=timeout)
    if scheme != "unix":
        raise ValueError(host)
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(timeout)
    try:
        connection.connect(address)
    except OSError:
        connection.close()
        raise
    return connection


def environment_of(properties: Mapping[str, str]) -> dict[str, str]:
    """Kafka's image reads settings from the environment: `a.b-c_d` is `KAFKA_A_B___C__D`."""
    replacements = str.maketrans({"_": "__", "-": "___", ".": "_"})
    return {f"KAFKA_{key.translate(replacements).upper()}": properties[key] for key in properties}


def container_properties(port: int) -> dict[str, str]:
    """The settings of `server.properties` and `quick.properties` with a container's listeners.

    Any setting in the environment replaces the image's own configuration as a whole, so it has to
    be complete. The port is the same inside and outside, because the broker also connects to its
    own advertised address (the transaction coordinator writes its markers that way).
    """
    own = read_properties(HERE / "server.properties") | read_properties(HERE / "quick.properties")
    return own | {
        "listeners": f"PLAINTEXT://:{port},CONTROLLER://{HOST}:{CONTROLLER_PORT}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "controller.quorum.voters": f"1@{HOST}:{CONTROLLER_PORT}",
        "log.dirs": "/var/lib/kafka/data",
    }


def run_command(port: int, properties: Mapping[str, str]) -> list[str]:
    """The `docker run` that starts it in the background and prints the container's id."""
    settings = environment_of(container_properties(port) | dict(properties))
    command = ["docker", "run", "--detach", "--rm", "--publish", f"{HOST}:{port}:{port}"]
    command += ["--volume", f"{VOLUME}:/var/lib/kafka/data"]
    for name, value in sorted(settings.items()):
        command += ["--env", f"{name}={value}"]
    return [*command, IMAGE]


class DockerBroker:
    """A running container; its data stays in a named volume."""

    def __init__(self, container: str, bootstrap: str) -> None:
        self.container = container
        self.bootstrap = bootstrap

    @classmethod
    def start(cls, *, port: int | None = None, properties: Mapping[str, str]) -> Self:
        """Start a container and return when its broker is ready."""
        if shutil.which("docker") is None:
            raise LocalBrokerError("A Docker engine answers, but there is no `docker` command.")
        reserved = reserve_port(port)
        try:
            started = _docker(*run_command(reserved.number, properties)[1:])
        finally:
            reserved.lock.close()
        broker = cls(started.strip(), f"{HOST}:{reserved.number}")
        if not wait_until_ready(broker.bootstrap, timeout=START_SECONDS):
            broker.stop()
            raise BrokerDied(f"The container of {IMAGE} was not ready in {START_SECONDS:.0f} s.")
        return broker

    def stop(self) -> None:
        """Stop the container; `--rm` removes it."""
        _docker("stop", self.container)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


def _docker(*arguments: str) -> str:
    ran = subprocess.run(["docker", *arguments], capture_output=True, text=True)  # noqa: S607
    if ran.returncode != 0:
        raise LocalBrokerError(f"docker {arguments[0]} failed: {ran.stderr.strip()}")
    return ran.stdout
