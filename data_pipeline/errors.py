"""What a user or a disk can cause, said in one line."""


class UserError(Exception):
    """Bad input: one line that says what, where, and what to do.

    The command line prints the message and exits with status 1; no traceback.
    """


class StorageError(Exception):
    """What has to be written cannot be written, or what has to be read is damaged: one line that
    says which, where, and what to do. The command line exits with status 45.
    """
