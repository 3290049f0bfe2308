"""Parses the source frames in the header of a compiled program's HLO text.

The tables FileNames, FunctionNames, FileLocations and StackFrames precede the computations; an
instruction refers to its innermost frame by id (xla/hlo/ir/stack_frames.cc, openxla/xla).
"""

import dataclasses
import re
from pathlib import PurePosixPath

_NUMBERS = re.compile(r"(\w+)=(\d+)")


@dataclasses.dataclass(frozen=True)
class Frame:
    """A source location of an instruction."""

    file: str
    line: int
    function: str = ""

    def within(self, package: str) -> str | None:
        """Returns the file's path below the package's folder, None if it is outside."""
        parts = PurePosixPath(self.file).parts
        if package not in parts:
            return None
        inner = parts[len(parts) - parts[::-1].index(package) :]
        # A checkout with the package's name may hold a virtual environment.
        return None if "site-packages" in inner else "/".join(inner)


def read_frames(text: str) -> dict[int, tuple[Frame, int]]:
    """Returns frames by id, each with the id of its caller's frame (0: none).

    XLA prints the caller's id plus one (frame 1, which has no caller, refers to itself); if the
    first frame refers to 0, ids are not shifted.
    """
    files, functions = _table(text, "FileNames"), _table(text, "FunctionNames")
    locations = {n: _numbers(row) for n, row in _table(text, "FileLocations").items()}
    rows = {n: _numbers(row) for n, row in _table(text, "StackFrames").items()}
    shift = min((row.get("parent_frame_id", 0) for row in rows.values()), default=0)
    frames = {}
    for number, row in rows.items():
        at = locations.get(row.get("file_location_id", 0), {})
        frame = Frame(
            files.get(at.get("file_name_id", 0), "").strip('"'),
            at.get("line", 0),
            functions.get(at.get("function_name_id", 0), "").strip('"'),
        )
        frames[number] = (frame, row.get("parent_frame_id", 0) - shift)
    return frames


def _table(text: str, name: str) -> dict[int, str]:
    """Returns the rows `id content` after the line with the table's name, up to an empty line."""
    start = text.find(f"\n{name}\n")
    if start < 0:
        return {}
    start += len(name) + 2
    end = text.find("\n\n", start)
    rows = (line.partition(" ") for line in text[start : None if end < 0 else end].splitlines())
    return {int(number): content for number, _, content in rows if number.isdigit()}


def _numbers(row: str) -> dict[str, int]:
    return {key: int(value) for key, value in _NUMBERS.findall(row)}
