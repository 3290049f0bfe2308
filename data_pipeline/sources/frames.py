"""Finds the text of a book in its file, without what frames it: the `# Title:` … `-------` header
of markdown collections, and Project Gutenberg's licence, whose wording changed over the years.
"""

import re
from pathlib import Path
from typing import Final, Literal

from bert_jax.errors import UserError

_GUTENBERG: Final = r"OF\s+(?:(?:THE|THIS)\s+)?(?:COPYRIGHTED\s+)?PROJECT\s+GUTENBERG"
_START: Final = re.compile(rf"\*[\s\\*]{{0,9}}START\s+{_GUTENBERG}", re.IGNORECASE)
# Of the licence that was at the beginning of a file until about 2003.
_SMALL_PRINT: Final = re.compile(r"[\s\\]*\*\s*END\W{0,3}THE\s+SMALL\s+PRINT", re.IGNORECASE)
_END: Final = re.compile(
    rf"(?:^[\s\\_#>]{{0,20}}|\*[\s\\*]{{0,9}})END\s+{_GUTENBERG}", re.IGNORECASE
)
_CLOSED: Final = re.compile(r"(?:\*\s?\*\s?\*|\*END\*)\s*$", re.IGNORECASE)
_CONTINUED: Final = 3  # lines after that of START, at most, that its title takes
_SMALL_PRINT_TO_START: Final = 200  # lines, at most, where a file has both
_LICENCE_LINES: Final = 600  # at most, of the licence after an END line
_TITLE: Final = "# Title:"
_FIELD: Final = re.compile(r"#|\w[\w ]{0,30}:|\s*$")
_RULE: Final = re.compile(r"-{3,}\s*$")
_HEADER_LINES: Final = 20  # the rule under a markdown header is within the first 20 lines

Part = Literal["text", "start", "frame"]


class Frames:
    """Divides the lines of one file into its texts and what frames them, one line at a time.

    Attributes:
        pieces: the first line of each text that has ended, from 0, and the line after it.
    """

    def __init__(self, path: Path) -> None:
        self.pieces: list[tuple[int, int | None]] = []
        self._path, self._number, self._start = path, -1, 0
        self._begun = 0  # the line, from 1, of the frame that began the text, if one did
        self._by_small_print = False
        self._after_end = 0  # lines that are neither empty nor of a text
        self._open_title = 0  # lines that may still be of the title on the START line
        self._is_text = True
        self._header: Literal["before", "inside", "none"] = "before"

    def part(self, line: str) -> Part:
        """Returns what the next line is; at "start", the text begins after it, and not before.

        Raises:
            UserError: a text begins inside another.
        """
        self._number += 1
        if _START.search(line) or self._is_small_print(line):
            self._begin(line)
            return "start"
        if self._continues_title(line) or self._ends_header(line):
            self._start = self._number + 1
            return "start"
        if self._is_text and _END.search(line):
            self.pieces.append((self._start, self._number))
            self._is_text, self._after_end = False, 0
        elif not self._is_text and line.strip():
            self._after_end += 1
        return "text" if self._is_text else "frame"

    def all_pieces(self) -> list[tuple[int, int | None]]:
        """Returns the texts after the last line; None is the end of the file."""
        return [*self.pieces, *([(self._start, None)] if self._is_text else [])]

    @property
    def is_open(self) -> bool:
        """Returns whether a frame began the last text and none ended it."""
        return self._is_text and bool(self._begun)

    @property
    def is_followed(self) -> bool:
        """Returns whether more than a licence follows the END line of a text that no frame began:
        another text, it may be, whose frame is lost as well."""
        return not self._begun and self._after_end > _LICENCE_LINES

    def _is_small_print(self, line: str) -> bool:
        return not self._begun and not self.pieces and bool(_SMALL_PRINT.match(line))

    def _begin(self, line: str) -> None:
        is_repeated = (
            self._by_small_print and self._number - self._begun < _SMALL_PRINT_TO_START
        )  # the other frame of the same text
        if self.is_open and not is_repeated:
            raise UserError(
                f"{self._path}: line {self._number + 1} begins a text of Project Gutenberg before "
                f"an END line ends that of line {self._begun}; split the file, or add the END line"
            )
        self._by_small_print = _START.search(line) is None
        self._begun, self._start, self._is_text = self._number + 1, self._number + 1, True
        self._open_title = 0 if _CLOSED.search(line) else _CONTINUED

    def _continues_title(self, line: str) -> bool:
        if not self._open_title:
            return False
        self._open_title = self._open_title - 1 if line.strip() else 0
        if not (self._open_title or line.strip()) or not _CLOSED.search(line):
            return False
        self._open_title = 0
        return True

    def _ends_header(self, line: str) -> bool:
        """Returns whether a line is the rule under a header, the first after `# Title:`."""
        if self._header == "before" and line.strip():
            self._header = "inside" if line.startswith(_TITLE) else "none"
        elif self._header == "inside":
            if _RULE.match(line):
                self._header = "none"
                return True
            if self._number >= _HEADER_LINES or not _FIELD.match(line):
                self._header = "none"
        return False
