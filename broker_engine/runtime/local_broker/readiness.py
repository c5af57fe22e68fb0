"""When a broker is ready: it describes the cluster *and* would create a topic.

The log says "started" before the broker is registered with its controller, and a topic created
then is refused; so neither logs nor an open port are asked. The topic is only validated: nothing
of the question stays behind.
"""

import socket
import time
from collections.abc import Callable

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

PAUSE_SECONDS = 0.05
REQUEST_SECONDS = 2.0


def wait_until_ready(bootstrap: str, *, timeout: float, still_worth_waiting: Callable[[], bool] = lambda: True) -> bool:
    """Wait until the broker is ready; False after `timeout` or when it is not worth waiting."""
    deadline = time.monotonic() + timeout
    # The client complains about every refused connection, so first wait for the port.
    while time.monotonic() < deadline and still_worth_waiting():
        if accepts_connections(bootstrap):
            break
        time.sleep(PAUSE_SECONDS)
    while time.monotonic() < deadline and still_worth_waiting():
        if is_ready(bootstrap):
            return True
        time.sleep(PAUSE_SECONDS)
    return False


def accepts_connections(bootstrap: str, *, timeout: float = 1.0) -> bool:
    """Whether any of the `HOST:PORT,…` accepts a TCP connection."""
    for address in bootstrap.split(","):
        host, _, port = address.strip().rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=timeout):
                return True
        except (OSError, ValueError):
            continue
    return False


def is_ready(bootstrap: str, *, timeout: float = REQUEST_SECONDS) -> bool:
    """Ask once."""
    # Kept in a variable until the futures are done: a collected client fails them.
    client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    topic = NewTopic("broker-engine-ready", num_partitions=1, replication_factor=1)
    try:
        client.describe_cluster(request_timeout=timeout).result(timeout)
        created = client.create_topics([topic], validate_only=True, request_timeout=timeout)
        created[topic.topic].result(timeout)
    except (KafkaException, TimeoutError):
        return False
    return True
