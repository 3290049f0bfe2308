"""Raw text to a token store: units of files -> shards, in parallel -> one store.

A unit is a run of a source's files, about 16 MB together. Its shard is a pure function of the
files' bytes, the source's settings and the tokenizer, and is kept under the hash of these in a
folder beside the store (`.NAME.building`), so an interrupted build goes on where it was, and one
with another setting shares nothing with it. What is found there is checked before it is used. The
folder goes when the store is complete.
"""

import functools
import hashlib
import importlib.metadata
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from bert_jax.data_pipeline.build import working_folder
from bert_jax.data_pipeline.build.merge import merge
from bert_jax.data_pipeline.build.report import (
    check_dropped,
    check_found,
    print_found,
    print_tables,
    print_warnings,
)
from bert_jax.data_pipeline.build.shard import PART, Unit, build_shard, cleaned, damage, raw_hash
from bert_jax.data_pipeline.build.workers import run
from bert_jax.data_pipeline.errors import UserError
from bert_jax.data_pipeline.sources import Found, SourceSpec, check, find, read
from bert_jax.data_pipeline.storage import atomic
from bert_jax.data_pipeline.storage.progress import byte_bar
from bert_jax.data_pipeline.store.manifest import MANIFEST, TOKENIZER, read_manifest
from bert_jax.data_pipeline.store.store import TokenStore, open_store
from bert_jax.data_pipeline.text.sentences import check_language, splitter
from bert_jax.data_pipeline.tokenizer.tokenizer import Algorithm, Tokenizer

BUILD_VERSION = 2  # raised when the same text and settings give another store
_UNIT_BYTES = 16 << 20


def build_store(
    sources: Sequence[SourceSpec],
    tokenizer: Tokenizer,
    out: Path | str,
    *,
    held_out_share: float = 0.01,
    workers: int | None = None,
    progress: bool = True,
    strict: bool = False,
) -> TokenStore:
    """Build the store at `out`, or open it if it was built from the same things.

    The bytes do not depend on `workers`. Held out are, per source, the documents whose raw text
    has the smallest sha256: a share of them, at least two, at most half (none of a single one).
    Equal texts count once and stay on one side.

    Args:
        sources: with distinct names.
        held_out_share: of each source's documents, 0 to 0.5.
        workers: processes; None takes every core, 1 stays in this process.
        progress: show the bar and the tables (standard error). Warnings, and what of a source's
            folder is left out, are always shown.
        strict: refuse to leave anything out: a file of another kind, a document without text, …

    Raises:
        UserError: sources with the same name, nothing found, bad input (see the source kinds), a
            source that yields nothing, another store, a running build or anything else at `out`,
            or no room on the disk: what is finished is kept then.
    """
    console, out, started = Console(stderr=True), Path(out), time.monotonic()
    _check(sources, held_out_share)
    work = out.parent / f".{out.name}.building"
    found = _find(sources, console, progress)
    if strict:
        check_found(sources, found)
    jobs = _plan(sources, found, tokenizer, work)
    digest = _digest([tokenizer.digest, held_out_share, *(job.shard.name for job in jobs)])
    with _writing(out):
        if not working_folder.is_free(out):
            return _reuse(out, digest, work, console if progress else None, strict)
        working_folder.claim(work)
        with working_folder.locked(work):
            if not working_folder.is_free(out):  # another build has just made it
                return _reuse(out, digest, work, console if progress else None, strict)
            tokenizer.save(work / TOKENIZER)
            open_jobs = _open_jobs(jobs, work, console)
            total, left = sum(job.bytes for job in jobs), sum(job.bytes for job in open_jobs)
            if progress and len(open_jobs) < len(jobs):
                there = f"{len(jobs) - len(open_jobs)} of {len(jobs)} shards"
                console.print(f"resuming: {there} are there")
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
                left_out=[there.entry() for there in found],
                held_out_share=held_out_share,
                build_digest=digest,
            )
            if strict:
                check_dropped(entries)
            atomic.publish(work / "store", out)
            shutil.rmtree(work, ignore_errors=True)
    if progress:
        print_tables(console, entries)
        seconds = time.monotonic() - started
        console.print(f"{escape(str(out))}: {left / 1e6:.1f} MB of text in {seconds:.1f} s")
    print_warnings(console, entries)
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
    found = _find(sources, Console(stderr=True), progress)
    files = [(s, path) for s, there in zip(sources, found, strict=True) for path in there.files]
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

    try:
        return Tokenizer.train(texts(), vocab_size, model=model, lowercase=lowercase)
    except OSError as error:
        raise UserError(
            f"{tempfile.gettempdir()}: no temporary file can be written there ({error.strerror}); "
            "make room, or name another folder as TMPDIR"
        ) from None


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


def _find(sources: Sequence[SourceSpec], console: Console, progress: bool) -> list[Found]:
    found = [find(spec) for spec in sources]
    print_found(console, sources, found, progress)
    return found


def _plan(
    sources: Sequence[SourceSpec], found: Sequence[Found], tokenizer: Tokenizer, work: Path
) -> list[Unit]:
    """The units of all sources, in order, under the hashes of what they depend on."""
    versions = [splitter(), importlib.metadata.version("tokenizers")]
    jobs = []
    for spec, there in zip(sources, found, strict=True):
        with ThreadPoolExecutor() as pool:  # hashing releases the interpreter lock
            looks = pool.map(functools.partial(_look, spec), there.files)
            looked = dict(zip(there.files, looks, strict=True))
        base = spec.path if spec.path.is_dir() else spec.path.parent
        settings = [spec.kind, spec.name, spec.language, spec.document_lines]
        for group in _groups({path: size for path, (_, size) in looked.items()}):
            contents = [[p.relative_to(base).as_posix(), looked[p][0]] for p in group]
            key = _digest([BUILD_VERSION, versions, tokenizer.digest, settings, contents])
            size = sum(looked[p][1] for p in group)
            jobs.append(Unit(spec, tuple(group), size, work / "shards" / key, work / TOKENIZER))
    return jobs


def _groups(sizes: Mapping[Path, int]) -> Iterator[list[Path]]:
    group: list[Path] = []
    size = 0
    for path, count in sizes.items():
        group.append(path)
        size += count
        if size >= _UNIT_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _look(spec: SourceSpec, path: Path) -> tuple[str, int]:
    """sha256 and size of a file that is of its source's kind."""
    check(spec, path)
    try:
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            return digest, os.fstat(stream.fileno()).st_size
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, ensure_ascii=True).encode()).hexdigest()


def _reuse(out: Path, digest: str, work: Path, console: Console | None, strict: bool) -> TokenStore:
    if not (out / MANIFEST).exists():
        raise UserError(f"{out}: exists and is no token store; choose another --out")
    manifest = read_manifest(out)
    if manifest["build_digest"] != digest:
        raise UserError(
            f"{out}: a token store of other text, tokenizer or settings (or another version's) is "
            "there; remove it or choose another --out"
        )
    if strict:
        check_dropped(manifest["sources"])
    if working_folder.is_ours(work):  # the build ended between its last two steps
        with working_folder.locked(work):
            shutil.rmtree(work, ignore_errors=True)
    if console:
        told = f"{escape(str(out))}: built from the same text and settings before; using it"
        console.print(told, soft_wrap=True)
    return open_store(out)


def _open_jobs(jobs: Sequence[Unit], work: Path, console: Console) -> list[Unit]:
    """The units without a sound shard; removes, and names, shards that are not sound."""
    (work / "shards").mkdir(exist_ok=True)
    for part in (work / "shards").glob(f"*{PART}"):
        shutil.rmtree(part, ignore_errors=True)
    there = [job for job in jobs if os.path.lexists(job.shard)]
    with ThreadPoolExecutor() as pool:  # hashing releases the interpreter lock
        damages = dict(zip(there, pool.map(damage, there), strict=True))
    for job, wrong in damages.items():
        if wrong:
            told = f"{job.shard}: left by an earlier build, but {wrong}; it is built again"
            console.print(escape(told), soft_wrap=True)
            working_folder.remove(job.shard)
    return [job for job in jobs if damages.get(job, "absent")]


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    """Says in one line why a store cannot be written."""
    try:
        yield
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        raise UserError(
            f"{out}: cannot be built ({error.strerror or error}{where}); make room or give access "
            "there and run the same command again: what is finished is kept"
        ) from None
