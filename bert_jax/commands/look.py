"""`bert-jax data verify`, `inspect` and `batch`: looking at data."""

from collections.abc import Sequence

from absl import flags

from bert_jax.commands.command import Verb, check_out, check_page, need
from bert_jax.errors import UsageError


def _define_store(values: flags.FlagValues, text: str = "folder of a token store") -> None:
    flags.DEFINE_string("store", None, text, flag_values=values)


def _define_verify(values: flags.FlagValues, words: Sequence[str]) -> None:
    _define_store(values)


def _run_verify(values: flags.FlagValues, words: Sequence[str]) -> None:
    need(values, "store")
    from bert_jax.reporting.dataset import verify

    verify(values.store)


def _define_inspect(values: flags.FlagValues, words: Sequence[str]) -> None:
    from bert_jax.config.files import define_config

    _define_store(values)
    define_config(values, words, default="base")
    flags.DEFINE_integer("phase", 0, "whose batches, from 0", 0, flag_values=values)
    flags.DEFINE_enum("split", "train", ["train", "held_out"], "which text", flag_values=values)
    flags.DEFINE_integer("examples", 5, "decoded examples to show", 0, flag_values=values)
    flags.DEFINE_string("html", None, "a page to write, with plots", flag_values=values)


def _run_inspect(values: flags.FlagValues, words: Sequence[str]) -> None:
    need(values, "store")
    check_page(values.html)
    from bert_jax.config.files import read_config
    from bert_jax.reporting.dataset import inspect

    inspect(
        values.store,
        read_config(values),
        phase=values.phase,
        split_name=values.split,
        examples=values.examples,
        page=values.html,
    )


def _define_batch(values: flags.FlagValues, words: Sequence[str]) -> None:
    flags.DEFINE_string("workdir", None, "folder of a pretraining run", flag_values=values)
    flags.DEFINE_integer("step", None, "which step, from 0", 0, flag_values=values)
    _define_store(values, "where the run's token store lies now (default: where it was)")
    rows = "FIRST:END or one row (default: 4 are shown, all written)"
    flags.DEFINE_string("rows", None, rows, flag_values=values)
    flags.DEFINE_string("out", None, "an .npz file to write", flag_values=values)


def _run_batch(values: flags.FlagValues, words: Sequence[str]) -> None:
    need(values, "workdir")
    if values.step is None:
        raise UsageError("--step=… is missing (which step, from 0)")
    from bert_jax.reporting.dataset import batch, is_batch

    check_out(values.out, is_batch, "batch")

    batch(values.workdir, values.step, store_path=values.store, rows=values.rows, out=values.out)


VERBS = {
    "data verify": Verb(
        "check every byte and every id of a token store",
        "bert-jax data verify --store=store",
        _define_verify,
        _run_verify,
    ),
    "data inspect": Verb(
        "show what a token store holds and the examples made of it",
        "bert-jax data inspect --store=store --config=base --html=store.html",
        _define_inspect,
        _run_inspect,
    ),
    "data batch": Verb(
        "show the very batch that a step of a run saw",
        "bert-jax data batch --workdir=run --step=100 --out=batch.npz",
        _define_batch,
        _run_batch,
    ),
}
