"""Tests of the code that travels: what is in it, and that its digest depends on nothing else."""

import io
import json
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from bert_jax.errors import UserError
from bert_jax.launch import bundle
from bert_jax.launch.preflight import CheckFailedError, code_check

pytestmark = pytest.mark.processes


def git(folder: Path, *words: str) -> None:
    about = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", *about, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout of two modules, one of them through a link, and a file that is not tracked."""
    root = tmp_path / "checkout"
    (root / "launch").mkdir(parents=True)
    (root / "bert_jax").mkdir()
    (root / "setup.py").write_text("# setup\n")
    (root / "launch" / "job file.py").write_text("x = 1\n")
    (root / "bert_jax" / "launch").symlink_to("../launch")
    git(root, "init", "--quiet")
    (root / ".gitignore").write_text("secret\n")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message=first")
    (root / "secret").write_text("hunter2")
    return root


def names_of(made: bundle.Bundle) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(made.archive)) as archive:
        return {member.name: member for member in archive.getmembers()}


def content_of(made: bundle.Bundle, name: str) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(made.archive)) as archive:
        return archive.extractfile(name).read()


def test_a_checkout_sends_its_tracked_files_and_links(checkout: Path) -> None:
    made = bundle.make("1.0", None, checkout=checkout)
    names = names_of(made)
    assert set(names) == {
        "bundle.json", "code/.gitignore", "code/setup.py", "code/launch/job file.py",
        "code/bert_jax/launch",
    }  # fmt: skip
    assert names["code/bert_jax/launch"].linkname == "../launch"
    assert made.python_path("/job") == ("/job/code",)
    assert len(json.loads(content_of(made, "bundle.json"))["commit"]) == 40


def test_the_digest_depends_on_content_alone(checkout: Path) -> None:
    first = bundle.make("1.0", None, checkout=checkout)
    file = checkout / "launch" / "job file.py"
    os.utime(file, (1, 1))
    (checkout / "other").write_text("not tracked")
    assert bundle.make("1.0", None, checkout=checkout) == first
    file.write_text("x = 2\n")
    assert bundle.make("1.0", None, checkout=checkout).digest != first.digest


def test_uncommitted_changes_are_refused_or_recorded(checkout: Path) -> None:
    assert code_check(checkout, allow_dirty=False).probe().endswith(": committed")
    (checkout / "launch" / "job file.py").write_text("x = 2\n")
    with pytest.raises(CheckFailedError, match=r"uncommitted changes in .*job file.py.*allow_dirt"):
        code_check(checkout, allow_dirty=False).probe()
    assert "with changes in" in code_check(checkout, allow_dirty=True).probe()
    made = bundle.make("1.0", None, checkout=checkout)
    assert b"+x = 2" in content_of(made, "uncommitted.diff")
    assert content_of(made, "code/launch/job file.py") == b"x = 2\n"


def test_uncommitted_changes_are_recorded_as_they_are(checkout: Path) -> None:
    """In any encoding, however the user wants to see them."""
    git(checkout, "config", "color.ui", "always")
    (checkout / "launch" / "job file.py").write_bytes("# é\n".encode("latin-1"))
    diff = content_of(bundle.make("1.0", None, checkout=checkout), "uncommitted.diff")
    assert b"\n-x = 1\n+# \xe9\n" in diff


def test_a_new_module_that_would_not_travel_is_refused(checkout: Path) -> None:
    (checkout / "launch" / "new.py").write_text("")
    (checkout / "notes.txt").write_text("")  # no part of the product
    with pytest.raises(CheckFailedError, match=r"changes in launch/new.py; commit .*after git add"):
        code_check(checkout, allow_dirty=False).probe()


@pytest.mark.parametrize("target", ["../../outside", "/etc/passwd"])
def test_a_link_out_of_the_checkout_is_refused(checkout: Path, target: str) -> None:
    (checkout / "launch" / "link").symlink_to(target)
    git(checkout, "add", ".")
    with pytest.raises(UserError, match="outside the checkout"):
        bundle.make("1.0", None, checkout=checkout)


def test_a_chain_of_links_out_of_the_checkout_is_refused(checkout: Path) -> None:
    """Each host would refuse it, after its machine was made."""
    (checkout / "launch" / "up").symlink_to("..")
    (checkout / "out").symlink_to("launch/up/../x")
    git(checkout, "add", ".")
    with pytest.raises(UserError, match=r"out: a link to .*outside the checkout"):
        bundle.make("1.0", None, checkout=checkout)


@pytest.mark.parametrize("name", ["file", "link"])
def test_a_folder_that_became_a_link_out_of_the_checkout_is_refused(
    name: str, checkout: Path
) -> None:
    """A file of that name outside would travel in place of the tracked one."""
    folder, outside = checkout / "tracked" / "below", checkout.parent / "outside"
    folder.mkdir(parents=True)
    (folder / name).symlink_to("../../setup.py") if name == "link" else (folder / name).touch()
    git(checkout, "add", ".")
    (folder / name).unlink()
    folder.rmdir()
    outside.mkdir()
    (outside / name).write_text("secret")
    folder.symlink_to(outside)
    with pytest.raises(UserError, match="checkout/tracked/below: leads out of the checkout"):
        bundle.make("1.0", None, checkout=checkout)


def test_a_config_file_brings_the_modules_beside_it_that_it_imports(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import numpy\nfrom shared import x\nimport parts.sizes\n")
    (tmp_path / "shared.py").write_text("def f():\n    import inner\n")
    (tmp_path / "inner.py").write_text("x = 1\n")
    (tmp_path / "unused.py").write_text("x = 1\n")
    (tmp_path / "parts").mkdir()
    for name in ("__init__", "sizes", "others"):
        (tmp_path / "parts" / f"{name}.py").write_text("from . import others\n")
    made = bundle.make("1.0", tmp_path / "mine.py", checkout=None)
    assert set(names_of(made)) - {"bundle.json"} == {
        "config/mine.py", "config/shared.py", "config/inner.py", "config/parts/__init__.py",
        "config/parts/sizes.py", "config/parts/others.py",
    }  # fmt: skip
    assert made.config == "config/mine.py"
    assert made.python_path("/job") == ("/job/config",)


@pytest.mark.parametrize("text", ["def get_config(:\n", "\0"])
def test_a_config_file_that_cannot_be_parsed_travels_alone(tmp_path: Path, text: str) -> None:
    (tmp_path / "mine.py").write_text(text)
    assert bundle.config_files(tmp_path / "mine.py") == {"mine.py": text.encode()}


def test_a_config_file_of_values_travels_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("import: this\n")
    (tmp_path / "this.py").write_text("")
    assert set(bundle.config_files(tmp_path / "mine.yaml")) == {"mine.yaml"}


def test_the_commit_of_a_checkout_says_whether_files_were_changed(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=b", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "--quiet")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "--quiet", "--message=a")
    git("tag", "-a", "v1", "-m", "v1")
    commit = git("rev-parse", "HEAD")
    assert bundle.commit_of(tmp_path) == commit
    (tmp_path / "a").write_text("2")
    assert bundle.commit_of(tmp_path) == f"{commit}-dirty"


def test_an_installation_is_no_checkout(tmp_path: Path) -> None:
    (tmp_path / "site/bert_jax/launch").mkdir(parents=True)
    (tmp_path / ".git").mkdir()  # of the project whose environment it is in
    assert bundle.checkout_of(str(tmp_path / "site/bert_jax/launch/bundle.py")) is None
    assert bundle.checkout_of(bundle.__file__) == Path(__file__).resolve().parents[2]
