"""`bert-jax embed`: vectors of texts, or of their tokens."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from absl import flags

from bert_jax.commands.command import Command, define_cpu_devices, need
from bert_jax.commands.kinds import vectors
from bert_jax.commands.paths import define_input, define_output, define_overwrite, model_paths

_DTYPES: Final = ("float32", "int8", "binary")


def _define_embed(values: flags.FlagValues, words: Sequence[str]) -> None:
    define_input(
        values,
        "model",
        "folder of an exported or imported model, or hf:OWNER/NAME",
        locate=model_paths,
    )
    define_input(values, "input", "file with a text on every line")
    out = "file to write: .npy, or .parquet with --pooling=none"
    define_output(values, "out", out, vectors)
    define_overwrite(values)
    define_vectors(
        values,
        "over the tokens of a line (default: as the model's folder says, or mean); none: one "
        "vector a token",
        "none",
    )
    prompt = "name of the folder's prompt to put before every line (default: its default one)"
    flags.DEFINE_string("prompt", None, prompt, flag_values=values)
    numbers = (
        "float32; int8: a quarter of the bytes, with the ranges in a file beside; binary: one bit "
        "a dimension"
    )
    flags.DEFINE_enum("dtype", "float32", list(_DTYPES), numbers, flag_values=values)
    flags.DEFINE_bool(
        "spans",
        False,
        "every line is TEXT<TAB>START:END; its vector is that of these characters",
        flag_values=values,
    )
    flags.DEFINE_integer(
        "batch_size",
        None,
        "rows of 128 tokens per batch, which texts share (8 for each CPU device, 32 for others)",
        1,
        flag_values=values,
    )
    define_cpu_devices(values)


def define_vectors(values: flags.FlagValues, pooling: str, *more: str) -> None:
    """Defines the flags that say which vector of a text is taken.

    pooling: help of --pooling; more: further choices of it.
    """
    layers = "layers to read: 0 (embeddings) to the last, such as -1, -4: or 0,6,12"
    flags.DEFINE_string("layers", "-1", layers, flag_values=values)
    join = "how layers are joined"
    flags.DEFINE_enum("join", "concat", ["concat", "mean"], join, flag_values=values)
    pools = ["mean", "cls", "max", "pooled", *more]
    flags.DEFINE_enum("pooling", None, pools, pooling, flag_values=values)
    dimensions = "first numbers of a vector that are kept (default: all)"
    flags.DEFINE_integer("dimensions", None, dimensions, 1, flag_values=values)


def _run_embed(values: flags.FlagValues, words: Sequence[str]) -> None:
    need(values, "model", "input", "out")
    from bert_jax.runtime import compile_cache, cpu

    # The same bits on any number of cores, for a run that is resumed.
    cpu.use_cpu_devices(values.cpu_devices)
    compile_cache.use()
    cpu.keep_memory()
    from bert_jax.api.embed import Settings, embed
    from bert_jax.runtime.console import console
    from bert_jax.storage.read_files import local_path

    settings = Settings(
        values.layers,
        values.join,
        values.pooling,
        values.spans,
        values.batch_size,
        prompt=values.prompt,
        dimensions=values.dimensions,
        dtype=values.dtype,
    )
    model, lines = local_path(values.model), local_path(values.input)
    console.print(embed(model, lines, Path(values.out), settings, overwrite=values.overwrite))


COMMANDS = {
    "embed": Command(
        "write the vectors of texts or tokens",
        "bert-jax embed --model=exported --input=lines.txt --out=vectors.npy",
        _define_embed,
        _run_embed,
    ),
}
