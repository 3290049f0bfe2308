"""Rows of a table whose quotes enclose values, as in RFC 4180."""

import csv
from collections.abc import Iterator
from typing import Final

LONGEST: Final = 1 << 27  # characters of a value; the csv module's own limit is 131,072
_ADVICE: Final = "remove the white space, or enclose the entire value in quotes and double its own"


class QuoteError(Exception):
    """A quote that does not close, is followed by text, or would be text after white space."""

    def __init__(self, row: int, problem: str, advice: str = "") -> None:
        """
        Args:
            row: the number of the first line of the row, from 1.
            advice: what to do, if that is not to double quotes.
        """
        super().__init__(problem)
        self.row, self.problem, self.advice = row, problem, advice


def enclosed_rows(lines: Iterator[str], delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yields the number of the first line of each row, from 1, and its values; none for a blank
    line. QuoteError as there.

    lines: with line ends.
    """
    csv.field_size_limit(LONGEST)
    of_row: list[str] = []

    def kept() -> Iterator[str]:
        for line in lines:
            of_row.append(line)
            yield line

    reader = csv.reader(kept(), delimiter=delimiter, strict=True)
    while True:
        number = reader.line_num + 1
        of_row.clear()
        try:
            values = next(reader, None)
        except csv.Error as error:
            raise QuoteError(number, str(error)) from None
        if values is None:
            return
        for value in values:
            if _has_late_quote(value) and _enclosed(value) not in "".join(of_row):
                raise QuoteError(
                    number, f"white space before the quote of {value.strip()[:40]}", _ADVICE
                )
        yield number, values


def _has_late_quote(value: str) -> bool:
    return value[:1].isspace() and value.lstrip().startswith('"')


def _enclosed(value: str) -> str:
    doubled = value.replace('"', '""')
    return f'"{doubled}"'
