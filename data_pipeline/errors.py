"""Errors caused by user input or storage, each reported in one line."""

import difflib
from collections.abc import Iterable


class OneLineError(Exception):
    """An error whose message says everything: a notebook shows it without a traceback."""

    def _render_traceback_(self) -> list[str]:
        """Called by IPython."""
        return [f"{type(self).__name__}: {self}"]


class UserError(OneLineError):
    """Bad input: one line with the problem, its location and the remedy.

    The command line prints the message and exits with status 1; no traceback.
    """


class StorageError(OneLineError):
    """A required file cannot be written or is damaged: one line with the problem, its location and
    the remedy. The command line exits with status 45.
    """


def nearest(name: str, valid: Iterable[str]) -> str:
    """Returns the end of an error message: the nearest valid name, or all valid names."""
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else f"; valid: {', '.join(names) or 'none'}"
