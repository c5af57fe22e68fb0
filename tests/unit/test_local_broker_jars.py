"""The jars come from the lock, checked, and only when they are missing or damaged."""

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from broker_engine.runtime.local_broker.configuration import JARS_LOCK
from broker_engine.runtime.local_broker.errors import JarsUnavailable
from broker_engine.runtime.local_broker.jars import Jar, ensure_jars, parse_lock

CONTENT = {"clients": b"clients 4.4.0", "server": b"server 4.4.0"}
JARS = tuple(
    Jar(group="org.k", artifact=name, version="1", sha256=hashlib.sha256(content).hexdigest())
    for name, content in CONTENT.items()
)


class Repository:
    """Stands in for a Maven repository and counts what was asked of it."""

    def __init__(self, content: dict[str, bytes] = CONTENT) -> None:
        self.content = content
        self.asked: list[str] = []

    def fetch(self, jar: Jar, directory: Path) -> Path:
        self.asked.append(jar.artifact)
        path = directory / "below" / "somewhere.jar"
        path.parent.mkdir()
        path.write_bytes(self.content[jar.artifact])
        return path


def unreachable(jar: Jar, directory: Path) -> Path:
    raise OSError("no network")


@pytest.fixture(autouse=True)
def no_waiting_between_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda seconds: None)


def test_missing_jars_are_fetched_and_returned_in_the_order_of_the_lock(tmp_path: Path) -> None:
    paths = ensure_jars(JARS, tmp_path, fetch=Repository().fetch)

    assert [path.name for path in paths] == ["clients-1.jar", "server-1.jar"]
    assert [path.read_bytes() for path in paths] == list(CONTENT.values())
    assert sorted(tmp_path.iterdir()) == sorted(paths), "nothing else is left behind"


def test_nothing_is_contacted_once_all_are_there(tmp_path: Path) -> None:
    ensure_jars(JARS, tmp_path, fetch=Repository().fetch)

    assert len(ensure_jars(JARS, tmp_path, fetch=unreachable)) == len(JARS)


def test_a_damaged_jar_is_fetched_again_and_the_others_are_not(tmp_path: Path) -> None:
    ensure_jars(JARS, tmp_path, fetch=Repository().fetch)
    (tmp_path / "server-1.jar").write_bytes(b"half of it")
    repository = Repository()

    ensure_jars(JARS, tmp_path, fetch=repository.fetch)

    assert repository.asked == ["server"]
    assert (tmp_path / "server-1.jar").read_bytes() == CONTENT["server"]


def test_a_jar_with_another_checksum_is_refused_and_never_put_in_place(tmp_path: Path) -> None:
    tampered = Repository(CONTENT | {"server": b"something else"})

    with pytest.raises(JarsUnavailable, match=r"org\.k:server:1 .*SHA-256"):
        ensure_jars(JARS, tmp_path, fetch=tampered.fetch)

    assert not (tmp_path / "server-1.jar").exists()


def test_a_lost_connection_is_tried_again(tmp_path: Path) -> None:
    repository, attempts = Repository(), []

    def flaky(jar: Jar, directory: Path) -> Path:
        attempts.append(jar)
        if len(attempts) == 1:
            raise OSError("connection reset")
        return repository.fetch(jar, directory)

    ensure_jars(JARS[:1], tmp_path, fetch=flaky)

    assert len(attempts) == 2


def test_a_jar_that_cannot_be_had_is_named_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(JarsUnavailable, match=r"org\.k:clients:1 .*no network.*--kafka"):
        ensure_jars(JARS[:1], tmp_path, fetch=unreachable)


def test_two_processes_may_fill_the_folder_at_once(tmp_path: Path) -> None:
    repository, both_here = Repository(), threading.Barrier(2, timeout=10)

    def slow(jar: Jar, directory: Path) -> Path:
        path = repository.fetch(jar, directory)
        both_here.wait()
        return path

    with ThreadPoolExecutor(2) as pool:
        fills = [pool.submit(ensure_jars, JARS[:1], tmp_path, fetch=slow) for _ in range(2)]
        first, second = (fill.result() for fill in fills)

    assert first == second
    assert first[0].read_bytes() == CONTENT["clients"]


def test_progress_counts_those_already_there(tmp_path: Path) -> None:
    ensure_jars(JARS[:1], tmp_path, fetch=Repository().fetch)
    seen: list[tuple[int, int]] = []

    def progress(present: int, total: int) -> None:
        seen.append((present, total))

    ensure_jars(JARS, tmp_path, fetch=Repository().fetch, progress=progress)

    assert seen == [(1, 2), (2, 2)]


def test_a_lock_line_that_cannot_be_read_is_named() -> None:
    with pytest.raises(ValueError, match="line 2"):
        parse_lock("# a comment\norg.k:clients 1 abc\n")


def test_the_lock_pins_one_version_of_kafka_and_no_name_twice() -> None:
    jars = parse_lock(JARS_LOCK.read_text())

    versions = {jar.version for jar in jars if jar.group == "org.apache.kafka"}
    assert versions == {"4.4.0"}
    assert len({jar.file_name for jar in jars}) == len(jars) == 92
    assert all(len(jar.sha256) == 64 for jar in jars)
