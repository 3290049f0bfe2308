"""Merges shards into a store: assigns documents to splits and copies arrays, shard by shard."""

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.data_pipeline.sources import SourceSpec, kind_of
from bert_jax.data_pipeline.sources.finding import printable
from bert_jax.data_pipeline.store.manifest import SPLITS
from bert_jax.data_pipeline.store.quality import SHORT
from bert_jax.data_pipeline.store.writer import write_manifest
from bert_jax.data_pipeline.store_build.documents import Documents, read_documents
from bert_jax.data_pipeline.store_build.duplicates import NO_DUPLICATE, count_pairs, find_duplicates
from bert_jax.data_pipeline.store_build.held_out_documents import LARGEST_SHARE, assign_splits
from bert_jax.data_pipeline.store_build.rule_losses import large_losses
from bert_jax.data_pipeline.store_build.shard_files import Unit, read_in_parts, read_summary
from bert_jax.data_pipeline.store_build.split_writer import SplitWriter
from bert_jax.data_pipeline.text.sentences import splitter
from bert_jax.data_pipeline.text.wikitext import UNKNOWN
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError, count

FEW_DOCUMENTS = 4  # a source with fewer documents gets a warning
_MUCH = 0.25  # share of the tokens held out beyond the share asked for, above which a build warns
_SHOWN_TEMPLATES = 10
_COUNTED = ("documents", "sentences", "tokens", "words")


def merge(
    units: Sequence[Unit],
    sources: Sequence[SourceSpec],
    tokenizer: Tokenizer,
    folder: Path,
    *,
    left_out: Sequence[Mapping[str, Any]],
    settings: Mapping[str, Any],
    build_digest: str,
) -> list[dict[str, Any]]:
    """Writes a complete store folder from finished shards; returns the manifest's source entries.

    Args:
        left_out: `Found.entry()` of each source.
        settings: of the build, which `build_digest` identifies, "dedup" and "held_out_share" among
            them.

    Raises:
        UserError: a source without any text after cleaning.
    """
    shutil.rmtree(folder, ignore_errors=True)
    documents = read_documents(units, sources)
    dedup, share = settings["dedup"], settings["held_out_share"]
    kept = find_duplicates(dedup, documents, units, folder.with_name("duplicates"))
    splits = assign_splits(documents, kept == NO_DUPLICATE, len(sources), share)
    repeated = count_pairs(kept, documents.source, len(sources))
    entries = [
        {**_entry(spec, [unit for unit in units if unit.source is spec], sum(pairs)), "left_out": o}
        for spec, pairs, o in zip(sources, repeated.tolist(), left_out, strict=True)
    ]
    if dedup != "none":
        for entry, pairs in zip(entries, repeated.tolist(), strict=True):
            entry["duplicates"] = dict(zip([spec.name for spec in sources], pairs, strict=True))
    counts = [_counts(documents, splits == n, len(sources)) for n in range(len(SPLITS))]
    _enter_splits(entries, documents, splits, counts)
    _check_yield(entries)
    _warn_of_much_held_out(sources, entries, LARGEST_SHARE if share is None else share)
    languages = sorted({spec.language for spec in sources})
    language_of = np.array([languages.index(spec.language) for spec in sources], np.uint16)
    writers = [
        SplitWriter(folder / split, of_sources.sum(0), tokenizer.vocab_size)
        for split, of_sources in zip(SPLITS, counts, strict=True)
    ]
    files, unknown = _write_splits(
        units, documents, splits, language_of, writers, tokenizer.special.unk
    )
    for split, of_sources in zip(SPLITS, unknown.tolist(), strict=True):
        for entry, value in zip(entries, of_sources, strict=True):
            entry["splits"][split]["unknown"] = value
    write_manifest(
        folder,
        tokenizer=tokenizer,
        sources=entries,
        languages=languages,
        held_out_share=share,
        build_digest=build_digest,
        build=settings,
        files=files,
    )
    return entries


def _counts(documents: Documents, chosen: np.ndarray, sources: int) -> np.ndarray:
    """Returns how much of each source is chosen, in the units of `_COUNTED`, [sources, units]."""
    counts = np.zeros((sources, len(_COUNTED)), np.int64)
    ones = np.ones(len(chosen), np.int64)
    units = np.stack([ones, documents.sentences, documents.tokens, documents.words], 1)
    np.add.at(counts, documents.source[chosen], units[chosen])
    return counts


def _enter_splits(
    entries: Sequence[dict[str, Any]],
    documents: Documents,
    splits: np.ndarray,
    counts: Sequence[np.ndarray],
) -> None:
    """Puts what each split has of each source into the sources' entries."""
    for n, (split, of_sources) in enumerate(zip(SPLITS, counts, strict=True)):
        short = documents.source[(splits == n) & (documents.tokens < SHORT)]
        counted = np.bincount(short, minlength=len(entries)).tolist()
        for entry, values, few in zip(entries, of_sources.tolist(), counted, strict=True):
            entry["splits"][split] = {**dict(zip(_COUNTED, values, strict=True)), "short": few}


def _write_splits(
    units: Sequence[Unit],
    documents: Documents,
    splits: np.ndarray,
    language_of: np.ndarray,
    writers: Sequence[SplitWriter],
    unknown_id: int,
) -> tuple[dict[str, dict[str, Any]], np.ndarray]:
    """Writes the arrays of all splits, reading the tokens of every shard once; returns
    their digests, and how many tokens are unknown: int64 [splits, sources].

    Args:
        language_of: number of the language of each source.
        unknown_id: of [UNK].
    """
    unknown = np.zeros((len(writers), len(language_of)), np.int64)
    with ExitStack() as opened:
        for writer in writers:
            opened.enter_context(writer)
        for unit, own in zip(units, documents.of_units(), strict=True):
            sizes = documents.sentences[own], documents.tokens[own]
            for part, lengths, tokens in read_in_parts(unit, writers[0].kind, *sizes):
                here = slice(own.start + part.start, own.start + part.stop)
                for number, writer in enumerate(writers):
                    chosen = splits[here] == number
                    source = documents.source[here][chosen]
                    own_tokens = tokens[np.repeat(chosen, documents.tokens[here])]
                    if len(source):  # all of one source
                        unknown[number, source[0]] += np.count_nonzero(own_tokens == unknown_id)
                    writer.append(
                        tokens=own_tokens,
                        sentence_lengths=lengths[np.repeat(chosen, documents.sentences[here])],
                        document_lengths=documents.sentences[here][chosen],
                        document_source=source,
                        document_language=language_of[source],
                    )
        files = {name: entry for writer in writers for name, entry in writer.close().items()}
        return files, unknown


def _entry(spec: SourceSpec, units: Sequence[Unit], repeated: int) -> dict[str, Any]:
    """Returns the manifest entry of a source, with its splits still empty."""
    summaries = [read_summary(unit) for unit in units]
    total, rules, taken, skipped = (Counter[str]() for _ in range(4))
    for summary in summaries:
        total.update({k: v for k, v in summary.items() if isinstance(v, int)})
        rules.update(summary["rules"])
        taken.update(summary["taken"])
        skipped.update(summary["skipped"])
    much = large_losses(taken, total["characters"])
    cut_files = {file: None for summary in summaries for file in summary["cut_files"]}
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
        **({"rules_taking_much": much} if much else {}),
        **({"skipped": dict(sorted(skipped.items()))} if skipped else {}),
        "dropped": {
            "documents": total["dropped_documents"],
            "sentences": total["dropped_sentences"],
        },
        "warnings": _warnings(spec, total, list(cut_files), repeated),
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


def _warnings(
    spec: SourceSpec, total: Counter[str], cut_files: Sequence[str], repeated: int
) -> list[str]:
    warnings = []
    if cut_files:
        kind, name = kind_of(spec), printable(Path(cut_files[0]).name)
        warnings.append(
            f"{count(len(cut_files), 'file')} with {kind.cut_because} (such as {name}): "
            f"cut into {total['cut_documents']:,} documents of {spec.document_lines} lines; "
            f"{kind.cut_remedy}, or choose another length with ,lines=N in --source"
        )
    kept = total["documents"] - total["dropped_documents"] - repeated
    if kept < FEW_DOCUMENTS:
        warnings.append(
            f"only {count(kept, 'document')} with text: too few to hold several out and to draw "
            "random second sentences from; next-sentence prediction needs several in each split"
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
            remedy = kind_of(spec).cut_remedy
            entry["warnings"].append(
                f"{held_out['tokens'] / tokens:.0%} of the tokens are held out, because documents "
                "are held out as a whole; more and shorter ones leave more text to train on"
                f"{f': {remedy}, or add ,lines=N to --source' if remedy else ''}"
            )


def _check_yield(entries: Sequence[dict[str, Any]]) -> None:
    for entry in entries:
        if not any(split["documents"] for split in entry["splits"].values()):
            documents, files = count(entry["documents"], "document"), count(entry["files"], "file")
            repeated = sum(entry.get("duplicates", {}).values())
            after = f"cleaning and {repeated:,} duplicates" if repeated else "cleaning"
            raise UserError(
                f"source {entry['name']!r}: no text left of {documents} in {files} after {after}; "
                "check its kind and path"
            )
