"""Free ports that two processes starting at the same moment never share.

Asking the kernel for port 0 and closing the socket leaves a gap in which anybody may get the same
number. Here a port is first reserved by a lock that all our processes respect and that the broker
inherits, then tried. The range lies below Linux' ephemeral ports (32768 and up), so outgoing
connections do not take it in the meantime.
"""

import random
import socket
import tempfile
from pathlib import Path

from broker_engine.runtime.local_broker.errors import PortInUse
from broker_engine.runtime.local_broker.locks import FileLock, Held

FIRST_PORT, LAST_PORT = 20_000, 29_999
ATTEMPTS = 200  # each misses only when the port is taken; 200 misses mean something else is wrong

# One folder per machine, not per cache: two caches still share the machine's ports.
LOCK_DIR = Path(tempfile.gettempdir()) / "broker-engine-ports"


class ReservedPort:
    """A port nobody else of us will use while `lock` is held."""

    def __init__(self, number: int, lock: FileLock) -> None:
        self.number = number
        self.lock = lock


def reserve_port(wanted: int | None = None) -> ReservedPort:
    """Reserve `wanted`, or any free port.

    Raises:
        PortInUse: the wanted port is taken.
    """
    if wanted is not None:
        reserved = _try_port(wanted)
        if reserved is None:
            raise PortInUse(f"Port {wanted} is taken. Choose another, or none to have one found.")
        return reserved
    for _ in range(ATTEMPTS):
        reserved = _try_port(random.randint(FIRST_PORT, LAST_PORT))  # noqa: S311 - not a secret
        if reserved is not None:
            return reserved
    raise PortInUse(f"No free port between {FIRST_PORT} and {LAST_PORT} in {ATTEMPTS} attempts.")


def _try_port(number: int) -> ReservedPort | None:
    LOCK_DIR.mkdir(mode=0o777, exist_ok=True)
    try:
        lock = FileLock(LOCK_DIR / f"{number}.lock")
    except (Held, PermissionError):  # another process of ours, or another user's file
        return None
    if not is_free(number):
        lock.close()
        return None
    return ReservedPort(number, lock)


def is_free(number: int) -> bool:
    """Whether a server could listen there now (as Kafka does, with SO_REUSEADDR)."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", number))
        except OSError:
            return False
    return True
