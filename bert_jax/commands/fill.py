"""`bert-jax fill`: what a model puts in the masks of texts, as a table."""

from collections.abc import Sequence
from pathlib import Path

from bert_jax.api import Fill, load
from bert_jax.runtime.console import console


def print_fills(model: Path | str, texts: Sequence[str], top_k: int) -> None:
    """Prints each text and the likeliest fills of its masks.

    Raises:
        UserError: the folder cannot be loaded, or a text has no [MASK].
    """
    loaded = load(model)
    for text in texts:
        console.print(text)
        console.print(table(loaded.fill_mask(text, top_k)))


def table(fills: Sequence[Sequence[Fill]]) -> str:
    """A line for each fill of the one mask, or for each mask of several: any number can be read."""
    shown = [[f"{fill.probability:6.1%}  {fill.token}" for fill in mask] for mask in fills]
    if len(shown) == 1:
        return "\n".join(f"  {fill}" for fill in shown[0])
    widths = [max(map(len, rank)) for rank in zip(*shown, strict=True)]
    lines = []
    for number, mask in enumerate(shown, start=1):
        cells = "  ".join(fill.ljust(width) for fill, width in zip(mask, widths, strict=True))
        lines.append(f"  mask {number:<{len(str(len(shown)))}}  {cells}".rstrip())
    return "\n".join(lines)
