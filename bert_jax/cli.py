"""`bert-jax VERB`: one table of verbs, each with its own flags. Heavy modules load where used."""

import dataclasses
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from absl import flags

from bert_jax.config import nearest
from bert_jax.errors import DONE, FAILED, STOPPED, USAGE, StoppedError, UsageError, UserError


@dataclasses.dataclass(frozen=True)
class Verb:
    """One thing the program does."""

    says: str
    example: str
    define: Callable[[flags.FlagValues, Sequence[str]], None]
    run: Callable[[flags.FlagValues, Sequence[str]], None]  # flags, words after the flags
    words: str = ""  # what may follow the flags


def _need(values: flags.FlagValues, *names: str) -> None:
    for name in names:
        if not values[name].value:
            raise UsageError(f"--{name}=… is missing ({values[name].help})")


def _define_source(values: flags.FlagValues) -> None:
    text = (
        "KIND:PATH[,name=NAME][,lang=CODE], kinds wikiextractor, books, lines, python (no path); "
        "may be given several times"
    )
    flags.DEFINE_multi_string("source", [], text, flag_values=values)


def _define_tokenizer(values: flags.FlagValues, words: Sequence[str]) -> None:
    _define_source(values)
    flags.DEFINE_string("out", None, "the tokenizer.json to write", flag_values=values)
    size = "entries, special tokens included"
    flags.DEFINE_integer("vocab_size", 30522, size, 100, flag_values=values)
    flags.DEFINE_bool("cased", False, "keep case and accents", flag_values=values)


def _run_tokenizer(values: flags.FlagValues, words: Sequence[str]) -> None:
    _need(values, "source", "out")
    from data_pipeline.build import train_tokenizer
    from data_pipeline.sources import parse_source

    sources = [parse_source(text) for text in values.source]
    tokenizer = train_tokenizer(sources, values.vocab_size, lowercase=not values.cased)
    tokenizer.save(Path(values.out))
    print(f"{tokenizer.vocab_size:,} entries in {values.out}")


def _define_build(values: flags.FlagValues, words: Sequence[str]) -> None:
    _define_source(values)
    flags.DEFINE_string("tokenizer", None, "a tokenizer.json or vocab.txt", flag_values=values)
    flags.DEFINE_bool("cased", False, "the vocab.txt keeps case and accents", flag_values=values)
    flags.DEFINE_string("out", None, "folder of the new token store", flag_values=values)
    share = "share of each source's documents kept apart for evaluation"
    flags.DEFINE_float("held_out_share", 0.01, share, 0, 0.5, flag_values=values)
    flags.DEFINE_integer("workers", None, "processes (default: all cores)", 1, flag_values=values)


def _run_build(values: flags.FlagValues, words: Sequence[str]) -> None:
    _need(values, "source", "tokenizer", "out")
    from data_pipeline.build import build_store
    from data_pipeline.sources import parse_source
    from data_pipeline.tokenizer import Tokenizer

    build_store(
        [parse_source(text) for text in values.source],
        Tokenizer.load(Path(values.tokenizer), lowercase=not values.cased),
        Path(values.out),
        held_out_share=values.held_out_share,
        workers=values.workers,
    )


def _define_pretrain(values: flags.FlagValues, words: Sequence[str]) -> None:
    from bert_jax.config_file import define_config

    define_config(values, words)
    flags.DEFINE_string("workdir", None, "folder of the run", flag_values=values)
    devices = "on a CPU: act as so many devices"
    flags.DEFINE_integer("cpu_devices", None, devices, 1, flag_values=values)


def _run_pretrain(values: flags.FlagValues, words: Sequence[str]) -> None:
    _need(values, "config", "workdir")
    from bert_jax.config_file import read_config

    config = read_config(values)
    from bert_jax.sharding import use_cpu_devices
    from bert_jax.train import pretrain

    if values.cpu_devices:
        use_cpu_devices(values.cpu_devices)
    pretrain(config, values.workdir)


def _define_export(values: flags.FlagValues, words: Sequence[str]) -> None:
    flags.DEFINE_string("workdir", None, "folder of a pretraining run", flag_values=values)
    flags.DEFINE_string("out", None, "folder to write", flag_values=values)
    flags.DEFINE_integer("step", None, "checkpoint (default: the newest)", 0, flag_values=values)


def _run_export(values: flags.FlagValues, words: Sequence[str]) -> None:
    _need(values, "workdir", "out")
    from bert_jax.convert.export import run_export

    run_export(values.workdir, values.out, values.step)


def _define_fill(values: flags.FlagValues, words: Sequence[str]) -> None:
    flags.DEFINE_string("model", None, "an exported folder", flag_values=values)
    flags.DEFINE_integer("top_k", 5, "fills to show for each mask", 1, flag_values=values)


def _run_fill(values: flags.FlagValues, words: Sequence[str]) -> None:
    _need(values, "model")
    if not words:
        raise UsageError('give at least one text with a mask, like "Paris is in [MASK]."')
    from bert_jax.fill import print_fills

    print_fills(values.model, words, values.top_k)


def _define_demo(values: flags.FlagValues, words: Sequence[str]) -> None:
    flags.DEFINE_string("workdir", "demo_run", "folder for everything", flag_values=values)
    data = "your text, a file or folder (default: the documentation every Python carries)"
    flags.DEFINE_string("data", None, data, flag_values=values)
    steps = "training steps (default: a few minutes' worth)"
    flags.DEFINE_integer("steps", None, steps, 1, flag_values=values)


def _run_demo(values: flags.FlagValues, words: Sequence[str]) -> None:
    from bert_jax.demo import demo

    demo(Path(values.workdir), data=values.data, steps=values.steps)


VERBS = {
    "demo": Verb(
        "the whole way on this machine: text, tokenizer, store, pretraining, export, report",
        "bert-jax demo --data=/path/to/text",
        _define_demo,
        _run_demo,
    ),
    "data tokenizer": Verb(
        "train a WordPiece vocabulary",
        "bert-jax data tokenizer --source=books:/data/books --out=tokenizer.json",
        _define_tokenizer,
        _run_tokenizer,
    ),
    "data build": Verb(
        "make a token store from text",
        "bert-jax data build --source=wikiextractor:/data/wiki --source=books:/data/books "
        "--tokenizer=vocab.txt --out=store",
        _define_build,
        _run_build,
    ),
    "pretrain": Verb(
        "train a model; run again, it goes on from its newest checkpoint",
        "bert-jax pretrain --config=wiki_books_small --config.data.store=store --workdir=run",
        _define_pretrain,
        _run_pretrain,
    ),
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


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb; returns the exit code."""
    try:
        return _run(list(sys.argv[1:] if argv is None else argv))
    except UsageError as error:
        print(f"usage: {error}; see `bert-jax --help`", file=sys.stderr)
        return USAGE
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    except StoppedError as stopped:
        print(stopped, file=sys.stderr)
        return STOPPED
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        return 128 + signal.SIGINT


def _run(words: list[str]) -> int:
    if not words or words[0] in ("--help", "-h", "help"):
        print(_overview())
        return DONE if words else USAGE
    name = next((v for v in VERBS if words[: len(v.split())] == v.split()), None)
    if name is None:
        said = " ".join(words[:2] if words[0] in ("data", "convert") else words[:1])
        raise UsageError(f"there is no verb {said!r}{nearest(said, VERBS)}")
    verb, rest = VERBS[name], words[len(name.split()) :]
    values = flags.FlagValues()
    if any(word.startswith("--config") for word in rest):
        from bert_jax.config_file import resolve

        rest = resolve(rest)
    verb.define(values, rest)
    if "--help" in rest or "-h" in rest:
        print(_help(name, verb, values))
        return DONE
    try:
        arguments = values([name, *rest])[1:]
    except (flags.Error, ValueError, TypeError) as error:
        raise UsageError(" ".join(str(error).split())) from None
    if arguments and not verb.words:
        raise UsageError(f"{name} takes only --flag=value, not {arguments[0]!r}")
    verb.run(values, arguments)
    return DONE


def _overview() -> str:
    lines = ["bert-jax VERB [--flag=value ...]", ""]
    lines += [f"  {name:<16}{verb.says}" for name, verb in VERBS.items()]
    return "\n".join([*lines, "", "bert-jax VERB --help shows a verb's flags and an example."])


def _help(name: str, verb: Verb, values: flags.FlagValues) -> str:
    lines = [f"bert-jax {name} [--flag=value ...]{verb.words}", "", f"  {verb.says}", ""]
    for flag in values:
        default = values[flag].default
        shown = "" if default in (None, []) else f" (default {default})"
        lines.append(f"  --{flag:<16}{values[flag].help}{shown}")
    return "\n".join([*lines, "", "Example:", f"  {verb.example}"])
