"""`bert-jax look`: what a model attends to, its nearest words, the senses of a word."""

import json
from collections.abc import Sequence

from absl import flags

from bert_jax.commands.command import Command, define_cpu_devices, need
from bert_jax.commands.kinds import page
from bert_jax.commands.paths import define_input, define_output, model_paths
from bert_jax.errors import UsageError, count

_MODEL = "folder of a model, hf:OWNER/NAME, or the workdir of a run, also as WORKDIR@STEP"


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
    shown = f"{count(layers, 'layer')} of {count(heads, 'head')}, {count(tokens, 'token')}"
    console.print(f"{values.out}: {shown}")


def _define_neighbours(values: flags.FlagValues, words: Sequence[str]) -> None:
    _define(values)
    flags.DEFINE_integer("top_k", 10, "number of words for each word", 1, flag_values=values)
    flags.DEFINE_bool("json", False, "print one JSON object per word", flag_values=values)


def _run_neighbours(values: flags.FlagValues, words: Sequence[str]) -> None:
    need(values, "model")
    if not words:
        raise UsageError("give at least one word, such as bank")
    _start(values)
    from bert_jax.api.meanings import nearest_words
    from bert_jax.api.vector_evaluation import load_model
    from bert_jax.reporting.neighbours_page import write_neighbours
    from bert_jax.runtime.console import console

    found = nearest_words(load_model(values.model), words, count=values.top_k)
    for word, near in found.items():
        if values.json:
            print(json.dumps({"word": word, "neighbours": [one._asdict() for one in near]}))
        else:
            console.print("\n".join([word, *(f"  {one.cosine:5.2f}  {one.word}" for one in near)]))
    if values.out:
        write_neighbours(values.out, found, {"model": values.model})


def _define_senses(values: flags.FlagValues, words: Sequence[str]) -> None:
    _define(values)
    lines = "file with INDEX<TAB>SENTENCE<TAB>SENSE on every line; INDEX of the word, from 0"
    define_input(values, "input", lines)
    define_input(values, "labels", "file with the sense of each line of --input, without its own")


def _run_senses(values: flags.FlagValues, words: Sequence[str]) -> None:
    need(values, "model", "input", "out")
    _start(values)
    from bert_jax.api.senses import look_at_senses, read_occurrences, write_page
    from bert_jax.api.vector_evaluation import load_model
    from bert_jax.runtime.console import console
    from bert_jax.storage.read_files import local_path

    path = local_path(values.input)
    occurrences = read_occurrences(path, local_path(values.labels) if values.labels else None)
    found = look_at_senses(load_model(values.model), path, occurrences)
    console.print(write_page(values.out, found, values.model))


COMMANDS = {
    "look attention": Command(
        "write a page with the attention of every head over a text or a pair",
        'bert-jax look attention --model=exported --out=page.html "The girl ran to a local pub."',
        _define_attention,
        _run_attention,
        arguments=" TEXT [TEXT]",
    ),
    "look neighbours": Command(
        "print the nearest words of a word in the table of word embeddings",
        "bert-jax look neighbours --model=exported bank river",
        _define_neighbours,
        _run_neighbours,
        arguments=" WORD...",
    ),
    "look senses": Command(
        "write a page with a word in many sentences, layer by layer, coloured by sense",
        "bert-jax look senses --model=exported --input=bank.tsv --out=bank.html",
        _define_senses,
        _run_senses,
    ),
}
