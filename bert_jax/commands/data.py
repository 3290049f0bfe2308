"""`bert-jax data`: trains vocabularies; builds, verifies and inspects token stores."""

# Over 300 lines: the flags of each command on data stand beside what it does.

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

from bert_jax.commands.command import Command, define_number, need
from bert_jax.commands.kinds import batch_file, example_folder, page, store, vocabulary, work
from bert_jax.commands.paths import define_input, define_output, define_overwrite, model_paths
from bert_jax.errors import StorageError, UsageError, UserError

if TYPE_CHECKING:
    from bert_jax.data_pipeline.sources import SourceSpec

ALGORITHMS = ("wordpiece", "unigram", "bpe", "byte_bpe")
SPECIAL_TOKENS = ("modernbert", "roberta")
DEDUP = ("none", "exact", "near")
KINDS = "a tokenizer.json, a vocab.txt, a SentencePiece .model, or hf:OWNER/NAME[@REVISION]"


def _define_source(values: flags.FlagValues) -> None:
    from bert_jax.data_pipeline.sources import described

    text = f"{described()}; may be repeated; see docs/data.md"
    define_input(values, "source", text, locate=_text_of, repeated=True)
    folder = "where the prepared datasets are, for --source=tfds:NAME (default: as in tfds.load)"
    define_input(values, "data_dir", folder)
    partial = "take the first part of a split of --source=hf:NAME of which the hub has no more"
    flags.DEFINE_bool("allow_partial", False, partial, flag_values=values)


def _text_of(text: str, values: flags.FlagValues) -> list[Path]:
    """Returns the files and folders of text that a source names."""
    from bert_jax.data_pipeline.sources.finding import named

    return named(_source(text, values).path)


def _sources(values: flags.FlagValues) -> "list[SourceSpec]":
    kinds = {text.partition(":")[0] for text in values.source}
    for flag, kind in (("data_dir", "tfds"), ("allow_partial", "hf")):
        if values[flag].present and kind not in kinds:
            raise UsageError(f"--{flag} is for sources {kind}:…, and there is none; leave it out")
    return [_source(text, values) for text in values.source]


def _source(text: str, values: flags.FlagValues) -> "SourceSpec":
    """Parses a source; if the build was begun with a module that knows its kind, the error names
    that."""
    from bert_jax.data_pipeline import sources

    try:
        return sources.parse_source(text, values.data_dir or "", values.allow_partial)
    except UserError as error:
        kind = text.partition(":")[0]
        if kind in sources.KINDS or "work" not in values or not values.out:
            raise
        from bert_jax.data_pipeline.store_build.build import module_of

        if made := module_of(kind, values.out, values.work):
            raise UserError(f"{error}; {values.out} was built with {made}: add it") from None
        raise


def _define_tokenizer(values: flags.FlagValues, words: Sequence[str]) -> None:
    _define_source(values)
    define_output(values, "out", "tokenizer.json to write", vocabulary)
    define_overwrite(values)
    model = "wordpiece, SentencePiece's unigram or bpe, or BPE of bytes, which keeps case"
    flags.DEFINE_enum("model", "wordpiece", ALGORITHMS, model, flag_values=values)
    size = "number of entries, special tokens included"
    flags.DEFINE_integer("vocab_size", 30522, size, 100, flag_values=values)
    special = "special tokens and their ids, of byte_bpe (default: modernbert)"
    flags.DEFINE_enum("special_tokens", None, SPECIAL_TOKENS, special, flag_values=values)
    flags.DEFINE_bool("cased", False, "do not lower-case text", flag_values=values)


def _run_tokenizer(values: flags.FlagValues, words: Sequence[str]) -> None:
    need(values, "source", "out")
    from bert_jax.data_pipeline.store_build.vocabulary import train_tokenizer

    if values.special_tokens and values.model != "byte_bpe":
        raise UsageError(f"--special_tokens: --model={values.model} has BERT's; leave it out")
    if values["cased"].present and not values.cased and values.model == "byte_bpe":
        raise UsageError("--cased=False: --model=byte_bpe keeps case; leave it out")
    tokenizer = train_tokenizer(
        _sources(values),
        values.vocab_size,
        model=values.model,
        lowercase=not values.cased,
        special_tokens=values.special_tokens or "modernbert",
    )
    try:
        tokenizer.save(values.out, overwrite=values.overwrite)
    except StorageError as error:
        remedy = "an existing file is unchanged: free disk space or choose another --out"
        raise UserError(f"{error}; {remedy}") from None
    print(f"{tokenizer.vocab_size:,} entries in {values.out}")


def _define_build(values: flags.FlagValues, words: Sequence[str]) -> None:
    _define_source(values)
    define_input(values, "tokenizer", KINDS, locate=model_paths)
    flags.DEFINE_bool("cased", False, "vocab.txt is cased", flag_values=values)
    define_output(values, "out", "folder of the new token store", store)
    share = (
        "share of each source's documents held out for evaluation (default: 0.01, at least 20 "
        "documents where these are at most 0.05)"
    )
    define_number(values, "held_out_share", None, share, 0, 0.5)
    dedup = "remove duplicate documents: exact, or near (MinHash)"
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
    folders = "folder of unfinished parts, local or gs:// (default: next to --out); may be repeated"
    define_output(values, "work", folders, work, repeated=True)


def _run_build(values: flags.FlagValues, words: Sequence[str]) -> None:
    beam = _beam_options(values, words)
    need(values, "source", "tokenizer", "out")
    shard = _parse_shard(values.shard)
    if shard and values.merge:
        raise UsageError("--shard and --merge exclude each other: merge when all shards are built")
    if shard and values.held_out_share is not None:
        raise UsageError("--held_out_share is decided at the merge; give it with --merge instead")
    if values.cased and Path(values.tokenizer).suffix in (".json", ".model"):
        raise UsageError(f"--cased is for a vocab.txt; {values.tokenizer} says it: leave it out")
    from bert_jax.convert.model_folders import load_tokenizer
    from bert_jax.convert.tokenizer_files import lowercases
    from bert_jax.data_pipeline.store_build.build import build_shards, build_store, use_recorded

    sources = _sources(values)
    use_recorded([values.tokenizer, *(s.path for s in sources)], values.out, values.work)
    tokenizer = load_tokenizer(values.tokenizer, lowercase=not values.cased)
    if values.cased and lowercases(tokenizer):
        raise UsageError(f"--cased: {values.tokenizer} lower-cases text; leave it out")
    common = {name: values[name].value for name in ("dedup", "work", "workers", "strict")}
    if shard:
        number, count = shard
        build_shards(sources, tokenizer, values.out, number=number, count=count, **common)
    else:
        own = {"held_out_share": values.held_out_share, "merge_only": values.merge, "beam": beam}
        build_store(sources, tokenizer, values.out, **own, **common)


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
    define_input(values, "store", text)


def _run_verify(values: flags.FlagValues, words: Sequence[str]) -> None:
    need(values, "store")
    from bert_jax.reporting.dataset import verify

    verify(values.store)


def _define_inspect(values: flags.FlagValues, words: Sequence[str]) -> None:
    from bert_jax.config.config_files import define_config

    _define_store(values)
    define_config(values, words, default="base")
    flags.DEFINE_integer("phase", 0, "phase of the config, from 0", 0, flag_values=values)
    flags.DEFINE_enum("split", "train", ["train", "held_out"], "split to show", flag_values=values)
    flags.DEFINE_integer("examples", 5, "number of decoded examples", 0, flag_values=values)
    define_output(values, "html", "HTML page to write, with plots", page)


def _run_inspect(values: flags.FlagValues, words: Sequence[str]) -> None:
    need(values, "store")
    from bert_jax.config.config_files import words_of
    from bert_jax.reporting.dataset import inspect
    from bert_jax.training.resolve import read_config

    inspect(
        values.store,
        read_config(values),
        phase=values.phase,
        split_name=values.split,
        examples=values.examples,
        page=values.html,
        words=words_of(values),
    )


def _define_export_examples(values: flags.FlagValues, words: Sequence[str]) -> None:
    from bert_jax.config.config_files import define_config
    from bert_jax.data_pipeline.export.formats import EXTRAS

    _define_store(values)
    define_config(values, words, default="base")
    flags.DEFINE_integer("phase", 0, "phase of the config, from 0", 0, flag_values=values)
    flags.DEFINE_enum("split", "train", ["train", "held_out"], "split", flag_values=values)
    flags.DEFINE_integer("epochs", 1, "number of epochs", 1, flag_values=values)
    kinds = "of transformers and datasets, or of google-research/bert"
    flags.DEFINE_enum("format", "parquet", sorted(EXTRAS), kinds, flag_values=values)
    define_output(values, "out", "folder to write", example_folder)


def _run_export_examples(values: flags.FlagValues, words: Sequence[str]) -> None:
    need(values, "store", "out")
    from bert_jax.training.export_examples import export_examples
    from bert_jax.training.resolve import read_config

    export_examples(
        values.store,
        read_config(values),
        values.out,
        phase=values.phase,
        split_name=values.split,
        epochs=values.epochs,
        format_name=values.format,
    )


def _define_batch(values: flags.FlagValues, words: Sequence[str]) -> None:
    define_input(values, "workdir", "folder of a pretraining run")
    flags.DEFINE_integer("step", None, "step, from 0", 0, flag_values=values)
    _define_store(values, "path of the run's token store (default: as in the run's config)")
    rows = "FIRST:END or one row (default: shows 4, writes all)"
    flags.DEFINE_string("rows", None, rows, flag_values=values)
    define_output(values, "out", ".npz file to write", batch_file)


def _run_batch(values: flags.FlagValues, words: Sequence[str]) -> None:
    need(values, "workdir")
    if values.step is None:
        raise UsageError("--step=… is missing (step, from 0)")
    from bert_jax.reporting.batch_view import batch

    batch(values.workdir, values.step, store_path=values.store, rows=values.rows, out=values.out)


COMMANDS = {
    "data tokenizer": Command(
        "train a vocabulary: WordPiece, SentencePiece unigram or BPE, or byte-level BPE",
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
        checks_buckets=True,
    ),
    "data verify": Command(
        "check every byte and every id of a token store",
        "bert-jax data verify --store=store",
        lambda values, words: _define_store(values),
        _run_verify,
        takes_modules=False,
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
