"""Package versions of a run: part of its description; a change never prevents resuming."""

import importlib.metadata
import platform
from typing import Final

# Packages that can change results.
_PACKAGES: Final = ("bert-jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


def versions() -> dict[str, str]:
    """Returns package -> installed version, including Python's."""
    return {**{name: _version(name) for name in _PACKAGES}, "python": platform.python_version()}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # imported from a source tree
        return "not installed"
