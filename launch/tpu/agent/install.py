"""Brings code and a Python environment to a host: the bundle by its digest, then the packages.

Both are in folders named by what is in them, and complete once they have their final name: what an
earlier boot or job has left is used.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bert_jax.launch.bundle_name import bundle_name
from bert_jax.launch.tpu.bucket import Bucket

# uv, which brings a Python where the image's is too old; for hosts of TPU v2 to v6e, all x86-64.
UV = """\
uv==0.13.9 --hash=sha256:d7f459fe4fd247d830351c75686d3996ace3c6f3f728eb0e85a30b7ada0cef19
"""
_PYTHON = "3.12"  # which uv brings
_FOUND = ("python3.12", "python3.13", "python3.11", "python3")
# Seconds of one program: less than those after which a launcher gives up a host that is silent.
_LONGEST = 800.0
_NEEDED = 6 * 2**30  # bytes: the environment, a bundle, the caches of a run


class InstallError(Exception):
    """Something could not be installed: one line; the log has what the program printed."""


def unpack_bundle(bucket: Bucket, digest: str, home: Path) -> Path:
    """Returns the folder of the unpacked bundle with this digest.

    Raises:
        InstallError: it is not in the bucket, or is another.
    """
    name = bundle_name(digest)
    folder = home / name
    if folder.is_dir():
        return folder
    archive = bucket.read(f"{name}.tar")
    if archive is None:
        raise InstallError(f"{bucket.url}/{name}.tar: no such object")
    found = hashlib.sha256(archive).hexdigest()
    if found != digest:
        raise InstallError(f"{bucket.url}/{name}.tar: its sha256 is {found}, not {digest}")
    new = home / f"{name}.tmp"
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    (new / "bundle.tar").write_bytes(archive)
    _unpack(new / "bundle.tar", Path(os.path.realpath(new)))
    new.rename(folder)
    return folder


def _unpack(archive: Path, folder: Path) -> None:
    """Writes all files and links below a folder: a Python 3.10 may be too old for `tarfile`'s
    filters.

    folder: without links in its path.

    Raises:
        InstallError: the archive is damaged, or something in it is neither a file nor a link, is
            there twice, or is elsewhere.
    """
    links = []
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                _unpack_one(tar, member, folder)
                links += [member.name] if member.issym() else []
    except (tarfile.TarError, OSError) as error:
        raise InstallError(f"{folder}: cannot be unpacked ({error})") from None
    for name in links:  # once all are there: each may lead through others
        _check_inside(folder / name, folder, name)


def _unpack_one(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    path = folder / member.name
    # Both as written, and as the links that are there lead.
    for found in (Path(os.path.normpath(path)), path.parent):
        _check_inside(found, folder, member.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    if member.issym():
        if os.path.isabs(member.linkname):
            raise InstallError(f"{folder}: {member.name} leaves the folder")
        path.symlink_to(member.linkname)
    elif member.isfile() and (file := tar.extractfile(member)):
        with path.open("xb") as new:
            new.write(file.read())
    else:
        raise InstallError(f"{folder}: {member.name} is neither a file nor a link")


def _check_inside(path: Path, folder: Path, name: str) -> None:
    """Raises InstallError for a path that leads out of the folder."""
    if not Path(os.path.realpath(path)).is_relative_to(folder):
        raise InstallError(f"{folder}: {name} leaves the folder")


class Installer:
    """Makes the Python environment of a job; `log` is a descriptor that gets all output."""

    def __init__(self, home: Path, log: int, say: Callable[[str], None]):
        self._home, self._log, self._say = home, log, say

    def environment(self, requirements: Path, version: str) -> Path:
        """Returns the Python of an environment with the packages of a requirements file.

        version: the release of bert-jax to install if there is no such file.

        Raises:
            InstallError: a program failed, or the disk is too small.
        """
        is_locked = requirements.is_file()
        text = requirements.read_text() if is_locked else released(version)
        folder = environment_folder(self._home, text)
        python = folder / "bin" / "python"
        if python.exists():
            return python
        free = shutil.disk_usage(self._home).free
        if free < _NEEDED:
            needed = f"{_NEEDED / 1e9:.1f} needed"
            raise InstallError(f"{self._home}: {free / 1e9:.1f} GB free, {needed}")
        base = find_python() or self._bring_python()
        self._say(f"installing {text.count('==')} packages for {base}")
        new = self._home / f"{folder.name}.tmp"
        self._run([base, "-m", "venv", "--clear", str(new)])
        wanted = new / "requirements.txt"
        wanted.write_text(text)
        hashes = ["--require-hashes", "--no-deps"] if is_locked else []
        pip = [str(new / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check"]
        self._run([*pip, *hashes, "-r", str(wanted)])
        new.rename(folder)
        return python

    def _bring_python(self) -> str:
        """Returns a Python that uv has fetched."""
        self._say(f"this machine has Python {sys.version.split()[0]}; uv brings {_PYTHON}")
        uv = self.uv()
        # Not in the home folder, which a service may not have.
        env = {**os.environ, "UV_PYTHON_INSTALL_DIR": str(self._home / "uv-python")}
        self._run([uv, "python", "install", _PYTHON], env)
        words = [uv, "python", "find", "--managed-python", _PYTHON]
        done = subprocess.run(
            words, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._log,
            check=False,
        )  # fmt: skip
        found = done.stdout.decode().strip()
        if done.returncode != 0 or not found:
            raise InstallError(f"{' '.join(words)} ended with {done.returncode}")
        return found

    def uv(self) -> str:
        """Returns uv, installed with its hash."""
        folder, wanted = self._home / "uv", self._home / "uv.txt"
        wanted.write_text(UV)
        pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--upgrade"]
        self._run([*pip, "--require-hashes", f"--target={folder}", "-r", str(wanted)])
        return str(folder / "bin" / "uv")

    def _run(self, words: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        """env: all variables of the program, if not those of this process."""
        try:
            done = subprocess.run(
                words, env=env, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
                check=False, timeout=_LONGEST,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            line = f"{' '.join(words[:5])} … did not end within {_LONGEST:.0f} s"
            raise InstallError(line) from None
        if done.returncode != 0:
            raise InstallError(f"{' '.join(words[:5])} … ended with {done.returncode}")


def released(version: str) -> str:
    """Returns the requirements of a release."""
    return f"bert-jax[tpu,gcs,finetune]=={version}\n"


def environment_folder(home: Path, requirements: str) -> Path:
    """Returns the folder of the environment with these requirements."""
    return home / f"python-{hashlib.sha256(requirements.encode()).hexdigest()[:16]}"


def find_python() -> str | None:
    """Returns a Python of this machine that the packages support, None without one."""
    for name in _FOUND:
        path = shutil.which(name)
        if path is None:
            continue
        program = "import sys, venv; print(sys.version)"
        done = subprocess.run([path, "-c", program], capture_output=True, check=False, text=True)
        if re.match(r"3\.1[123]\.", done.stdout):
            return os.path.abspath(path)
    return None
