"""Merges shards into a store: assigns documents to splits and concatenates arrays, streaming."""

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_jax.data_pipeline.build.shard import Unit, open_shard
from bert_jax.data_pipeline.errors import UserError, count
from bert_jax.data_pipeline.sources import SourceSpec, kind_of
from bert_jax.data_pipeline.sources.finding import printable
from bert_jax.data_pipeline.store.manifest import ARRAYS, SPLITS, token_type
from bert_jax.data_pipeline.store.writer import ArrayWriter, write_manifest
from bert_jax.data_pipeline.text.sentences import splitter
from bert_jax.data_pipeline.text.wikitext import UNKNOWN
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer

FEW_DOCUMENTS = 4  # a source with fewer documents gets a warning
_MUCH = 0.25  # share of the tokens held out beyond the share asked for, above which a build warns
_SHOWN_TEMPLATES = 10
_SMALLEST_HELD_OUT = 2  # NSP takes its random second sentence from another document


class _Run(NamedTuple):
    """Consecutive documents of one shard that belong to the same split."""

    source: int
    documents: np.ndarray
    sentences: np.ndarray
    tokens: np.ndarray


def merge(
    units: Sequence[Unit],
    sources: Sequence[SourceSpec],
    tokenizer: Tokenizer,
    folder: Path,
    *,
    left_out: Sequence[Mapping[str, Any]],
    held_out_share: float,
    build_digest: str,
) -> list[dict[str, Any]]:
    """Writes a complete store folder from finished shards; returns the manifest's source entries.

    Args:
        left_out: `Found.entry()` of each source.

    Raises:
        UserError: a source without any text after cleaning.
    """
    shutil.rmtree(folder, ignore_errors=True)
    kind = token_type(tokenizer.vocab_size)
    of_source = [[unit for unit in units if unit.source is spec] for spec in sources]
    limits = [_held_out_limit(own, kind, held_out_share) for own in of_source]
    entries = [
        {**_entry(spec, own, kind), "left_out": out}
        for spec, own, out in zip(sources, of_source, left_out, strict=True)
    ]
    languages = sorted({spec.language for spec in sources})
    files: dict[str, dict[str, Any]] = {}

    def runs(held_out: bool) -> Iterator[_Run]:
        for source, own in enumerate(of_source):
            for unit in own:
                yield from _runs(unit, kind, source, limits[source], held_out)

    for split in SPLITS:
        held_out = split == "held_out"
        sizes = [Counter[str]() for _ in sources]
        for run in runs(held_out):
            sizes[run.source]["documents"] += len(run.documents)
            sizes[run.source]["sentences"] += len(run.sentences)
            sizes[run.source]["tokens"] += len(run.tokens)
        for entry, size in zip(entries, sizes, strict=True):
            entry["splits"][split] = {n: size[n] for n in ("documents", "sentences", "tokens")}
        language_of = [languages.index(spec.language) for spec in sources]
        written = _write_split(
            folder / split, runs(held_out), sum(sizes, Counter()), language_of, tokenizer.vocab_size
        )
        files |= {f"{split}/{name}": value for name, value in written.items()}
    _check_yield(entries)
    _warn_of_much_held_out(sources, entries, held_out_share)
    write_manifest(
        folder,
        tokenizer=tokenizer,
        sources=entries,
        languages=languages,
        held_out_share=held_out_share,
        build_digest=build_digest,
        files=files,
    )
    return entries


def held_out_count(documents: int, share: float) -> int:
    """Returns the number of held-out documents: the given share, at least two, at most half."""
    return min(max(round(share * documents), _SMALLEST_HELD_OUT), documents // 2)


def _held_out_limit(units: Sequence[Unit], kind: np.dtype, share: float) -> int:
    """Returns the highest hash of a held-out document of this source, -1 if none is held out.

    Duplicate texts count once: they share a hash and so stay in one split.
    """
    hashes = [open_shard(unit, kind).hashes for unit in units]
    distinct = np.unique(np.concatenate([*hashes, np.empty(0, np.uint64)]))
    held_out = held_out_count(len(distinct), share)
    return int(distinct[held_out - 1]) if held_out else -1


def _runs(unit: Unit, kind: np.dtype, source: int, limit: int, held_out: bool) -> Iterator[_Run]:
    shard = open_shard(unit, kind)
    kept = shard.documents > 0
    documents = shard.documents[kept]
    side = np.array([int(value) <= limit for value in shard.hashes[kept]], bool)
    sentence_at = np.concatenate([[0], np.cumsum(documents, dtype=np.int64)])
    token_at = np.concatenate([[0], np.cumsum(shard.sentences, dtype=np.int64)])[sentence_at]
    for a, b in pairwise([0, *(np.flatnonzero(np.diff(side)) + 1).tolist(), len(documents)]):
        if a < b and side[a] == held_out:
            sentences = shard.sentences[sentence_at[a] : sentence_at[b]]
            yield _Run(source, documents[a:b], sentences, shard.tokens[token_at[a] : token_at[b]])


def _write_split(
    folder: Path,
    runs: Iterator[_Run],
    size: Counter[str],
    language_of: Sequence[int],
    vocab_size: int,
) -> dict[str, dict[str, Any]]:
    lengths = {"tokens": size["tokens"], "sentence_lengths": size["sentences"]}
    lengths |= dict.fromkeys(ARRAYS.keys() - {*lengths, "token_counts"}, size["documents"])
    counts = np.zeros(vocab_size, np.int64)
    with ExitStack() as opened:

        def writer(name: str, dtype: np.dtype, length: int) -> ArrayWriter:
            return opened.enter_context(ArrayWriter(folder / f"{name}.npy", dtype, length))

        writers = {
            name: writer(name, np.dtype(ARRAYS[name] or token_type(vocab_size)), length)
            for name, length in lengths.items()
        }
        for run in runs:
            writers["tokens"].append(run.tokens)
            writers["sentence_lengths"].append(run.sentences)
            writers["document_lengths"].append(run.documents)
            for name, index in (("source", run.source), ("language", language_of[run.source])):
                writers[f"document_{name}"].append(np.full(len(run.documents), index, np.uint16))
            counts += np.bincount(run.tokens, minlength=vocab_size)
        writers["token_counts"] = writer("token_counts", counts.dtype, vocab_size)
        writers["token_counts"].append(counts)
        return {f"{name}.npy": writer.close() for name, writer in writers.items()}


def _entry(spec: SourceSpec, units: Sequence[Unit], kind: np.dtype) -> dict[str, Any]:
    """Returns the manifest entry of a source, with its splits still empty."""
    summaries = [open_shard(unit, kind).summary for unit in units]
    total: Counter[str] = Counter()
    rules: Counter[str] = Counter()
    skipped: Counter[str] = Counter()
    for summary in summaries:
        total.update({k: v for k, v in summary.items() if isinstance(v, int)})
        rules.update(summary["rules"])
        skipped.update(summary["skipped"])
    cut_files = [printable(file) for summary in summaries for file in summary["cut_files"]]
    return {
        "name": spec.name,
        "kind": spec.kind,
        "language": spec.language,
        "splitter": splitter(),
        "files": len({part.path for unit in units for part in unit.ranges}),
        "bytes": sum(unit.bytes for unit in units),
        "documents": total["documents"],
        "characters": total["characters"],
        **_rule_counts(rules),
        **({"skipped": dict(sorted(skipped.items()))} if skipped else {}),
        "dropped": {
            "documents": total["dropped_documents"],
            "sentences": total["dropped_sentences"],
        },
        "warnings": _warnings(spec, total, cut_files),
        "splits": {},
    }


def _rule_counts(rules: Counter[str]) -> dict[str, dict[str, int]]:
    """Returns the counts of the rules, and of the unknown templates that are most frequent."""
    unknown = [(rule, times) for rule, times in rules.items() if rule.startswith(UNKNOWN)]
    if not unknown:
        return {"rules": dict(rules)}
    known = {rule: times for rule, times in rules.items() if not rule.startswith(UNKNOWN)}
    known["unknown_template"] = sum(times for _, times in unknown)
    frequent = sorted(unknown, key=lambda item: (-item[1], item[0]))[:_SHOWN_TEMPLATES]
    return {
        "rules": known,
        "unknown_templates": {rule.removeprefix(UNKNOWN): times for rule, times in frequent},
    }


def _warnings(spec: SourceSpec, total: Counter[str], cut_files: Sequence[str]) -> list[str]:
    warnings = []
    if cut_files:
        kind = kind_of(spec)
        warnings.append(
            f"{count(len(cut_files), 'file')} with {kind.CUT_BECAUSE} (such as {cut_files[0]}): "
            f"cut into {total['cut_documents']:,} documents of {spec.document_lines} lines; "
            f"{kind.CUT_REMEDY}, or choose another length with ,lines=N in --source"
        )
    kept = total["documents"] - total["dropped_documents"]
    if kept < FEW_DOCUMENTS:
        warnings.append(
            f"only {count(kept, 'document')} with text: too few to hold any out or to draw random "
            "second sentences from; next-sentence prediction needs several in each split"
        )
    return warnings


def _warn_of_much_held_out(
    sources: Sequence[SourceSpec], entries: Sequence[dict[str, Any]], share: float
) -> None:
    """Adds a warning where few, long documents leave far less text to train on than was asked."""
    for spec, entry in zip(sources, entries, strict=True):
        held_out, train = entry["splits"]["held_out"], entry["splits"]["train"]
        tokens = held_out["tokens"] + train["tokens"]
        several = held_out["documents"] + train["documents"] >= FEW_DOCUMENTS  # else `_warnings`
        if several and held_out["tokens"] > (share + _MUCH) * tokens:
            remedy = kind_of(spec).CUT_REMEDY
            entry["warnings"].append(
                f"{held_out['tokens'] / tokens:.0%} of the tokens are held out, because documents "
                "are held out as a whole; more and shorter ones leave more text to train on"
                f"{f': {remedy}, or add ,lines=N to --source' if remedy else ''}"
            )


def _check_yield(entries: Sequence[dict[str, Any]]) -> None:
    for entry in entries:
        if not any(split["documents"] for split in entry["splits"].values()):
            documents, files = count(entry["documents"], "document"), count(entry["files"], "file")
            raise UserError(
                f"source {entry['name']!r}: no text left of {documents} in {files} after cleaning; "
                "check its kind and path"
            )
