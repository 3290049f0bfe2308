"""Package versions of a run: part of its description; a change never prevents resuming."""

import importlib.metadata
import platform
from typing import Final

# Packages that can change results.
_PACKAGES: Final = ("bert-jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


def versions() -> dict[str, str]:
    """Returns package -> installed version, including Python's."""
    return {**{name: version(name) for name in _PACKAGES}, "python": platform.python_version()}


def version(package: str) -> str:
    """Returns the installed version of a package, or "not installed"."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # imported from a source tree
        return "not installed"
