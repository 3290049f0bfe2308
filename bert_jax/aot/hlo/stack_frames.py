"""The source of a compiled program's instructions: the tables at the head of its HLO text.

FileNames, FunctionNames, FileLocations and StackFrames stand before the computations; an
instruction names its innermost frame by number (xla/hlo/ir/stack_frames.cc, openxla/xla).
"""

import dataclasses
import re
from pathlib import PurePosixPath

_NUMBERS = re.compile(r"(\w+)=(\d+)")


@dataclasses.dataclass(frozen=True)
class Frame:
    """A place in the source, from which an instruction comes."""

    file: str
    line: int
    function: str = ""

    def within(self, package: str) -> str | None:
        """The file's path below the package's folder, None where it lies elsewhere."""
        parts = PurePosixPath(self.file).parts
        if package not in parts:
            return None
        inner = parts[len(parts) - parts[::-1].index(package) :]
        # A checkout with the package's name may hold a virtual environment.
        return None if "site-packages" in inner else "/".join(inner)


def read(text: str) -> dict[int, tuple[Frame, int]]:
    """Frames by number, each with the number of the frame that called it (0: none).

    XLA prints a frame's caller as its number plus one (frame 1, which has none, names itself); a
    text in which the first frame names 0 has them as they are.
    """
    files, functions = _table(text, "FileNames"), _table(text, "FunctionNames")
    locations = {n: _numbers(row) for n, row in _table(text, "FileLocations").items()}
    frames = {n: _numbers(row) for n, row in _table(text, "StackFrames").items()}
    shift = min((row.get("parent_frame_id", 0) for row in frames.values()), default=0)
    found = {}
    for number, row in frames.items():
        at = locations.get(row.get("file_location_id", 0), {})
        frame = Frame(
            files.get(at.get("file_name_id", 0), "").strip('"'),
            at.get("line", 0),
            functions.get(at.get("function_name_id", 0), "").strip('"'),
        )
        found[number] = (frame, row.get("parent_frame_id", 0) - shift)
    return found


def _table(text: str, name: str) -> dict[int, str]:
    """Rows `number content` below a line that is the table's name, up to an empty line."""
    start = text.find(f"\n{name}\n")
    if start < 0:
        return {}
    start += len(name) + 2
    end = text.find("\n\n", start)
    rows = (line.partition(" ") for line in text[start : None if end < 0 else end].splitlines())
    return {int(number): content for number, _, content in rows if number.isdigit()}


def _numbers(row: str) -> dict[str, int]:
    return {key: int(value) for key, value in _NUMBERS.findall(row)}
