"""Ends a program at a signal while C++ code, such as a compiler, holds its main thread."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Final

from bert_jax.runtime.console import Console, end_displays
from bert_jax.runtime.log import NOTICE, logger

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_POLL: Final = 1.0  # seconds


@contextlib.contextmanager
def ending_at_signals() -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP end the process with one line and 128 + their number.

    They are blocked in this thread and those that it starts, and received by a thread of their own,
    so that neither Python's handlers, which wait for C++ code to return, nor those of a C++ library
    run. Enter it before the library starts threads. A signal that is ignored stays ignored.
    """
    handled = {number for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN}
    over = threading.Event()

    def receive() -> None:
        while not over.is_set():
            if received := signal.sigtimedwait(handled, _POLL):
                name = signal.Signals(received.si_signo).name
                end_displays()
                logger.log(NOTICE, f"{name}: interrupted without a result")
                Console(stderr=True).show_cursor()  # which a progress bar hides
                os._exit(128 + received.si_signo)

    before = signal.pthread_sigmask(signal.SIG_BLOCK, handled)
    threading.Thread(target=receive, name="signals", daemon=True).start()
    try:
        yield
    finally:
        over.set()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
