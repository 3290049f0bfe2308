"""The code that travels to the hosts of a job: one tar, known by the digest of its content.

From a git checkout the tracked files that a job runs; from an installation nothing, as hosts
install the same release. With either, the files that --config=path.py and --module=path.py name,
each with the modules beside it that it imports.
"""

import ast
import dataclasses
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from bert_jax.errors import UserError
from bert_jax.launch.bundle_name import bundle_name
from bert_jax.storage.digest import sha256
from bert_jax.storage.regular_file import read_regular

_CODE, _CONFIG, _RECORD, _DIFF = "code", "config", "bundle.json", "uncommitted.diff"
_MODULES = "modules"  # with a folder for each
# What a job runs; changes elsewhere in a checkout (docs, tests) make no other bundle.
_PRODUCT = ("bert_jax", "configs", "data_pipeline", "launch", "requirements/tpu.txt")


@dataclasses.dataclass(frozen=True)
class Bundle:
    """The archive of code and config that is sent to the hosts.

    digest: sha256 of `archive`, an uncompressed tar that is the same for the same content.
    version: the release to install where `has_code` is false.
    config: path of the user's config file in the tar; None for a shipped config.
    modules: paths of the user's modules in the tar.
    """

    digest: str
    archive: bytes = dataclasses.field(repr=False)
    version: str
    has_code: bool
    config: str | None = None
    modules: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return bundle_name(self.digest)

    @property
    def files(self) -> tuple[str, ...]:
        """The paths of the user's files in the tar."""
        return (*((self.config,) if self.config else ()), *self.modules)

    def python_path(self, root: str) -> tuple[str, ...]:
        """Returns the folders to import from, where `root` has the unpacked tar."""
        code = (f"{root}/{_CODE}",) if self.has_code else ()
        return (*code, *(f"{root}/{file.rpartition('/')[0]}" for file in self.files))


def make(
    version: str, config: Path | None, modules: Sequence[Path] = (), *, checkout: Path | None
) -> Bundle:
    """Returns the bundle of this code and the user's files.

    version: of the installed package. config: None for a shipped one. checkout: the code, in which
    uncommitted changes are recorded, see `checkout_of`; None leaves it out.

    Raises:
        UserError: git cannot read the checkout, or a link in it or to a folder of it cannot travel.
    """
    files: dict[str, bytes | str] = {}  # a string is the target of a symbolic link
    record: dict[str, str | bool] = {"version": version, "code": checkout is not None}
    if checkout is not None:
        files |= {f"{_CODE}/{name}": data for name, data in _tracked(checkout)}
        # The last commit that changed what travels.
        record["commit"] = _git(checkout, "rev-list", "-1", "HEAD", "--", *_PRODUCT).strip()
        if uncommitted(checkout):
            # In any encoding, and whatever the user's own settings are.
            form = ("--no-color", "--no-ext-diff", "--binary")
            diff = _git(checkout, "diff", "HEAD", *form, "--", *_PRODUCT)
            files[_DIFF] = diff.encode(errors="surrogateescape")
    folders = {f"{_MODULES}/{number}": path for number, path in enumerate(modules)}
    if config is not None:
        folders[_CONFIG] = config
    for folder, path in folders.items():
        files |= {f"{folder}/{name}": data for name, data in config_files(path).items()}
    files[_RECORD] = (json.dumps(record, indent=2) + "\n").encode()
    archive = _tar(files)
    return Bundle(
        digest=sha256(archive),
        archive=archive,
        version=version,
        has_code=checkout is not None,
        config=None if config is None else f"{_CONFIG}/{config.name}",
        modules=tuple(f"{_MODULES}/{number}/{path.name}" for number, path in enumerate(modules)),
    )


def checkout_of(module: str) -> Path | None:
    """Returns the git checkout that a file of this package is in; None if it is installed."""
    root = Path(module).resolve().parents[1]
    return root if (root / ".git").exists() and (root / "setup.py").is_file() else None


def commit_of(checkout: Path) -> str:
    """Returns the commit, with "-dirty" behind it if tracked files were changed; UserError if git
    cannot read it."""
    words = ("--always", "--dirty", "--abbrev=40", "--exclude=*")  # no tags
    return _git(checkout, "describe", *words).strip()


def uncommitted(checkout: Path) -> list[str]:
    """Returns the files that travel and differ from the last commit, as git prints them."""
    return _git(checkout, "status", "--porcelain", "--", *_PRODUCT).splitlines()


def config_files(config: Path) -> dict[str, bytes]:
    """Returns a config file and the modules beside it that it imports, by their path there."""
    folder = config.parent
    files, left = {}, [config]
    while left:
        path = left.pop()
        name = path.relative_to(folder).as_posix()
        if name in files:
            continue
        files[name] = read_regular(path)
        if path.suffix == ".py":
            left += [found for top in _imported(path) for found in _beside(folder, top)]
    return files


def _imported(path: Path) -> set[str]:
    """Returns the first part of every absolute name that a file imports."""
    try:
        tree = ast.parse(read_regular(path))
    except (SyntaxError, ValueError):  # reported when it is executed
        return set()
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add((node.module or "").partition(".")[0])
    return names


def _beside(folder: Path, name: str) -> list[Path]:
    """Returns the files of the module or package that Python imports, if it is in a folder."""
    found, there = PathFinder.find_spec(name, [str(folder), *sys.path]), os.path.abspath(folder)
    if found and found.origin == f"{there}/{name}.py":
        return [folder / f"{name}.py"]
    if found and f"{there}/{name}" in (found.submodule_search_locations or ()):
        return sorted((folder / name).rglob("*.py"))
    return []


def _tracked(checkout: Path) -> Iterator[tuple[str, bytes | str]]:
    """Yields the tracked files of a job as they are now; one that was removed is left out."""
    root = checkout.resolve()
    for name in _git(checkout, "ls-files", "-z", "--", *_PRODUCT).split("\0"):
        path = checkout / name
        if not Path(os.path.realpath(path.parent)).is_relative_to(root) and name:
            raise UserError(
                f"{path.parent}: points outside the checkout, so it cannot be sent to the hosts"
            )
        if path.is_symlink():
            yield name, _link(path, checkout)
        elif name and path.is_file():
            yield name, path.read_bytes()


def _link(path: Path, checkout: Path) -> str:
    target, root = os.readlink(path), os.path.realpath(checkout)
    # As it is written, and where it leads through other links.
    written = os.path.normpath(os.path.join(os.path.realpath(path.parent), target))
    ends = (written, os.path.realpath(path))
    if os.path.isabs(target) or not all(Path(end).is_relative_to(root) for end in ends):
        raise UserError(f"{path}: links to {target}, outside the checkout; replace it by a file")
    return target


def _git(checkout: Path, *words: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(checkout), *words], capture_output=True, check=True,
            encoding="utf-8", errors="surrogateescape",
        )  # fmt: skip
    except FileNotFoundError:
        raise UserError(f"{checkout}: is a git checkout, but git is not installed") from None
    except subprocess.CalledProcessError as error:
        reason = " ".join(error.stderr.split())[:200]
        raise UserError(f"{checkout}: git {words[0]} failed ({reason})") from None
    return done.stdout


def _tar(files: Mapping[str, bytes | str]) -> bytes:
    """Returns a tar that depends on names and content only: no times, owners or order."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(files):
            content, entry = files[name], tarfile.TarInfo(name)
            if isinstance(content, str):
                entry.type, entry.linkname = tarfile.SYMTYPE, content
                archive.addfile(entry)
            else:
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
