"""The broker of the tests in a container, for machines where the jars cannot be fetched.

testcontainers' own Kafka classes are made for other images; `apache/kafka` takes its settings from
the environment and needs to know its published port before it starts.
"""

from testcontainers.core.container import DockerContainer

from broker_engine.runtime.local_broker.configuration import HOST
from broker_engine.runtime.local_broker.docker import IMAGE, container_properties, environment_of
from broker_engine.runtime.local_broker.ports import reserve_port
from broker_engine.runtime.local_broker.readiness import wait_until_ready

START_SECONDS = 180.0  # the first start pulls the image


class KafkaContainer(DockerContainer):
    """`apache/kafka` with the same settings as the broker from the jars."""

    def __init__(self) -> None:
        super().__init__(IMAGE)
        self._port = reserve_port()
        self.with_bind_ports(self._port.number, self._port.number)
        settings = environment_of(container_properties(self._port.number))
        for name, value in settings.items():
            self.with_env(name, value)

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self._port.number}"

    def start(self) -> "KafkaContainer":
        super().start()
        if not wait_until_ready(self.bootstrap, timeout=START_SECONDS):
            self.stop()
            raise TimeoutError(f"{IMAGE} was not ready in {START_SECONDS:.0f} s")
        return self

    def stop(self, force: bool = True, delete_volume: bool = True) -> None:
        super().stop(force, delete_volume)
        self._port.lock.close()
