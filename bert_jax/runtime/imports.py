"""Imports that a library tries and can do without."""

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def hidden(*names: str) -> Iterator[None]:
    """Makes imports of these modules fail, as where they are not installed; loaded ones stay."""
    absent = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]  # None: there is no such
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]
