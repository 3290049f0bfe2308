"""Tables of a page in Markdown."""

from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, names: int) -> str:
    """Returns a table; columns after the first `names` are right-aligned."""
    rule = [*["---"] * names, *["---:"] * (len(header) - names)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rule, *rows))
