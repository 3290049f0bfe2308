"""Durations on the command line: 90s, 60m, 1.5h, 2d, 8h30m."""

import math
import re

from bert_jax.errors import UsageError

_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}  # seconds
_PARTS = re.compile("".join(rf"(?:(\d+(?:\.\d+)?){unit})?" for unit in _UNITS), re.ASCII)


def parse(flag: str, text: str) -> float:
    """Returns the seconds of a duration; UsageError, naming the flag, if it is none or zero."""
    match = _PARTS.fullmatch(text)
    numbers = match.groups(default="0") if match else ()
    seconds = sum(float(n) * unit for n, unit in zip(numbers, _UNITS.values(), strict=False))
    if not 0 < seconds < math.inf:
        raise UsageError(
            f"--{flag}={text}: give a duration above zero with its units: 90s, 60m, 1.5h, 8h30m or "
            "2d"
        )
    return seconds
