"""The log: plain lines in a single process; time, level and process in a job of several.

    step 10/100  loss 5.213
    warning: run/checkpoints/12: damaged
    2026-11-22T17:03:21Z WARNING host-3 (process 3): run/checkpoints/12: damaged

`configure_logging` is called where a program starts: by the command line, and by a job. Results of
commands are not logged, but printed.
"""

import logging
import re
import sys
import time
from typing import Final

NOTICE: Final = 25  # no problem, but shown by all processes of a job, on standard error
_PREFIXES: Final = {logging.WARNING: "warning: ", logging.ERROR: "error: "}
# Characters that control a terminal or cannot be printed: control characters except line feed and
# tab, surrogates (names that are not valid UTF-8), and bidirectional overrides.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")

logging.addLevelName(NOTICE, "NOTICE")
# Lower packages, which may not import this file, log to their own `getLogger(__name__)` below it.
logger = logging.getLogger("bert_jax")


def configure_logging(process: str = "", *, quiet: bool = False) -> None:
    """Sends information to standard output, everything else to standard error.

    Args:
        process: this process in a job of several, such as "host-3 (process 3)".
        quiet: no information: in all processes of a job but the first.
    """
    out, err = _Handler("stdout", process), _Handler("stderr", process)
    out.addFilter(lambda record: record.levelno <= logging.INFO)
    err.setLevel(NOTICE)
    logger.handlers, logger.propagate = [out, err], False
    logger.setLevel(NOTICE if quiet else logging.INFO)


def plain(text: str) -> str:
    """Returns the text with terminal control characters replaced."""
    return _UNSAFE.sub("\ufffd", text)


class _Handler(logging.Handler):
    """Writes to the current `sys.stdout` or `sys.stderr`; a progress bar replaces them."""

    def __init__(self, stream: str, process: str):
        super().__init__()
        self._stream, self._process = stream, process

    def emit(self, record: logging.LogRecord) -> None:
        text, prefix = plain(self.format(record)), _PREFIXES.get(record.levelno, "")
        if self._process:
            when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
            prefix = f"{when} {record.levelname} {self._process}: "
            text = text.replace("\n", f"\n{prefix}")
        print(f"{prefix}{text}", file=getattr(sys, self._stream), flush=True)
