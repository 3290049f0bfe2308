"""Package versions of a run: part of its description; a change never prevents resuming."""

import functools
import importlib.metadata
import platform
import subprocess
from pathlib import Path
from typing import Final

# Packages that can change results.
_PACKAGES: Final = ("bert-jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


def versions() -> dict[str, str]:
    """Returns package -> installed version, including Python's."""
    return {**{name: version(name) for name in _PACKAGES}, "python": platform.python_version()}


def software() -> dict[str, str]:
    """Returns the versions and, if the code is a git checkout, its commit."""
    found = _commit()
    return versions() | ({"commit": found} if found else {})


@functools.cache
def _commit() -> str:
    """Returns the commit of the checkout that this file is in, with "-dirty" behind it if tracked
    files were changed; "" if it is in none, or git cannot read it."""
    root = Path(__file__).resolve().parents[2]
    if not is_checkout(root):
        return ""
    words = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        command = [*words, "--exclude=*"]  # no tags
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, ValueError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def is_checkout(root: Path) -> bool:
    """Whether a folder is a git checkout of this project, not of one that installed it."""
    return (root / ".git").exists() and (root / "setup.py").is_file()


def version(package: str) -> str:
    """Returns the installed version of a package, or "not installed"."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # imported from a source tree
        return "not installed"
