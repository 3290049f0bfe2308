"""Terminal output of a build: the files read and left out, and the resulting counts."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from bert_jax.data_pipeline.sources import Found, SourceSpec
from bert_jax.data_pipeline.store.manifest import SPLITS
from bert_jax.data_pipeline.store.quality import SHORT, concerns
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.data_pipeline.store_build.rule_losses import describe
from bert_jax.errors import UserError, count
from bert_jax.storage.progress import terminal

_log = logging.getLogger(__name__)
# Rows of the table: the share of one count in another.
_SHARES = (
    ("tokens that are [UNK]", "unknown", "tokens"),
    (f"documents of fewer than {SHORT} tokens", "short", "documents"),
)


def print_found(sources: Sequence[SourceSpec], found: Sequence[Found], progress: bool) -> None:
    """Prints the number of files of each source (if `progress`) and always the files left out."""
    for spec, result in zip(sources, found, strict=True):
        if progress:
            files = count(len(result.files), "file")
            terminal.print(escape(f"{spec.name}: {files} read as {spec.kind}"), soft_wrap=True)
        for line in result.describe():
            _log.warning(f"{spec.name}: left out: {line}")
        for warning in result.warnings:
            _log.warning(f"{spec.name}: {warning}")


def check_found(sources: Sequence[SourceSpec], found: Sequence[Found]) -> None:
    """Raises UserError for the first source that leaves out anything in its folder."""
    for spec, result in zip(sources, found, strict=True):
        if lines := result.describe():
            raise UserError(
                f"--strict: source {spec.name!r} leaves out {'; '.join(lines)}; "
                "move these files away, or build without --strict"
            )


def check_dropped(entries: Sequence[Mapping[str, Any]]) -> None:
    """Raises UserError for the first source (of a manifest) with dropped documents or sentences."""
    for entry in entries:
        lines = [f"{n:,} {unit}" for unit, n in sorted(entry["dropped"].items()) if n]
        if lines:
            raise UserError(
                f"--strict: {' and '.join(lines)} of source {entry['name']!r} have no text or no "
                "tokens and are left out; fix them, or build without --strict"
            )


def print_tables(entries: Sequence[dict[str, Any]], out: Path, built: int, seconds: float) -> None:
    """Prints the counts per source, how often each cleaning rule fired, and the bytes of text that
    were read in this time; none where all shards were there."""
    counts = Table("", *(entry["name"] for entry in entries), title="Token store")
    counts.add_row("files", *(f"{entry['files']:,}" for entry in entries))
    counts.add_row("MB", *(f"{entry['bytes'] / 1e6:.1f}" for entry in entries))
    counts.add_row("documents found", *(f"{entry['documents']:,}" for entry in entries))
    counts.add_row("… without text", *(f"{entry['dropped']['documents']:,}" for entry in entries))
    if any("duplicates" in entry for entry in entries):
        repeated = (f"{sum(entry['duplicates'].values()):,}" for entry in entries)
        counts.add_row("… duplicates", *repeated)
    dropped = (f"{entry['dropped']['sentences']:,}" for entry in entries)
    counts.add_row("sentences without tokens", *dropped)
    for split in SPLITS:
        for unit in ("documents", "sentences", "words", "tokens"):
            values = (f"{entry['splits'][split][unit]:,}" for entry in entries)
            counts.add_row(f"{split.replace('_', '-')} {unit}", *values)
    for name, key, whole in _SHARES:
        counts.add_row(name, *(_share(entry["splits"].values(), key, whole) for entry in entries))
    terminal.print(counts)
    rules = Table("rule", *(entry["name"] for entry in entries), title="Times a rule fired")
    for rule in sorted({rule for entry in entries for rule in entry["rules"]}):
        rules.add_row(rule, *(f"{entry['rules'].get(rule, 0):,}" for entry in entries))
    if rules.row_count:
        terminal.print(rules)
    for entry in entries:
        if losses := describe(entry):
            terminal.print(escape(losses), soft_wrap=True)
        _print_counts(entry, "besides the documents", "skipped")
        _print_counts(entry, "left out as unknown templates, most often", "unknown_templates")
    done = f"{built / 1e6:.1f} MB of text" if built else "merged"
    terminal.print(f"{escape(str(out))}: {done} in {seconds:.1f} s")


def _share(splits: Iterable[Mapping[str, int]], part: str, whole: str) -> str:
    """Returns what part of all splits something is: "3.2%"."""
    parts = [(split[part], split[whole]) for split in splits]
    own, total = map(sum, zip(*parts, strict=True))
    return f"{own / total:.1%}" if total else "-"


def _print_counts(entry: Mapping[str, Any], what: str, key: str) -> None:
    if counts := entry.get(key):
        shown = ", ".join(f"{times:,} {name}" for name, times in counts.items())
        terminal.print(escape(f"{entry['name']}: {what}: {shown}"), soft_wrap=True)


def print_warnings(entries: Sequence[dict[str, Any]], store: TokenStore) -> None:
    """Prints the warnings of a manifest's source entries, and the concerns about the store."""
    for entry in entries:
        for warning in entry["warnings"]:
            _log.warning(f"{entry['name']}: {warning}")
    for concern in concerns(store):
        _log.warning(f"{store.path}: {concern}")
