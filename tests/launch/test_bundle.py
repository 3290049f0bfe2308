"""Tests of the code that travels: what is in it, and that its digest depends on nothing else."""

import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from bert_jax.errors import UserError
from bert_jax.launch import bundle
from bert_jax.launch.preflight import CheckFailedError, code_check

pytestmark = pytest.mark.processes


# Tracked files that no job runs.
OTHERS = ("setup.py", "README.md", "docs/launch.md", "tests/test_bundle.py", "requirements/dev.txt")


def git(folder: Path, *words: str) -> None:
    about = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", *about, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout of a module, a link to it, pages, tests, and a file that is not tracked."""
    root = tmp_path / "checkout"
    (root / "launch").mkdir(parents=True)
    for name in ("bert_jax", "docs", "tests", "requirements"):
        (root / name).mkdir()
    for name in OTHERS:
        (root / name).write_text("# one\n")
    (root / "requirements" / "tpu.txt").write_text("jax==1\n")
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


def test_a_checkout_sends_the_tracked_files_and_links_of_a_job(checkout: Path) -> None:
    made = bundle.make("1.0", None, checkout=checkout)
    names = names_of(made)
    assert set(names) == {
        "bundle.json", "code/launch/job file.py", "code/bert_jax/launch",
        "code/requirements/tpu.txt",
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


@pytest.mark.parametrize("name", OTHERS)
def test_pages_and_tests_make_no_other_bundle(name: str, checkout: Path) -> None:
    """Neither changed nor committed; they are no reason to refuse a job."""
    first = bundle.make("1.0", None, checkout=checkout)
    (checkout / name).write_text("# two\n")
    assert bundle.make("1.0", None, checkout=checkout) == first
    assert code_check(checkout, allow_dirty=False).probe().endswith(": committed")
    git(checkout, "commit", "--quiet", "--all", "--message=second")
    assert bundle.make("1.0", None, checkout=checkout) == first


@pytest.mark.parametrize("name", ["launch/job file.py", "requirements/tpu.txt"])
def test_code_makes_another_bundle(name: str, checkout: Path) -> None:
    names = {bundle.make("1.0", None, checkout=checkout).name}
    (checkout / name).write_text("x = 2\n")
    with pytest.raises(CheckFailedError, match=name):
        code_check(checkout, allow_dirty=False).probe()
    names.add(bundle.make("1.0", None, checkout=checkout).name)
    git(checkout, "commit", "--quiet", "--all", "--message=second")
    names.add(bundle.make("1.0", None, checkout=checkout).name)
    assert len(names) == 3


def test_the_bundle_of_this_checkout_has_what_hosts_read_and_runs(tmp_path: Path) -> None:
    made = bundle.make("1.0", None, checkout=bundle.checkout_of(bundle.__file__))
    with tarfile.open(fileobj=io.BytesIO(made.archive)) as archive:
        archive.extractall(tmp_path, filter="data")
    assert (tmp_path / "code/requirements/tpu.txt").is_file()
    words = [sys.executable, "-P", "-m", "bert_jax", "pretrain", "--help"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(made.python_path(str(tmp_path)))}
    done = subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, check=True, text=True)
    assert "wiki_books_base" in done.stdout
    assert not [name for name in names_of(made) if "tests/" in name or "docs/" in name]


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
    (checkout / "launch" / "out").symlink_to("up/../x")
    git(checkout, "add", ".")
    with pytest.raises(UserError, match=r"out: links to .*outside the checkout"):
        bundle.make("1.0", None, checkout=checkout)


@pytest.mark.parametrize("name", ["file", "link"])
def test_a_folder_that_became_a_link_out_of_the_checkout_is_refused(
    name: str, checkout: Path
) -> None:
    """A file of that name outside would travel in place of the tracked one."""
    folder, outside = checkout / "launch" / "below", checkout.parent / "outside"
    folder.mkdir(parents=True)
    (folder / name).symlink_to("../../setup.py") if name == "link" else (folder / name).touch()
    git(checkout, "add", ".")
    (folder / name).unlink()
    folder.rmdir()
    outside.mkdir()
    (outside / name).write_text("secret")
    folder.symlink_to(outside)
    with pytest.raises(UserError, match="checkout/launch/below: points outside the checkout"):
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


def test_a_folder_of_modules_needs_no_init_file_to_travel(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from lib import helper\nimport both\nimport data.sizes\n")
    for name in ("lib/helper.py", "lib/deep/other.py", "both.py", "both/not.py", "lib/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text("import inner\n")
    (tmp_path / "inner.py").write_text("x = 1\n")
    assert set(bundle.config_files(tmp_path / "mine.py")) == {
        "mine.py", "lib/helper.py", "lib/deep/other.py", "both.py", "inner.py",
    }  # fmt: skip


def test_a_folder_with_the_name_of_an_installed_package_stays(tmp_path: Path, monkeypatch) -> None:
    """Python imports the package, wherever it is; a package or module beside the file, before."""
    (tmp_path / "mine.py").write_text("import numpy, pytest, yaml\n")
    for name in ("numpy/data.py", "pytest/__init__.py", "yaml.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    expected = {"mine.py", "pytest/__init__.py", "yaml.py"}
    assert set(bundle.config_files(tmp_path / "mine.py")) == expected
    monkeypatch.chdir(tmp_path)
    assert set(bundle.config_files(Path("mine.py"))) == expected


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


def test_modules_travel_each_in_a_folder_of_its_own(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "rows.py").write_text(f"import helper\nname = '{folder}'\n")
    (tmp_path / "b/helper.py").write_text("x = 1\n")
    modules = [tmp_path / "a/rows.py", tmp_path / "b/rows.py"]
    made = bundle.make("1.0", None, modules, checkout=None)
    assert set(names_of(made)) - {"bundle.json"} == {
        "modules/0/rows.py", "modules/1/rows.py", "modules/1/helper.py"
    }  # fmt: skip
    assert content_of(made, "modules/1/rows.py") == b"import helper\nname = 'b'\n"
    assert made.modules == made.files == ("modules/0/rows.py", "modules/1/rows.py")
    assert made.python_path("/job") == ("/job/modules/0", "/job/modules/1")
