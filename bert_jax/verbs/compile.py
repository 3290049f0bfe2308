"""`bert-jax compile`: what a config will do on a TPU slice, without one."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import flags

from bert_jax.errors import FAILED, UsageError, UserError
from bert_jax.verbs.verb import Verb, need

if TYPE_CHECKING:
    from bert_jax.config import Config
    from launch.slices import Slice


def _define_compile(values: flags.FlagValues, words: Sequence[str]) -> None:
    from bert_jax.config_file import define_config

    define_config(values, words)
    topology = "a TPU slice: v3-32, v4-128, v5e-16, v5p-128, v6e-256, tpu7x-64; several: 2xv5e-256"
    flags.DEFINE_string(
        "topology", None, f"{topology} (default: the one the config is meant for)",
        flag_values=values,
    )  # fmt: skip
    flags.DEFINE_string("phase", "all", "of which phase, from 0, or all", flag_values=values)
    flags.DEFINE_bool("json", False, "as one JSON object", flag_values=values)


def _run_compile(values: flags.FlagValues, words: Sequence[str]) -> int | None:
    need(values, "config")
    from bert_jax.config_file import path_of, read_config

    config = read_config(values)
    of = _slice(values)
    phases = _phases(values.phase, config)
    from bert_jax.aot import topology

    topology.prepare()  # before anything imports JAX
    from bert_jax.aot import report, text
    from bert_jax.terminal import working

    made = report.make(path_of(values).stem, config, of, phases, working)
    if values.json:
        import json

        from bert_jax.records.metrics import strict

        print(json.dumps(strict(report.as_dict(made)), allow_nan=False))
    else:
        print(text.render(made))
    return None if made.fits else FAILED


def _slice(values: flags.FlagValues) -> "Slice":
    from bert_jax.config_file import path_of, slice_of
    from launch import slices

    name = values.topology or slice_of(path_of(values))
    if not name:
        raise UsageError("--topology=… is missing: this config is meant for no TPU slice")
    try:
        return slices.find(name)
    except ValueError as error:
        raise UserError(f"--topology: {error}") from None


def _phases(said: str, config: "Config") -> list[int]:
    """Numbers of phases, from 0."""
    every = list(range(len(config.phases)))
    if said == "all":
        return every
    if not said.isdecimal() or int(said) not in every:
        raise UserError(f"--phase={said}: give one from 0 to {every[-1]}, or all")
    return [int(said)]


VERBS = {
    "compile": Verb(
        "compile the training step for a TPU slice, without one: memory, time, collectives",
        "bert-jax compile --config=wiki_books_large --topology=v5e-256",
        _define_compile,
        _run_compile,
    ),
}
