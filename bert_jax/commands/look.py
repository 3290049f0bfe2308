"""`bert-jax look`: what a model attends to, its nearest words, the senses of a word."""

from collections.abc import Sequence

from absl import flags

from bert_jax.commands.command import Command, define_cpu_devices, need
from bert_jax.commands.kinds import page
from bert_jax.commands.paths import define_input, define_output, model_paths
from bert_jax.errors import UsageError

_MODEL = "folder of a model, or the workdir of a run, also as WORKDIR@STEP"


def _define(values: flags.FlagValues) -> None:
    """Defines the flags of every verb."""
    define_input(values, "model", _MODEL, locate=model_paths)
    define_output(values, "out", "page to write, .html", page)
    define_cpu_devices(values)


def _start(values: flags.FlagValues) -> None:
    """Readies JAX, before anything else of it is imported."""
    from bert_jax.runtime import compile_cache, cpu

    cpu.use_cpu_devices(values.cpu_devices)
    compile_cache.use()


def _define_attention(values: flags.FlagValues, words: Sequence[str]) -> None:
    _define(values)


def _run_attention(values: flags.FlagValues, words: Sequence[str]) -> None:
    need(values, "model", "out")
    if not 1 <= len(words) <= 2:
        raise UsageError('give a text, such as "The cat sat.", or two that are read as a pair')
    _start(values)
    from bert_jax.api.attention import attention
    from bert_jax.api.vector_evaluation import load_model
    from bert_jax.reporting.attention_page import write_attention
    from bert_jax.runtime.console import console

    found = attention(load_model(values.model), words)
    write_attention(
        values.out, texts=words, tokens=found.tokens, segments=found.segments,
        special=found.special, weights=found.weights, facts={"model": values.model},
    )  # fmt: skip
    layers, heads, tokens, _ = found.weights.shape
    console.print(f"{values.out}: {layers} layers of {heads} heads, {tokens} tokens")


COMMANDS = {
    "look attention": Command(
        "write a page with the attention of every head over a text or a pair",
        'bert-jax look attention --model=exported --out=page.html "The girl ran to a local pub."',
        _define_attention,
        _run_attention,
        arguments=" TEXT [TEXT]",
    ),
}
