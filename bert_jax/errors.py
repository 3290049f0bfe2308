"""How the program ends: its exit codes, and what carries them."""

from data_pipeline.errors import UserError

DONE = 0
FAILED = 1  # UserError: bad input, said in one line
USAGE = 2  # the command line cannot be read
STOPPED = 42  # asked to stop, saved; the same command goes on

__all__ = ["DONE", "FAILED", "STOPPED", "USAGE", "StoppedError", "UsageError", "UserError"]


class UsageError(Exception):
    """A command line that cannot be read."""


class StoppedError(Exception):
    """The run was asked to stop and has saved itself; the same command goes on from there."""
