"""`bert-jax data`: from text to a token store."""

import json
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from bert_jax.commands.command import Verb, check_out, need
from bert_jax.errors import UserError

ALGORITHMS = ("wordpiece", "unigram", "bpe")
KINDS = "a tokenizer.json, a vocab.txt or a SentencePiece .model"


def _define_source(values: flags.FlagValues) -> None:
    text = (
        "KIND:PATH[,name=NAME][,lang=CODE], kinds wikiextractor, books, lines, python (no path); "
        "may be given several times"
    )
    flags.DEFINE_multi_string("source", [], text, flag_values=values)


def _define_tokenizer(values: flags.FlagValues, words: Sequence[str]) -> None:
    _define_source(values)
    flags.DEFINE_string("out", None, "the tokenizer.json to write", flag_values=values)
    model = "wordpiece, or SentencePiece's unigram or bpe"
    flags.DEFINE_enum("model", "wordpiece", ALGORITHMS, model, flag_values=values)
    size = "entries, special tokens included"
    flags.DEFINE_integer("vocab_size", 30522, size, 100, flag_values=values)
    flags.DEFINE_bool("cased", False, "keep case", flag_values=values)


def _run_tokenizer(values: flags.FlagValues, words: Sequence[str]) -> None:
    need(values, "source", "out")
    check_out(values.out, _is_tokenizer, "tokenizer.json")
    from bert_jax.data_pipeline.build.build import train_tokenizer
    from bert_jax.data_pipeline.sources import parse_source

    sources = [parse_source(text) for text in values.source]
    tokenizer = train_tokenizer(
        sources, values.vocab_size, model=values.model, lowercase=not values.cased
    )
    try:
        tokenizer.save(Path(values.out))
    except OSError as error:
        raise UserError(
            f"{values.out}: cannot be written ({error.strerror}); what was there is untouched: "
            "make room or choose another --out"
        ) from None
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
    flags.DEFINE_bool("cased", False, "the vocab.txt keeps case and accents", flag_values=values)
    flags.DEFINE_string("out", None, "folder of the new token store", flag_values=values)
    share = "share of each source's documents kept apart for evaluation"
    flags.DEFINE_float("held_out_share", 0.01, share, 0, 0.5, flag_values=values)
    strict = "an error instead of leaving files, documents or sentences out"
    flags.DEFINE_bool("strict", False, strict, flag_values=values)
    flags.DEFINE_integer("workers", None, "processes (default: all cores)", 1, flag_values=values)


def _run_build(values: flags.FlagValues, words: Sequence[str]) -> None:
    need(values, "source", "tokenizer", "out")
    from bert_jax.data_pipeline.build.build import build_store
    from bert_jax.data_pipeline.sources import parse_source
    from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer

    build_store(
        [parse_source(text) for text in values.source],
        Tokenizer.load(Path(values.tokenizer), lowercase=not values.cased),
        Path(values.out),
        held_out_share=values.held_out_share,
        workers=values.workers,
        strict=values.strict,
    )


VERBS = {
    "data tokenizer": Verb(
        "train a vocabulary: WordPiece, or SentencePiece unigram or BPE",
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
}
