"""The broker in Docker is the broker from the jars: same version, same settings."""

import re
import socket
import threading
from pathlib import Path

import pytest

from broker_engine.runtime.local_broker.configuration import HERE, JARS_LOCK, read_properties
from broker_engine.runtime.local_broker.docker import (
    IMAGE,
    container_properties,
    docker_engine_answers,
    environment_of,
    run_command,
)

COMPOSE = (Path(__file__).parents[2] / "docker" / "compose.yaml").read_text()
COMPOSE_SETTINGS = dict(re.findall(r'^ +(KAFKA_\w+): "(.*)"$', COMPOSE, flags=re.MULTILINE))


def test_the_image_has_the_version_of_the_jars() -> None:
    assert f"org.apache.kafka:kafka-clients:{IMAGE.rpartition(':')[2]} " in JARS_LOCK.read_text()
    assert f"image: {IMAGE}\n" in COMPOSE


def test_the_compose_file_has_the_settings_of_the_local_broker() -> None:
    ours = environment_of(read_properties(HERE / "server.properties") | read_properties(HERE / "quick.properties"))
    listeners = {"KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"}  # a container has one listener more
    shared = (ours.keys() & COMPOSE_SETTINGS.keys()) - listeners

    assert {name: COMPOSE_SETTINGS[name] for name in shared} == {name: ours[name] for name in shared}
    assert len(shared) > 15, "the rest is sizes and threads, which the image may choose"


def test_setting_names_become_variables_as_the_image_reads_them() -> None:
    assert environment_of({"a.b-c_d": "1"}) == {"KAFKA_A_B___C__D": "1"}


def test_the_broker_is_published_on_the_port_it_advertises() -> None:
    command = run_command(20_001, {"log.retention.hours": "5"})

    assert command[-1] == IMAGE
    assert "127.0.0.1:20001:20001" in command
    assert "KAFKA_LOG_RETENTION_HOURS=5" in command
    assert container_properties(20_001)["advertised.listeners"] == "PLAINTEXT://127.0.0.1:20001"


def test_an_engine_that_pings_back_is_seen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer_one_ping, args=(server,))
        thread.start()
        port = server.getsockname()[1]

        assert docker_engine_answers({"DOCKER_HOST": f"tcp://127.0.0.1:{port}"})
        thread.join()


@pytest.mark.parametrize("host", ["unix:///nowhere/docker.sock", "tcp://127.0.0.1:1", "ssh://me@there", "nonsense"])
def test_no_engine_is_no_error(host: str) -> None:
    assert not docker_engine_answers({"DOCKER_HOST": host})


def answer_one_ping(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(1024)
        connection.sendall(b"HTTP/1.0 200 OK\r\n\r\nOK")
