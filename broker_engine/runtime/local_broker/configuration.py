"""The broker's server.properties, put together from the files beside this one.

Later sources win: what one node needs, what makes development quick, the ports and folders of this
start, and last what the caller asks for.
"""

from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).parent
LOG_CONFIGURATION = HERE / "log4j2.properties"
JARS_LOCK = HERE / "jars.lock"
HOST = "127.0.0.1"


def read_properties(path: Path) -> dict[str, str]:
    """Read the simple subset of Java's format used here: `key=value` and `#` comments."""
    pairs = {}
    for line in path.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            key, _, value = line.partition("=")
            pairs[key.strip()] = value.strip()
    return pairs


def server_properties(
    *,
    log_dir: Path,
    port: int,
    controller_port: int,
    broker_defaults: bool,
    properties: Mapping[str, str],
) -> dict[str, str]:
    """Every property of one start."""
    merged = read_properties(HERE / "server.properties")
    if not broker_defaults:
        merged |= read_properties(HERE / "quick.properties")
    merged |= {
        "log.dirs": str(log_dir),
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "controller.quorum.bootstrap.servers": f"{HOST}:{controller_port}",
    }
    return merged | dict(properties)


def write_properties(path: Path, properties: Mapping[str, str]) -> None:
    """Write them sorted, so that two starts can be compared."""
    path.write_text("".join(f"{key}={value}\n" for key, value in sorted(properties.items())))
