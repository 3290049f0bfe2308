"""What machines with a TPU install: exact, with hashes, and what setup.py asks for."""

import re
import runpy
from pathlib import Path

import pytest
import setuptools
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "requirements" / "tpu.txt").read_text("utf-8")
# name -> version, its hashes; as pip reads the file, lines that end with \ joined.
PINS = {
    line.split("==")[0]: (line.split("==")[1].split()[0], re.findall(r"--hash=(\S+)", line))
    for line in TEXT.replace("\\\n", "").splitlines()
    if not line.startswith("#")
}


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """The requirements of setup.py, by extra."""
    given: dict = {}
    monkeypatch.setattr(setuptools, "setup", lambda **words: given.update(words))
    runpy.run_path(str(ROOT / "setup.py"))
    return {"": given["install_requires"], **given["extras_require"]}


@pytest.mark.parametrize("extra", ["", "tpu", "gcs"])
def test_every_requirement_is_pinned_to_a_version_that_it_allows(declared, extra: str) -> None:
    for text in declared[extra]:
        wanted = Requirement(text)
        version, _ = PINS[wanted.name.lower().replace("_", "-")]
        assert wanted.specifier.contains(version), f"{text}: {version}; run make lock"


def test_the_libraries_of_a_tpu_are_pinned() -> None:
    assert {"libtpu", "gcsfs", "jax", "jaxlib"} <= PINS.keys()


def test_every_package_has_hashes() -> None:
    """Without one, pip --require-hashes refuses the file."""
    for name, (_, hashes) in PINS.items():
        assert hashes, name
        assert all(re.fullmatch("sha256:[0-9a-f]{64}", one) for one in hashes), name


def test_versions_are_those_of_the_other_locks() -> None:
    core = (ROOT / "requirements" / "core.txt").read_text("utf-8")
    pinned = dict(re.findall(r"^([a-z][\w.-]*)==(\S+)", core, re.MULTILINE))
    assert {name: PINS[name][0] for name in pinned} == pinned


def test_the_image_installs_them_and_runs_without_rights() -> None:
    lines = (ROOT / "Dockerfile").read_text("utf-8").splitlines()
    commands = [line.split(maxsplit=1) for line in lines if re.match("[A-Z]+ ", line)]
    assert "--require-hashes --requirement /tmp/tpu.txt" in "\n".join(lines)
    users = [words[1] for words in commands if words[0] == "USER"]
    assert users == ["trainer"]
    last = max(i for i, words in enumerate(commands) if words[0] == "RUN")
    assert commands[last + 1][0] == "USER"


def test_only_what_the_package_is_made_of_enters_the_image() -> None:
    lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    kept = {line[1:] for line in lines if line.startswith("!")}
    assert "*" in lines
    assert all((ROOT / name).exists() for name in kept)
    links = {link.readlink().name for link in (ROOT / "bert_jax").iterdir() if link.is_symlink()}
    assert {"bert_jax", "setup.py", "requirements/tpu.txt", *links} <= kept
