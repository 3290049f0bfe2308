"""Runs one process of a Slurm job, and notes how it ended. srun starts it as each task.

FOLDER COMMAND…: the folder of exit codes; the process and its arguments. srun reports only the
largest of all exit codes, which hides an error that would occur again (1) beside a lost process
(43).
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from bert_jax.storage.atomic import write_text
from bert_jax.storage.regular_file import read_regular


def main(words: Sequence[str]) -> int:
    """Returns the exit code of the process, as a shell would."""
    folder, *command = words
    process: subprocess.Popen | None = None
    asked: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        # Slurm signals either all processes of a task or only this one.
        asked.append(number)
        if process:
            process.send_signal(number)

    signal.signal(signal.SIGTERM, stop)
    process = subprocess.Popen(command)
    if asked:  # before there was a process
        process.send_signal(asked[0])
    code = process.wait()
    with contextlib.suppress(OSError):  # a full disk: then the code that srun reports counts
        write_text(Path(folder, os.environ["SLURM_PROCID"]), str(code))
    return code if code >= 0 else 128 - code


def read_codes(folder: Path) -> dict[str, int]:
    """Returns the exit codes that tasks have noted, by task, in the order in which they ended."""
    files = sorted(folder.glob("[0-9]*"), key=lambda path: path.stat().st_mtime_ns)
    return {path.name: int(read_regular(path)) for path in files}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
