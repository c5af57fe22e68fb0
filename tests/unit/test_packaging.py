"""What a user installs is explained, pinned, and the same everywhere."""

import re
import tomllib
from pathlib import Path

import pytest

import broker_engine

ROOT = Path(__file__).parents[2]
PYPROJECT = (ROOT / "pyproject.toml").read_text()
PROJECT = tomllib.loads(PYPROJECT)["project"]
LOCK = (ROOT / ".ci" / "requirements.lock").read_text()

EXTRAS = PROJECT["optional-dependencies"]
REQUIREMENTS = [*PROJECT["dependencies"], *(line for extra in EXTRAS.values() for line in extra)]
LOCKED = dict(re.findall(r"^([a-z0-9][a-z0-9.-]*)==(\S+)", LOCK, flags=re.MULTILINE))


def name_of(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9.-]", requirement)[0]


@pytest.mark.parametrize("requirement", REQUIREMENTS)
def test_each_dependency_says_why_it_is_there(requirement: str) -> None:
    assert re.search(rf'^ +"{re.escape(requirement)}",  # \w.{{10,}}$', PYPROJECT, re.MULTILINE)


@pytest.mark.parametrize("name", [name_of(line) for line in REQUIREMENTS if name_of(line) != "broker-engine"])
def test_each_dependency_is_locked(name: str) -> None:
    assert name in LOCKED


def test_every_locked_version_has_a_hash() -> None:
    assert LOCKED
    assert LOCK.count("==") >= len(LOCKED)
    for block in re.split(r"^(?=[a-z0-9])", LOCK, flags=re.MULTILINE)[1:]:
        assert "--hash=sha256:" in block, block


@pytest.mark.parametrize("text", [LOCK, PYPROJECT], ids=["lock", "pyproject"])
def test_no_index_no_host_and_no_folder_of_one_machine_is_named(text: str) -> None:
    assert "://" not in text
    assert "--index-url" not in text
    assert "--find-links" not in text
    assert not re.search(r"(?:^|[\s\"'=@])/(?:[a-z]+/)", text), "an absolute path"


def test_the_package_is_typed_and_knows_its_version() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", broker_engine.__version__)
    assert (ROOT / "broker_engine" / "py.typed").exists()
