"""A real broker from the jars, under the things that tests and chaos runs do to it."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, ConfigResource
from confluent_kafka.cimpl import NewTopic

from broker_engine.runtime.local_broker import LocalBroker, find_or_start
from broker_engine.runtime.local_broker.errors import DataInUse, PortInUse
from broker_engine.runtime.local_broker.locks import is_held
from broker_engine.runtime.local_broker.readiness import is_ready, wait_until_ready

pytestmark = [pytest.mark.kafka]


def test_records_survive_a_crash_and_a_restart_on_the_same_address(tmp_path: Path) -> None:
    with LocalBroker.start(tmp_path) as broker:
        address = broker.bootstrap
        create_topic(broker.bootstrap, "kept")
        produce(broker.bootstrap, "kept", b"before the crash")

        broker.kill()
        assert not broker.is_running
        broker.restart()

        assert broker.bootstrap == address
        assert consume(broker.bootstrap, "kept") == b"before the crash"


def test_a_suspended_broker_is_deaf_until_it_is_resumed(tmp_path: Path) -> None:
    with LocalBroker.start(tmp_path) as broker:
        broker.suspend()
        assert not is_ready(broker.bootstrap, timeout=0.5)

        broker.resume()
        assert wait_until_ready(broker.bootstrap, timeout=30)


def test_two_brokers_started_at_once_do_not_collide(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(LocalBroker.start, (tmp_path / "a", tmp_path / "b"))
    with first, second:
        assert first.bootstrap != second.bootstrap
        assert is_ready(first.bootstrap)
        assert is_ready(second.bootstrap)


def test_a_data_folder_and_a_port_have_one_broker_at_a_time(tmp_path: Path) -> None:
    with LocalBroker.start(tmp_path / "a") as broker:
        with pytest.raises(DataInUse):
            LocalBroker.start(tmp_path / "a")
        port = int(broker.bootstrap.rpartition(":")[2])
        with pytest.raises(PortInUse):
            LocalBroker.start(tmp_path / "b", port=port)


def test_quick_timings_can_be_left_out_and_single_settings_given(tmp_path: Path) -> None:
    given = {"log.retention.hours": "5"}
    with LocalBroker.start(tmp_path, broker_defaults=True, properties=given) as broker:
        settings = broker_settings(broker.bootstrap)

    assert settings["group.initial.rebalance.delay.ms"] == "3000"
    assert settings["transaction.abort.timed.out.transaction.cleanup.interval.ms"] == "10000"
    assert settings["log.retention.hours"] == "5"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells children of their parent")
def test_the_broker_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path\n"
        "from broker_engine.runtime.local_broker import LocalBroker\n"
        "print(LocalBroker.start(Path(sys.argv[1])).pid, flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        broker_pid = int(parent.stdout.readline())
        os.kill(broker_pid, 0)  # it exists

        parent.send_signal(signal.SIGKILL)
        parent.wait()

    assert ends(tmp_path / "broker.lock")


def test_a_given_broker_is_used_and_left_running(bootstrap: str, tmp_path: Path) -> None:
    with find_or_start(bootstrap, tmp_path) as broker:
        assert broker.bootstrap == bootstrap
    assert is_ready(bootstrap)


def ends(lock: Path) -> bool:
    """Whether the holder of the lock is gone within 10 s."""
    deadline = time.monotonic() + 10
    while is_held(lock):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def create_topic(bootstrap: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(10)


def produce(bootstrap: str, topic: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    producer.produce(topic, value)
    assert producer.flush(30) == 0


def consume(bootstrap: str, topic: str) -> bytes | None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        message = consumer.poll(20)
        assert message is not None, "nothing came within 20 s"
        assert message.error() is None
        return message.value()
    finally:
        consumer.close()


def broker_settings(bootstrap: str) -> dict[str, str]:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    resource = ConfigResource(ConfigResource.Type.BROKER, "1")
    entries = admin.describe_configs([resource])[resource].result(10)
    return {name: entry.value for name, entry in entries.items()}
