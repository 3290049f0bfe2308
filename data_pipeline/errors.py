"""The one exception a user can cause."""


class UserError(Exception):
    """Bad input: one line that says what, where, and what to do.

    The command line prints the message and exits with status 1; no traceback.
    """
