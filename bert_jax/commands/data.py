"""`bert-jax data`: trains vocabularies; builds, verifies and inspects token stores."""

import json
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from bert_jax.commands.command import Command, check_out, check_page, need
from bert_jax.errors import UsageError

ALGORITHMS = ("wordpiece", "unigram", "bpe")
DEDUP = ("none", "exact", "near")
KINDS = "a tokenizer.json, a vocab.txt or a SentencePiece .model"


def _define_source(values: flags.FlagValues) -> None:
    text = (
        "KIND:PATH[,name=NAME][,lang=CODE], kinds wikiextractor, books, lines (both with lines=N), "
        "dump, jsonl, csv, parquet, arrow, tfds (text=COLUMN, title=COLUMN), python (no path; "
        "packages=NAME+NAME for installed packages); may be repeated; docs/data.md has all options"
    )
    flags.DEFINE_multi_string("source", [], text, flag_values=values)
    folder = "where the prepared datasets are, for --source=tfds:NAME (default: as in tfds.load)"
    flags.DEFINE_string("data_dir", "", folder, flag_values=values)


def _define_tokenizer(values: flags.FlagValues, words: Sequence[str]) -> None:
    _define_source(values)
    flags.DEFINE_string("out", None, "tokenizer.json to write", flag_values=values)
    model = "wordpiece, or SentencePiece's unigram or bpe"
    flags.DEFINE_enum("model", "wordpiece", ALGORITHMS, model, flag_values=values)
    size = "number of entries, special tokens included"
    flags.DEFINE_integer("vocab_size", 30522, size, 100, flag_values=values)
    flags.DEFINE_bool("cased", False, "do not lower-case text", flag_values=values)


def _run_tokenizer(values: flags.FlagValues, words: Sequence[str]) -> None:
    need(values, "source", "out")
    check_out(values.out, _is_tokenizer, "tokenizer.json")
    from bert_jax.data_pipeline.build.vocabulary import train_tokenizer
    from bert_jax.data_pipeline.sources import parse_source
    from bert_jax.data_pipeline.storage.remote import check_local, storage_errors

    check_local(values.out)
    sources = [parse_source(text, values.data_dir) for text in values.source]
    lowercase = not values.cased
    tokenizer = train_tokenizer(sources, values.vocab_size, model=values.model, lowercase=lowercase)
    remedy = "; an existing file is unchanged: free disk space or choose another --out"
    with storage_errors(values.out, "cannot be written", remedy):
        tokenizer.save(Path(values.out))
    print(f"{tokenizer.vocab_size:,} entries in {values.out}")


def _is_tokenizer(file: Path) -> bool:
    try:
        spec = json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        return False
    return isinstance(spec, dict) and {"model", "added_tokens"} <= set(spec)


def _define_build(values: flags.FlagValues, words: Sequence[str]) -> None:
    _define_source(values)
    flags.DEFINE_string("tokenizer", None, KINDS, flag_values=values)
    flags.DEFINE_bool("cased", False, "vocab.txt is cased", flag_values=values)
    flags.DEFINE_string("out", None, "folder of the new token store", flag_values=values)
    share = "share of each source's documents held out for evaluation"
    flags.DEFINE_float("held_out_share", 0.01, share, 0, 0.5, flag_values=values)
    dedup = "leave out documents whose text an earlier one has: exactly, or nearly (MinHash)"
    flags.DEFINE_enum("dedup", "none", DEDUP, dedup, flag_values=values)
    strict = "fail instead of skipping files, documents or sentences"
    flags.DEFINE_bool("strict", False, strict, flag_values=values)
    workers = "number of worker processes (default: all cores)"
    flags.DEFINE_integer("workers", None, workers, 1, flag_values=values)
    shard = "I/N: build one of N parts on this machine, from 1; --merge makes the store of them"
    flags.DEFINE_string("shard", None, shard, flag_values=values)
    text = "make the store of the parts that --shard built; fail if one is missing"
    flags.DEFINE_bool("merge", False, text, flag_values=values)
    runner = "local: processes of this machine; beam: a pipeline, with its own options after --"
    flags.DEFINE_enum("runner", "local", ["local", "beam"], runner, flag_values=values)
    work = "folder of unfinished parts, local or gs:// (default: next to --out); may be repeated"
    flags.DEFINE_multi_string("work", [], work, flag_values=values)


def _run_build(values: flags.FlagValues, words: Sequence[str]) -> None:
    beam = _beam_options(values, words)
    need(values, "source", "tokenizer", "out")
    shard = _parse_shard(values.shard)
    if shard and values.merge:
        raise UsageError("--shard and --merge exclude each other: merge when all shards are built")
    from bert_jax.data_pipeline.build.build import build_shards, build_store
    from bert_jax.data_pipeline.sources import parse_source
    from bert_jax.data_pipeline.storage.remote import check_local
    from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer

    check_local(values.out)
    sources = [parse_source(text, values.data_dir) for text in values.source]
    tokenizer = Tokenizer.load(Path(values.tokenizer), lowercase=not values.cased)
    common = {
        "dedup": values.dedup,
        "work": values.work,
        "workers": values.workers,
        "strict": values.strict,
    }
    if shard:
        number, count = shard
        build_shards(sources, tokenizer, values.out, number=number, count=count, **common)
    else:
        share, merge = values.held_out_share, values.merge
        build_store(
            sources,
            tokenizer,
            values.out,
            held_out_share=share,
            merge_only=merge,
            beam=beam,
            **common,
        )


def _beam_options(values: flags.FlagValues, words: Sequence[str]) -> list[str] | None:
    """Returns the options of the pipeline, which are after --; None if there is none."""
    if values.runner != "beam":
        if words:
            raise UsageError(
                f"data build takes only --flag=value, not {words[0]!r}; only --runner=beam has "
                "options of its own, after --"
            )
        return None
    for name in ("shard", "workers", "merge"):
        if values[name].value:
            raise UsageError(f"--{name} and --runner=beam exclude each other: Beam shares the work")
    return list(words)


def _parse_shard(text: str | None) -> tuple[int, int] | None:
    """Parses I/N, None if it is not given."""
    if text is None:
        return None
    number, slash, count = text.partition("/")
    if not (slash and number.isdecimal() and count.isdecimal()):
        raise UsageError(f"--shard={text}: must be I/N, such as 17/96")
    if not 1 <= int(number) <= int(count):
        raise UsageError(f"--shard={text}: the first number must be between 1 and {int(count)}")
    return int(number), int(count)


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
    flags.DEFINE_integer("phase", 0, "phase of the config, from 0", 0, flag_values=values)
    flags.DEFINE_enum("split", "train", ["train", "held_out"], "split to show", flag_values=values)
    flags.DEFINE_integer("examples", 5, "number of decoded examples", 0, flag_values=values)
    flags.DEFINE_string("html", None, "HTML page to write, with plots", flag_values=values)


def _run_inspect(values: flags.FlagValues, words: Sequence[str]) -> None:
    need(values, "store")
    check_page(values.html)
    from bert_jax.config.files import read_config, words_of
    from bert_jax.reporting.dataset import inspect
    from bert_jax.training.initial_architecture import find_architecture

    inspect(
        values.store,
        read_config(values, find_architecture),
        phase=values.phase,
        split_name=values.split,
        examples=values.examples,
        page=values.html,
        words=words_of(values),
    )


def _define_export_examples(values: flags.FlagValues, words: Sequence[str]) -> None:
    from bert_jax.config.files import define_config
    from bert_jax.data_pipeline.export.formats import EXTRAS

    _define_store(values)
    define_config(values, words, default="base")
    flags.DEFINE_integer("phase", 0, "phase of the config, from 0", 0, flag_values=values)
    flags.DEFINE_enum("split", "train", ["train", "held_out"], "split", flag_values=values)
    flags.DEFINE_integer("epochs", 1, "number of epochs", 1, flag_values=values)
    kinds = "of transformers and datasets, or of google-research/bert"
    flags.DEFINE_enum("format", "parquet", sorted(EXTRAS), kinds, flag_values=values)
    flags.DEFINE_string("out", None, "folder to write", flag_values=values)


def _run_export_examples(values: flags.FlagValues, words: Sequence[str]) -> None:
    need(values, "store", "out")
    from bert_jax.config.files import read_config
    from bert_jax.training.examples import export_examples
    from bert_jax.training.initial_architecture import find_architecture

    export_examples(
        values.store,
        read_config(values, find_architecture),
        values.out,
        phase=values.phase,
        split_name=values.split,
        epochs=values.epochs,
        format_name=values.format,
    )


def _define_batch(values: flags.FlagValues, words: Sequence[str]) -> None:
    flags.DEFINE_string("workdir", None, "folder of a pretraining run", flag_values=values)
    flags.DEFINE_integer("step", None, "step, from 0", 0, flag_values=values)
    _define_store(values, "path of the run's token store (default: as in the run's config)")
    rows = "FIRST:END or one row (default: shows 4, writes all)"
    flags.DEFINE_string("rows", None, rows, flag_values=values)
    flags.DEFINE_string("out", None, ".npz file to write", flag_values=values)


def _run_batch(values: flags.FlagValues, words: Sequence[str]) -> None:
    need(values, "workdir")
    if values.step is None:
        raise UsageError("--step=… is missing (step, from 0)")
    from bert_jax.reporting.batch_view import batch, is_batch

    check_out(values.out, is_batch, "batch")
    batch(values.workdir, values.step, store_path=values.store, rows=values.rows, out=values.out)


COMMANDS = {
    "data tokenizer": Command(
        "train a vocabulary: WordPiece, or SentencePiece unigram or BPE",
        "bert-jax data tokenizer --source=books:/data/books --out=tokenizer.json",
        _define_tokenizer,
        _run_tokenizer,
    ),
    "data build": Command(
        "build a token store from text",
        "bert-jax data build --source=wikiextractor:/data/wiki --source=books:/data/books "
        "--tokenizer=vocab.txt --out=store",
        _define_build,
        _run_build,
        arguments=" [-- --runner=DataflowRunner ...]",
    ),
    "data verify": Command(
        "check every byte and every id of a token store",
        "bert-jax data verify --store=store",
        _define_verify,
        _run_verify,
    ),
    "data inspect": Command(
        "show the contents of a token store and the examples made from it",
        "bert-jax data inspect --store=store --config=base --html=store.html",
        _define_inspect,
        _run_inspect,
    ),
    "data export-examples": Command(
        "write the rows that a run trains on as files for other trainers",
        "bert-jax data export-examples --store=store --config=base --split=train --epochs=1 "
        "--format=parquet --out=examples",
        _define_export_examples,
        _run_export_examples,
    ),
    "data batch": Command(
        "show the batch that a step of a run trained on",
        "bert-jax data batch --workdir=run --step=100 --out=batch.npz",
        _define_batch,
        _run_batch,
    ),
}
