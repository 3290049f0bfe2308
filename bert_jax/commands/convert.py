"""`bert-jax convert` and `fill`: what comes of a run."""

from collections.abc import Sequence

from absl import flags

from bert_jax.commands.command import Verb, need
from bert_jax.errors import UsageError


def _define_export(values: flags.FlagValues, words: Sequence[str]) -> None:
    flags.DEFINE_string("workdir", None, "folder of a pretraining run", flag_values=values)
    flags.DEFINE_string("out", None, "folder to write", flag_values=values)
    flags.DEFINE_integer("step", None, "checkpoint (default: the newest)", 0, flag_values=values)


def _run_export(values: flags.FlagValues, words: Sequence[str]) -> None:
    need(values, "workdir", "out")
    from bert_jax.convert.export import run_export

    run_export(values.workdir, values.out, values.step)


def _define_fill(values: flags.FlagValues, words: Sequence[str]) -> None:
    flags.DEFINE_string("model", None, "an exported folder", flag_values=values)
    flags.DEFINE_integer("top_k", 5, "fills to show for each mask", 1, flag_values=values)


def _run_fill(values: flags.FlagValues, words: Sequence[str]) -> None:
    need(values, "model")
    if not words:
        raise UsageError('give at least one text with a mask, like "Paris is in [MASK]."')
    from bert_jax.commands.fill import print_fills

    print_fills(values.model, words, values.top_k)


VERBS = {
    "convert export": Verb(
        "write a checkpoint as a folder that transformers loads",
        "bert-jax convert export --workdir=run --out=exported",
        _define_export,
        _run_export,
    ),
    "fill": Verb(
        "fill the masks in texts",
        'bert-jax fill --model=exported "Paris is the [MASK] of France."',
        _define_fill,
        _run_fill,
        words=" TEXT...",
    ),
}
