"""Package versions and the commit of a run: a part of its description that may change."""

import contextlib
import functools
import importlib.metadata
import platform
from typing import Final

from bert_jax.errors import UserError

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
    """Returns the commit of the code, "" if it is installed or git cannot read it."""
    from bert_jax.launch import bundle  # imported here: only runs need it

    checkout = bundle.checkout_of(bundle.__file__)
    with contextlib.suppress(UserError):
        return bundle.commit_of(checkout) if checkout else ""
    return ""


def version(package: str) -> str:
    """Returns the installed version of a package, or "not installed"."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # imported from a source tree
        return "not installed"
