"""The releases a run computes with: part of its description, never a reason to refuse it."""

import importlib.metadata
import platform
from typing import Final

# What can change a number that comes out.
_PACKAGES: Final = ("bert-jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


def versions() -> dict[str, str]:
    """Package -> version of what is installed here, Python too."""
    return {**{name: _version(name) for name in _PACKAGES}, "python": platform.python_version()}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # a source folder on the path
        return "not installed"
