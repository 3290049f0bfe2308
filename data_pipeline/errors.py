"""Errors caused by user input or storage, each reported in one line."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Bad input: one line with the problem, its location and the remedy.

    The command line prints the message and exits with status 1; no traceback.
    """


class StorageError(Exception):
    """A required file cannot be written or is damaged: one line with the problem, its location and
    the remedy. The command line exits with status 45.
    """


def nearest(name: str, valid: Iterable[str]) -> str:
    """Returns the end of an error message: the nearest valid name, or all valid names."""
    names = sorted(valid)
    close = closest(name, names)
    return f"; did you mean {close}?" if close else f"; valid: {', '.join(names) or 'none'}"


def closest(name: str, valid: Iterable[str]) -> str | None:
    """Returns the most similar of the valid names; None if none is similar."""
    return next(iter(difflib.get_close_matches(name, list(valid), n=1, cutoff=0.5)), None)
