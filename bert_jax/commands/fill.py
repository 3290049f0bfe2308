"""`bert-jax fill`: predicts the masked tokens of texts."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

from bert_jax.commands.command import Command, need
from bert_jax.commands.paths import define_input, model_paths
from bert_jax.errors import UsageError

if TYPE_CHECKING:
    from bert_jax.api.model import Fill


def _define_fill(values: flags.FlagValues, words: Sequence[str]) -> None:
    define_input(
        values, "model", "folder of an exported model, or hf:OWNER/NAME", locate=model_paths
    )
    flags.DEFINE_integer("top_k", 5, "number of predictions for each mask", 1, flag_values=values)


def _run_fill(values: flags.FlagValues, words: Sequence[str]) -> None:
    need(values, "model")
    if not words:
        raise UsageError('give at least one text with a mask, such as "Paris is in [MASK]."')
    print_fills(values.model, words, values.top_k)


def print_fills(model: Path | str, texts: Sequence[str], top_k: int) -> None:
    """Prints each text and the most likely tokens for its masks; UserError if the folder cannot be
    loaded, or a text has no [MASK]."""
    from bert_jax.api.model import load
    from bert_jax.runtime.console import console

    loaded = load(model)
    for text in texts:
        fills = table(loaded.fill_mask(text, top_k))
        console.print(f"{text}\n{fills}")


def table(fills: Sequence[Sequence["Fill"]]) -> str:
    """Formats fills: one line per fill of a single mask, or one line per mask if there are several,
    so that any number of masks is readable."""
    from rich.table import Table

    from bert_jax.runtime.console import as_text

    shown = [[f"{fill.probability:6.1%}  {fill.token}" for fill in mask] for mask in fills]
    if len(shown) == 1:
        return "\n".join(f"  {fill}" for fill in shown[0])
    grid = Table.grid(padding=(0, 2))
    for number, mask in enumerate(shown, start=1):
        grid.add_row(f"  mask {number}", *mask)
    return as_text(grid)


COMMANDS = {
    "fill": Command(
        "predict the masked tokens of texts",
        'bert-jax fill --model=exported "Paris is the [MASK] of France."',
        _define_fill,
        _run_fill,
        arguments=" TEXT...",
    ),
}
