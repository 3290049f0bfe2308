"""Shows something again and again, as `watch` of Unix does."""

import sys
import time
from collections.abc import Callable
from typing import Final

_CLEAR: Final = "\033[H\033[2J"  # of a terminal


def again_and_again(show: Callable[[], bool], seconds: int) -> None:
    """Calls a function until it returns False, which says that nothing new will come.

    On a terminal each showing replaces the one before; elsewhere an empty line is between them.
    """
    between = _CLEAR if sys.stdout.isatty() else "\n"
    if sys.stdout.isatty():
        print(_CLEAR, end="")
    while show():
        sys.stdout.flush()
        time.sleep(seconds)
        print(between, end="")
