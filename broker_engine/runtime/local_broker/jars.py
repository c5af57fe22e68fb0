"""The broker's jars: pinned in a lock file, fetched one by one, checked by SHA-256.

`jgo` is used as a downloader only. It must not resolve the dependency tree: it mixes in an older
kafka-clients, and the broker then dies with NoSuchMethodError. The lock names every jar instead.
Other sets of jars (Connect plugins) come the same way with a lock file of their own.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from broker_engine.runtime.local_broker.errors import JarsUnavailable

PARALLEL_DOWNLOADS = 8  # 92 jars, 54 MB: 7 s with eight at a time
ATTEMPTS = 3  # a lost connection is common, a third one in a row is an outage
TIMEOUT_SECONDS = 60  # jgo's default of 10 s cuts off slow proxies


@dataclass(frozen=True, slots=True, kw_only=True)
class Jar:
    """One line of a lock file."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"

    def __str__(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"


#: Downloads a jar somewhere below the given empty folder and says where.
Fetch = Callable[[Jar, Path], Path]
#: Called with (jars present, jars in all).
Progress = Callable[[int, int], None]


def ignore_progress(_present: int, _total: int) -> None:
    """The `Progress` of callers who do not watch."""


def parse_lock(text: str) -> tuple[Jar, ...]:
    """Read `group:artifact:version sha256` lines; blank lines and `#` comments are skipped."""
    jars = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            coordinates, sha256 = line.split()
            group, artifact, version = coordinates.split(":")
        except ValueError as error:
            raise ValueError(f"lock line {number} is not `group:artifact:version sha256`") from error
        jars.append(Jar(group=group, artifact=artifact, version=version, sha256=sha256))
    return tuple(jars)


def ensure_jars(
    jars: Sequence[Jar],
    directory: Path,
    *,
    fetch: Fetch | None = None,
    progress: Progress = ignore_progress,
) -> list[Path]:
    """Return the jars' paths in the order of the lock, fetching those missing or damaged.

    Nothing is contacted when all are intact. Two processes may fill the folder at once: each
    downloads into a folder of its own and renames whole, checked files into place.

    Raises:
        JarsUnavailable: a jar could not be fetched, or arrived with another checksum.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(PARALLEL_DOWNLOADS, thread_name_prefix="jars") as pool:
        intact = pool.map(lambda jar: is_intact(directory / jar.file_name, jar), jars)
        missing = [jar for jar, is_there in zip(jars, intact, strict=True) if not is_there]
        if missing:
            _fetch_all(missing, len(jars), directory, fetch or fetch_with_jgo, progress, pool)
    return [directory / jar.file_name for jar in jars]


def is_intact(path: Path, jar: Jar) -> bool:
    """Whether the file is there with the locked checksum (54 MB take about 0.1 s)."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == jar.sha256
    except FileNotFoundError:
        return False


def _fetch_all(
    missing: Iterable[Jar],
    total: int,
    directory: Path,
    fetch: Fetch,
    progress: Progress,
    pool: ThreadPoolExecutor,
) -> None:
    futures = [pool.submit(_fetch_one, jar, directory, fetch) for jar in missing]
    present = total - len(futures)
    progress(present, total)
    try:
        for future in as_completed(futures):
            future.result()
            present += 1
            progress(present, total)
    except BaseException:
        for future in futures:  # the first failure decides; do not wait for 80 time-outs more
            future.cancel()
        raise


def _fetch_one(jar: Jar, directory: Path, fetch: Fetch) -> None:
    failures = retry_if_exception_type((OSError, RuntimeError))
    try:
        for attempt in Retrying(
            retry=failures,
            stop=stop_after_attempt(ATTEMPTS),
            wait=wait_exponential(multiplier=0.2),
            reraise=True,
        ):
            with attempt:
                _fetch_once(jar, directory, fetch)
    except (OSError, RuntimeError) as error:  # requests' errors are OSErrors, jgo's RuntimeErrors
        raise JarsUnavailable(
            f"{jar} could not be fetched: {error}. Connect to the network once (the jars are kept "
            f"in {directory}), or give a running broker with `--kafka HOST:PORT`."
        ) from error


def _fetch_once(jar: Jar, directory: Path, fetch: Fetch) -> None:
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=directory) as private:
        path = fetch(jar, Path(private))
        if not is_intact(path, jar):
            raise RuntimeError("it arrived with another SHA-256 than the locked one")
        os.replace(path, directory / jar.file_name)


def fetch_with_jgo(jar: Jar, directory: Path) -> Path:
    """Download one jar from Maven Central, or from the mirror in BROKER_ENGINE_MAVEN_URL."""
    from jgo.maven import MavenContext, PythonResolver  # half a second, needed once per machine

    mirror = os.environ.get("BROKER_ENGINE_MAVEN_URL")
    context = MavenContext(
        repo_cache=directory,
        resolver=PythonResolver(),
        remote_repos={"mirror": mirror.rstrip("/")} if mirror else None,
        timeout=TIMEOUT_SECONDS,
    )
    return context.project(jar.group, jar.artifact).at_version(jar.version).artifact().resolve()
