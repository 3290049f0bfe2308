"""Tables and names of a page in Markdown."""

import re
from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, names: int) -> str:
    """Returns a table; columns after the first `names` are right-aligned."""
    rule = [*["---"] * names, *["---:"] * (len(header) - names)]
    escaped = ([cell.replace("|", r"\|") for cell in cells] for cells in (header, rule, *rows))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in escaped)


def code(text: str) -> str:
    """Returns a text as code, between more backticks than it has in a row."""
    ticks = max(map(len, re.findall("`+", text)), default=0)
    fence, space = "`" * (ticks + 1), " " if ticks else ""
    return f"{fence}{space}{text}{space}{fence}"
