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
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else f"; valid: {', '.join(names) or 'none'}"
