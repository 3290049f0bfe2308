"""Raw text to a token store: units of files -> shards, in parallel -> one store.

A unit is a run of a source's files, about 16 MB together. Its shard is a pure function of the
files' bytes, the source's settings and the tokenizer, and is kept under the hash of these in a
folder beside the store (`.NAME.building`), so an interrupted build goes on where it was, and one
with another setting shares nothing with it. The folder goes when the store is complete.
"""

import fcntl
import hashlib
import importlib.metadata
import json
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from data_pipeline.errors import UserError
from data_pipeline.manifest import MANIFEST, SPLITS, TOKENIZER, read_manifest
from data_pipeline.merge import merge
from data_pipeline.runners import byte_bar, run
from data_pipeline.sentences import check_language
from data_pipeline.shard import Unit, build_shard, cleaned, is_finished, raw_hash
from data_pipeline.sources import SourceSpec, read, units
from data_pipeline.store import TokenStore, open_store
from data_pipeline.tokenizer import Algorithm, Tokenizer

BUILD_VERSION = 1  # raised when the same text and settings give another store
_UNIT_BYTES = 16 << 20


def build_store(
    sources: Sequence[SourceSpec],
    tokenizer: Tokenizer,
    out: Path | str,
    *,
    held_out_share: float = 0.01,
    workers: int | None = None,
    progress: bool = True,
) -> TokenStore:
    """Build the store at `out`, or open it if it was built from the same things.

    The bytes do not depend on `workers`. Held out are, per source, the documents whose raw text
    has the smallest sha256: a share of them, at least two, at most half (none of a single one).
    Equal texts count once and stay on one side.

    Args:
        sources: with distinct names.
        held_out_share: of each source's documents, 0 to 0.5.
        workers: processes; None takes every core, 1 stays in this process.
        progress: show the bar and the tables (standard error). Warnings are always shown.

    Raises:
        UserError: sources with the same name, nothing found, bad input (see the source kinds), a
            source that yields nothing, another store or a running build at `out`.
    """
    console, out, started = Console(stderr=True), Path(out), time.monotonic()
    _check(sources, held_out_share)
    work = out.parent / f".{out.name}.building"
    jobs = _plan(sources, tokenizer, work)
    digest = _digest([tokenizer.digest, held_out_share, *(job.shard.name for job in jobs)])
    if out.exists():
        return _reuse(out, digest, console if progress else None)
    with _locked(work):
        tokenizer.save(work / TOKENIZER)
        open_jobs = [job for job in jobs if not is_finished(job)]
        total, left = sum(job.bytes for job in jobs), sum(job.bytes for job in open_jobs)
        if progress and len(open_jobs) < len(jobs):
            console.print(f"going on: {len(jobs) - len(open_jobs)} of {len(jobs)} shards are there")
        run(
            build_shard,
            open_jobs,
            total_bytes=total,
            done_bytes=total - left,
            workers=workers,
            title="build",
            progress=progress,
        )
        entries = merge(
            jobs,
            sources,
            tokenizer,
            work / "store",
            held_out_share=held_out_share,
            build_digest=digest,
        )
        (work / "store").rename(out)
        shutil.rmtree(work)
    if progress:
        _print_tables(console, entries)
        seconds = time.monotonic() - started
        console.print(f"{escape(str(out))}: {left / 1e6:.1f} MB of text in {seconds:.1f} s")
    _print_warnings(console, entries)
    return open_store(out, verify=False)


def train_tokenizer(
    sources: Sequence[SourceSpec],
    vocab_size: int,
    *,
    model: Algorithm = "wordpiece",
    lowercase: bool = True,
    most_bytes: int | None = None,
    progress: bool = True,
) -> Tokenizer:
    """Train a vocabulary on the cleaned text of these sources (see `Tokenizer.train`).

    Args:
        most_bytes: above so much raw text, a share of the documents is taken, by hash. None is
            1 GiB for WordPiece and, because SentencePiece holds its text in memory many times
            over, 256 MiB for the others.
        progress: show a bar while the text is read, and say when it has been.

    Raises:
        UserError: as `build_store` and `Tokenizer.train`.
    """
    _check(sources, 0.0)
    files = [(spec, path) for spec in sources for path in units(spec)]
    size = sum(path.stat().st_size for _, path in files)
    if most_bytes is None:
        most_bytes = 1 << (30 if model == "wordpiece" else 28)
    highest = int(min(1.0, most_bytes / max(size, 1)) * (1 << 64))

    def texts() -> Iterator[str]:
        done = 0
        with byte_bar("read", size, 0, progress) as update:
            for spec, path in files:
                for document in read(spec, path):
                    if raw_hash(document.text) < highest:
                        yield cleaned(document, spec)[0]
                done += path.stat().st_size
                update(done)
        if progress:  # the trainers do not tell how far they are
            print(f"training {vocab_size:,} entries", file=sys.stderr)

    return Tokenizer.train(texts(), vocab_size, model=model, lowercase=lowercase)


def _check(sources: Sequence[SourceSpec], held_out_share: float) -> None:
    if not sources:
        raise UserError("no source of text; pass --source=kind:path")
    if not 0.0 <= held_out_share <= 0.5:
        raise UserError(f"held-out share {held_out_share} must lie between 0 and 0.5")
    for name, count in Counter(spec.name for spec in sources).items():
        if count > 1:
            raise UserError(f"{count} sources are named {name!r}; add ,name=… to --source")
    for spec in sources:
        check_language(spec.language)


def _plan(sources: Sequence[SourceSpec], tokenizer: Tokenizer, work: Path) -> list[Unit]:
    """The units of all sources, in order, under the hashes of what they depend on."""
    versions = [importlib.metadata.version(name) for name in ("sentencex", "tokenizers")]
    jobs = []
    for spec in sources:
        files = units(spec)
        with ThreadPoolExecutor() as pool:  # hashing releases the interpreter lock
            digests = dict(zip(files, pool.map(_file_digest, files), strict=True))
        base = spec.path if spec.path.is_dir() else spec.path.parent
        settings = [spec.kind, spec.name, spec.language, spec.document_lines]
        for group in _groups(files):
            contents = [[p.relative_to(base).as_posix(), digests[p]] for p in group]
            key = _digest([BUILD_VERSION, versions, tokenizer.digest, settings, contents])
            size = sum(p.stat().st_size for p in group)
            jobs.append(Unit(spec, tuple(group), size, work / "shards" / key, work / TOKENIZER))
    return jobs


def _groups(files: Sequence[Path]) -> Iterator[list[Path]]:
    group: list[Path] = []
    size = 0
    for path in files:
        group.append(path)
        size += path.stat().st_size
        if size >= _UNIT_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _file_digest(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, ensure_ascii=True).encode()).hexdigest()


def _reuse(out: Path, digest: str, console: Console | None) -> TokenStore:
    if not (out / MANIFEST).exists():
        raise UserError(f"{out}: exists and is no token store; choose another --out")
    if read_manifest(out)["build_digest"] != digest:
        raise UserError(
            f"{out}: a token store of other text, tokenizer or settings is there; "
            "remove it or choose another --out"
        )
    if console:
        told = f"{escape(str(out))}: built from the same text and settings before; using it"
        console.print(told, soft_wrap=True)
    return open_store(out)


@contextmanager
def _locked(work: Path) -> Iterator[None]:
    """Hold the working folder; the system lets go of the lock when this process ends."""
    (work / "shards").mkdir(parents=True, exist_ok=True)
    with (work / "lock").open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"{work}: another build is running there; wait for it") from None
        yield


def _print_tables(console: Console, entries: Sequence[dict[str, Any]]) -> None:
    """What was found per source, and how often each cleaning rule fired."""
    found = Table("", *(entry["name"] for entry in entries), title="Token store")
    found.add_row("files", *(f"{entry['files']:,}" for entry in entries))
    found.add_row("MB", *(f"{entry['bytes'] / 1e6:.1f}" for entry in entries))
    found.add_row("documents found", *(f"{entry['documents']:,}" for entry in entries))
    found.add_row("… without text", *(f"{entry['dropped']['documents']:,}" for entry in entries))
    for split in SPLITS:
        for unit in ("documents", "sentences", "tokens"):
            values = (f"{entry['splits'][split][unit]:,}" for entry in entries)
            found.add_row(f"{split.replace('_', '-')} {unit}", *values)
    console.print(found)
    rules = Table("rule", *(entry["name"] for entry in entries), title="Times a rule fired")
    for rule in sorted({rule for entry in entries for rule in entry["rules"]}):
        rules.add_row(rule, *(f"{entry['rules'].get(rule, 0):,}" for entry in entries))
    console.print(rules)


def _print_warnings(console: Console, entries: Sequence[dict[str, Any]]) -> None:
    for entry in entries:
        for warning in entry["warnings"]:
            text = escape(f"{entry['name']}: {warning}")
            console.print(f"[bold yellow]warning:[/] {text}", soft_wrap=True)
