"""Rows of a table of tabs, whether its quotes are text or enclose values.

Both are written: files such as GLUE's have quotes as they are in the text; pandas and csv enclose a
value that has a tab, a line end or a quote, and double the quotes in it.
"""

import csv
from collections.abc import Iterator
from itertools import chain, pairwise

TAB = "\t"


def tab_rows(lines: Iterator[str], width: int) -> Iterator[tuple[int, list[str]]]:
    """Yields the number of the first line of each row, from 1, and its values; none for a
    blank line.

    Quotes enclose values only where they must: where they are doubled inside, or where otherwise
    there are more or fewer values than columns. So of two complete rows the first does not take the
    second, even if its last value begins with a quote.

    Args:
        lines: without line ends.
        width: the number of columns.
    """
    number, quotes, waiting = 1, 0, list[str]()
    for line, following in pairwise(chain(lines, [None])):
        if line is None:
            return
        waiting.append(line)
        quotes += line.count('"')
        if quotes % 2 and following is not None and _may_go_on(waiting[0], following, width):
            continue
        if values := _enclosed("\n".join(waiting), width):
            yield number, values
        else:
            for row, each in enumerate(waiting, start=number):
                yield row, each.split(TAB) if each else []
        number, quotes, waiting = number + len(waiting), 0, []


def _may_go_on(first: str, following: str, width: int) -> bool:
    """Returns whether a value of a row whose quotes are not even may go on after a line."""
    values = first.split(TAB)
    is_open = any(value.startswith('"') for value in values)
    return is_open and not len(values) == width == _width(following)


def _width(line: str) -> int:
    return len(line.split(TAB))


def _enclosed(row: str, width: int) -> list[str] | None:
    """Returns the values of a row of which quotes enclose some; None if its quotes are text."""
    if '"' not in row or ('""' not in row and "\n" not in row and _width(row) == width):
        return None
    try:
        values = next(csv.reader(row.splitlines(keepends=True), delimiter=TAB, strict=True))
    except csv.Error:
        return None
    return values if len(values) == width else None
