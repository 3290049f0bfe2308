"""`bert-jax fill`: what a model puts in the masks of texts, as a table."""

from collections.abc import Sequence
from pathlib import Path

import rich.table
from rich.markup import escape

from bert_jax.api import Fill, load
from bert_jax.terminal import console


def print_fills(model: Path | str, texts: Sequence[str], top_k: int) -> None:
    """Prints each text and a table of the likeliest fills, one column for each of its masks.

    Raises:
        UserError: the folder cannot be loaded, or a text has no [MASK].
    """
    loaded = load(model)
    for text in texts:
        console.print(escape(text), table(loaded.fill_mask(text, top_k)))


def table(fills: Sequence[Sequence[Fill]]) -> rich.table.Table:
    """One row a rank, one column a mask."""
    made = rich.table.Table(box=None, show_header=len(fills) > 1, padding=(0, 2))
    for number, _ in enumerate(fills, start=1):
        made.add_column(f"mask {number}")
    for rank in zip(*fills, strict=True):
        made.add_row(*(f"{fill.probability:6.1%}  {escape(fill.token)}" for fill in rank))
    return made
