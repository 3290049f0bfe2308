"""Rows of a table of tabs, whether its quotes are text or enclose values.

Both are written: files such as GLUE's have quotes as they are in the text; pandas and csv enclose a
value that has a tab, a line end or a quote, and double the quotes in it.
"""

import csv
import io
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise

from bert_jax.data_pipeline.sources.enclosed_rows import LONGEST

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
    csv.field_size_limit(LONGEST)
    lines = io.StringIO(row, newline="\n")  # other ends, such as U+2028, are in a value
    try:
        found = [values for values in csv.reader(lines, delimiter=TAB, strict=True) if values]
    except csv.Error:
        return None
    return found[0] if len(found) == 1 and len(found[0]) == width else None


def fits_tab_row(text: str) -> bool:
    """Returns whether a row of a table of tabs can have a value: it has no tab and no line end."""
    return not any(end in text for end in "\t\n\r")


def tab_row(values: Sequence[str]) -> str:
    """Returns the line of values that fit, which `tab_rows` reads as they are: with their quotes as
    text, or enclosed where these would be read otherwise."""
    line = TAB.join(values)
    if _enclosed(line, len(values)) in (None, [*values]):
        return line
    doubled = (value.replace('"', '""') for value in values)
    return TAB.join(f'"{value}"' for value in doubled)
