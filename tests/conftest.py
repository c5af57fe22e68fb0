"""What every test may ask for: a real broker (`bootstrap`) and a name of its own (`namespace`).

A missing broker is a failure, never a skip: the suite starts its own.
"""

import os
import uuid
from collections.abc import Iterator

import pytest

from broker_engine.runtime.local_broker import LocalBroker
from broker_engine.runtime.local_broker.docker import docker_engine_answers
from broker_engine.runtime.local_broker.errors import JarsUnavailable, NoJava
from broker_engine.runtime.local_broker.readiness import wait_until_ready


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker, started once for the whole run.

    In this order: BROKER_ENGINE_TEST_BOOTSTRAP, a broker of our own from the pinned jars, a
    container.
    """
    given = os.environ.get("BROKER_ENGINE_TEST_BOOTSTRAP")
    if given:
        if not wait_until_ready(given, timeout=30):
            pytest.fail(f"No broker is ready at BROKER_ENGINE_TEST_BOOTSTRAP={given}")
        yield given
        return
    try:
        broker = LocalBroker.start(tmp_path_factory.mktemp("kafka"))
    except (JarsUnavailable, NoJava) as error:
        yield from _bootstrap_of_container(error)
    else:
        with broker:
            yield broker.bootstrap


def _bootstrap_of_container(no_jars: Exception) -> Iterator[str]:
    if not docker_engine_answers():
        pytest.fail(
            "The tests need a Kafka broker. Either let the jars be fetched "
            f"({no_jars}), or start a Docker engine, or name a broker with "
            "BROKER_ENGINE_TEST_BOOTSTRAP=HOST:PORT."
        )
    # Imported here: most runs need no Docker client.
    from tests.support.kafka_container import KafkaContainer

    with KafkaContainer() as container:
        yield container.bootstrap


@pytest.fixture
def namespace() -> str:
    """A namespace no other test and no earlier run has used, so that a broker can be shared."""
    return f"t{uuid.uuid4().hex[:8]}"
