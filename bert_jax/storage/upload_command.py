"""The command that copies a folder to a bucket, for lines that have users run it."""

import shlex


def upload_command(folder: str, url: str, *flags: str) -> str:
    """Returns the command, which also completes a copy that was interrupted: `cp --recursive` would
    copy the folder into the one that is there. flags: of `gcloud storage rsync`, besides."""
    also = ("--recursive", "--no-ignore-symlinks")
    return shlex.join(("gcloud", "storage", "rsync", *also, *flags, folder, url))
