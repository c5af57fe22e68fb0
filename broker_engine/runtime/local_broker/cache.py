"""Where downloaded and derived files are kept: one folder for every checkout and every process.

Nothing in it is precious: deleting the folder costs one download.
"""

import os
from collections.abc import Mapping
from pathlib import Path


def cache_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """`$BROKER_ENGINE_CACHE`, or the user's own cache folder; created when absent."""
    named = environment.get("BROKER_ENGINE_CACHE")
    path = Path(named).expanduser() if named else Path.home() / ".cache" / "broker-engine"
    path.mkdir(parents=True, exist_ok=True)
    return path.resolve()
