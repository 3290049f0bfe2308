"""`bert-jax embed`: vectors of texts, or of their tokens."""

from collections.abc import Sequence
from pathlib import Path

from absl import flags

from bert_jax.commands.command import Command, define_cpu_devices, need
from bert_jax.commands.kinds import vectors
from bert_jax.commands.paths import define_input, define_output, define_overwrite, model_paths


def _define_embed(values: flags.FlagValues, words: Sequence[str]) -> None:
    define_input(values, "model", "folder of an exported or imported model", locate=model_paths)
    define_input(values, "input", "file with a text on every line")
    out = "file to write: .npy, or .parquet with --pooling=none"
    define_output(values, "out", out, vectors)
    define_overwrite(values)
    layers = "layers to read: 0 (embeddings) to the last, such as -1, -4: or 0,6,12"
    flags.DEFINE_string("layers", "-1", layers, flag_values=values)
    flags.DEFINE_enum(
        "join", "concat", ["concat", "mean"], "how layers are joined", flag_values=values
    )
    flags.DEFINE_enum(
        "pooling",
        None,
        ["mean", "cls", "max", "pooled", "none"],
        "over the tokens of a line (default: as the model's folder says, or mean); none: one "
        "vector a token",
        flag_values=values,
    )
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


def _run_embed(values: flags.FlagValues, words: Sequence[str]) -> None:
    need(values, "model", "input", "out")
    from bert_jax.runtime import compile_cache, cpu

    # The same bits on any number of cores, for a run that is resumed.
    cpu.use_cpu_devices(values.cpu_devices)
    compile_cache.use()
    cpu.keep_memory()
    from bert_jax.api.embed import Settings, embed
    from bert_jax.runtime.console import console

    settings = Settings(values.layers, values.join, values.pooling, values.spans, values.batch_size)
    model, lines, out = Path(values.model), Path(values.input), Path(values.out)
    console.print(embed(model, lines, out, settings, overwrite=values.overwrite))


COMMANDS = {
    "embed": Command(
        "write the vectors of texts or tokens",
        "bert-jax embed --model=exported --input=lines.txt --out=vectors.npy",
        _define_embed,
        _run_embed,
    ),
}
