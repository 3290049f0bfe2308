"""A rule that every file keeps, as one test: thousands of small ones would take their time."""

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest


def for_every(paths: Iterable[Path]) -> Callable[[Callable[[Path], None]], Callable[[], None]]:
    """Makes a test of a rule; it lists every file that breaks it."""

    def decorate(rule: Callable[[Path], None]) -> Callable[[], None]:
        def test() -> None:
            broken = []
            for path in paths:
                try:
                    rule(path)
                except (AssertionError, pytest.fail.Exception) as error:
                    broken.append(f"{path}: {error}")
            assert not broken, "\n".join(broken)

        test.__name__, test.__doc__, test.__module__ = rule.__name__, rule.__doc__, rule.__module__
        return test

    return decorate
