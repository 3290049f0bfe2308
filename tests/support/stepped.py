"""Programs that move in turn, from one request to the next, so that a test interleaves them.

Each is a thread, and only one thread runs at a time: a program waits before every request (`pause`)
until the test lets it take a step. A killed one makes no request any more.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator


class KilledError(BaseException):
    """The program is killed at this point."""


class Program:
    """A function at work in a thread, which has not begun before the first step."""

    def __init__(self, name: str, work: Callable[[], object]):
        self.name, self._work = name, work
        self.at = "the start"  # the request before which it waits; "" once it has ended
        self.until = 0.0  # before which it does not continue, if it sleeps
        self.result: object = None
        self.error: BaseException | None = None
        self.fault = ""  # "before" or "after" the next request: it fails
        self._is_dead = False
        self._go, self._waits = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return bool(self.at)

    def step(self) -> None:
        """Makes the request before which it waits, and all that follows until the next."""
        if self.is_alive:
            self._go.release()
            self._waits.acquire()

    def kill(self) -> None:
        self._is_dead = True
        while self.is_alive:
            self.step()
        self._thread.join()

    def pause(self, at: str) -> None:
        """Waits, in its own thread, before a request."""
        if self._is_dead:
            raise KilledError
        self.at = at
        self._waits.release()
        self._go.acquire()
        if self._is_dead:
            raise KilledError

    def _run(self) -> None:
        _CURRENT.program = self
        self._go.acquire()
        try:
            if not self._is_dead:
                self.result = self._work()
        except BaseException as error:
            self.error = error
        self.at = ""
        self._waits.release()


_CURRENT = threading.local()


def current() -> Program | None:
    """The program in whose thread this is called, None outside of any."""
    return getattr(_CURRENT, "program", None)


@contextlib.contextmanager
def unstepped() -> Iterator[None]:
    """What a test looks up in the thread of a program is no request of that program."""
    program, _CURRENT.program = current(), None
    try:
        yield
    finally:
        _CURRENT.program = program
