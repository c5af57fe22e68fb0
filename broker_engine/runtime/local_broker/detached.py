"""A broker that outlives the command which started it, found again through its data folder.

`state.json` in the folder says what was started; whether it still runs is asked of the lock that
the broker itself holds (see `locks.py`), so a crash leaves nothing to clean up.
"""

import json
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType

from broker_engine.runtime.local_broker.broker import LOCK_FILE, STOP_SECONDS, LocalBroker
from broker_engine.runtime.local_broker.cache import cache_dir
from broker_engine.runtime.local_broker.jars import Progress, ignore_progress
from broker_engine.runtime.local_broker.locks import is_held

STATE_FILE = "state.json"
PAUSE_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class DetachedBroker:
    """A broker that runs on its own."""

    pid: int
    bootstrap: str
    data_dir: str

    def as_json(self) -> dict[str, object]:
        """What `state.json` and `--json` hold."""
        return asdict(self)

    def stop(self, timeout: float = STOP_SECONDS) -> None:
        """Shut it down cleanly, or kill it when that takes too long."""
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)  # a suspended process would not see it
        if not self._ended_within(timeout):
            self._signal(signal.SIGKILL)
            self._ended_within(timeout)
        (Path(self.data_dir) / STATE_FILE).unlink(missing_ok=True)

    def _signal(self, number: signal.Signals) -> None:
        # The lock is asked each time: the system may give the number of an ended process away.
        if is_running(Path(self.data_dir)):
            os.kill(self.pid, number)

    def _ended_within(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while is_running(Path(self.data_dir)):
            if time.monotonic() > deadline:
                return False
            time.sleep(PAUSE_SECONDS)
        return True


def default_data_dir() -> Path:
    """Where a broker keeps its data when no folder is named."""
    return cache_dir() / "broker"


def is_running(data_dir: Path) -> bool:
    """Whether some broker runs on this folder, started by whomever."""
    return is_held(data_dir / LOCK_FILE)


def start_detached(
    data_dir: Path,
    *,
    port: int | None = None,
    properties: Mapping[str, str] = MappingProxyType({}),
    broker_defaults: bool = False,
    progress: Progress = ignore_progress,
) -> DetachedBroker:
    """Start a broker that keeps running, and write down how to find it.

    Raises:
        LocalBrokerError: `DataInUse` when one runs there already.
    """
    broker = LocalBroker.start(
        data_dir,
        port=port,
        properties=properties,
        broker_defaults=broker_defaults,
        die_with_parent=False,
        progress=progress,
    )
    started = DetachedBroker(pid=broker.pid, bootstrap=broker.bootstrap, data_dir=str(broker.data_dir))
    broker.release()
    _write_whole(broker.data_dir / STATE_FILE, json.dumps(started.as_json(), indent=2) + "\n")
    return started


def find_detached(data_dir: Path) -> DetachedBroker | None:
    """The broker that was started on this folder, if it still runs."""
    try:
        state = json.loads((data_dir / STATE_FILE).read_text())
    except FileNotFoundError:
        return None
    # A folder may have been moved or copied: the state describes a broker that runs *here*.
    if not is_running(data_dir) or Path(state["data_dir"]) != data_dir.resolve():
        return None
    return DetachedBroker(**state)


def _write_whole(path: Path, text: str) -> None:
    part = path.with_suffix(".part")
    part.write_text(text)
    part.replace(path)
