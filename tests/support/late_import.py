"""Libraries that take seconds to import, for tests that do not run by default."""

from typing import Any

import pytest


class LateImport:
    """A module that is imported when a test first uses it; skips the test where it is missing."""

    def __init__(self, name: str, reason: str | None = None):
        self._name, self._reason = name, reason

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # pytest asks every name in a file whether it is a test
            raise AttributeError(name)
        return getattr(pytest.importorskip(self._name, reason=self._reason), name)
