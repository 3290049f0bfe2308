"""Shows runs again and again, as `watch` of Unix does."""

import contextlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from bert_jax.errors import UserError
from bert_jax.reporting.status import Status, read_status
from bert_jax.runtime.streams import TolerantStream
from bert_jax.storage.remote import is_transient, storage_errors

_CLEAR: Final = "\033[H\033[2J"  # of a terminal


def again_and_again(show: Callable[[bool], bool], seconds: int, *, only_prints: bool) -> None:
    """Calls a function until it returns False, which says that nothing new will come, or Ctrl-C.

    On a terminal each showing replaces the one before; elsewhere an empty line is between them.

    Args:
        show: it takes whether it was called before.
        only_prints: end also once output cannot be written, as when the reader of a pipe has left.
    """
    between = _CLEAR if sys.stdout.isatty() else "\n"
    if sys.stdout.isatty():
        print(_CLEAR, end="")
    again = False
    with contextlib.suppress(KeyboardInterrupt):
        while show(again):
            again = True
            sys.stdout.flush()
            if only_prints and isinstance(sys.stdout, TolerantStream) and sys.stdout.is_cut:
                return
            time.sleep(seconds)
            print(between, end="")


def read_runs(folders: Sequence[str], *, again: bool) -> tuple[list[Status], dict[str, UserError]]:
    """Returns the runs in folders, and by folder the errors of those that cannot be read.

    again: all were read before; otherwise an error is raised, since a name may be misspelled.
    """
    runs, unread = [], {}
    for folder in folders:
        try:
            with storage_errors(folder):  # what is removed while it is read
                runs.append(read_status(folder))
        except UserError as error:
            if not again:
                raise
            unread[folder] = error
    return runs, unread


def goes_on(runs: Sequence[Status], unread: Mapping[str, UserError]) -> bool:
    """Returns whether a run is running, or one may be that storage cannot read for the moment."""
    causes = [error.__cause__ for error in unread.values()]
    return any(run.working for run in runs) or any(c and is_transient(c) for c in causes)
