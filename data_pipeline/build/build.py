"""Builds a token store from raw text: ranges of files -> shards, in parallel -> one store.

A unit is one range of a source's file or a run of small ones, about 16 MB in total. Its shard is a
pure function of the files' bytes, the source's settings and the tokenizer, and is stored under the
hash of these in a folder next to the store (`.NAME.building`), so an interrupted build resumes
where it stopped, and a build with other settings shares nothing with it. Existing shards are
verified before they are reused. The folder is removed when the store is complete.
"""

import functools
import importlib.metadata
import logging
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

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
from bert_jax.data_pipeline.sources import Found, SourceSpec, check, find, kind_of, ranges, read
from bert_jax.data_pipeline.sources.cutting import RANGE_BYTES
from bert_jax.data_pipeline.sources.document import Range
from bert_jax.data_pipeline.storage import atomic
from bert_jax.data_pipeline.storage.digest import file_digest, json_digest
from bert_jax.data_pipeline.storage.progress import byte_bar, terminal
from bert_jax.data_pipeline.storage.remote import storage_errors
from bert_jax.data_pipeline.store.manifest import MANIFEST, TOKENIZER, read_manifest
from bert_jax.data_pipeline.store.store import TokenStore, open_store
from bert_jax.data_pipeline.text.sentences import check_language, splitter
from bert_jax.data_pipeline.tokenizer.tokenizer import Algorithm, Tokenizer

_log = logging.getLogger(__name__)

BUILD_VERSION = 2  # incremented when the same text and settings give another store
_UNIT_BYTES = RANGE_BYTES


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
    """Builds the store at `out`, or opens it if it was built from the same inputs.

    The bytes do not depend on `workers`. The held-out split has, per source, the documents whose
    raw text has the smallest sha256: the given share, at least two, at most half (none of a single
    one). Duplicate texts count once and stay in one split.

    Args:
        sources: with distinct names.
        held_out_share: of each source's documents, 0 to 0.5.
        workers: processes; None uses every core, 1 stays in this process.
        progress: show the bar and the tables (standard error). Warnings and skipped files are
            always shown.
        strict: fail rather than skip anything: a file of another kind, a document without text, …

    Raises:
        UserError: sources with the same name, no files, bad input (see the source kinds), a source
            that yields no text, another store, a running build or anything else at `out`, or a full
            disk (finished shards are kept).
    """
    out, started = Path(out), time.monotonic()
    _check(sources, held_out_share)
    work = out.parent / f".{out.name}.building"
    found = _find(sources, progress, strict)
    jobs = _plan(sources, found, tokenizer, work)
    digest = json_digest([tokenizer.digest, held_out_share, *(job.shard.name for job in jobs)])
    with _writing(out):
        if not working_folder.is_free(out):
            return _reuse(out, digest, work, progress, strict)
        working_folder.claim(work)
        with working_folder.locked(work):
            if not working_folder.is_free(out):  # another build has just finished it
                return _reuse(out, digest, work, progress, strict)
            tokenizer.save(work / TOKENIZER)
            built = _build_shards(jobs, work, workers, progress)
            left_out = [result.entry() for result in found]
            made = work / "store"
            entries = merge(
                jobs, sources, tokenizer, made,
                left_out=left_out, held_out_share=held_out_share, build_digest=digest,
            )  # fmt: skip
            if strict:
                check_dropped(entries)
            atomic.publish(made, out)
            shutil.rmtree(work, ignore_errors=True)
    seconds = time.monotonic() - started
    if progress:
        print_tables(entries)
        terminal.print(f"{escape(str(out))}: {built / 1e6:.1f} MB of text in {seconds:.1f} s")
    print_warnings(entries)
    return open_store(out, verify=False)


def _build_shards(jobs: Sequence[Unit], work: Path, workers: int | None, progress: bool) -> int:
    """Builds the shards that an earlier build did not finish; returns the bytes of text read."""
    unfinished = _unfinished_jobs(jobs, work)
    total, left = sum(job.bytes for job in jobs), sum(job.bytes for job in unfinished)
    if progress and len(unfinished) < len(jobs):
        finished = f"{len(jobs) - len(unfinished)} of {len(jobs)} shards"
        terminal.print(f"resuming: {finished} are already built")
    run(
        build_shard,
        unfinished,
        total_bytes=total,
        done_bytes=total - left,
        workers=workers,
        title="build",
        progress=progress,
    )
    return left


def train_tokenizer(
    sources: Sequence[SourceSpec],
    vocab_size: int,
    *,
    model: Algorithm = "wordpiece",
    lowercase: bool = True,
    most_bytes: int | None = None,
    progress: bool = True,
) -> Tokenizer:
    """Trains a vocabulary on the cleaned text of these sources (see `Tokenizer.train`).

    Args:
        most_bytes: if there is more raw text than this, documents are subsampled by hash. None is
            1 GiB for WordPiece and 256 MiB for the others, because SentencePiece keeps many copies
            of its text in memory.
        progress: show a bar while reading the text, and print a line when training starts.

    Raises:
        UserError: as `build_store` and `Tokenizer.train`.
    """
    _check(sources, 0.0)
    found = _find(sources, progress)
    files = [(s, path) for s, result in zip(sources, found, strict=True) for path in result.files]
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
        if progress:  # the trainers do not report progress
            terminal.print(f"training {vocab_size:,} entries", highlight=False)

    remedy = "; free some space, or set TMPDIR to another folder"
    with storage_errors(tempfile.gettempdir(), "cannot write a temporary file", remedy):
        return Tokenizer.train(texts(), vocab_size, model=model, lowercase=lowercase)


def _check(sources: Sequence[SourceSpec], held_out_share: float) -> None:
    if not sources:
        raise UserError("no source of text; pass --source=KIND:PATH")
    if not 0.0 <= held_out_share <= 0.5:
        raise UserError(f"held-out share {held_out_share} must be between 0 and 0.5")
    for name, count in Counter(spec.name for spec in sources).items():
        if count > 1:
            raise UserError(f"{count} sources are named {name!r}; add ,name=… to --source")
    for spec in sources:
        check_language(spec.language)


def _find(sources: Sequence[SourceSpec], progress: bool, strict: bool = False) -> list[Found]:
    found = [find(spec) for spec in sources]
    print_found(sources, found, progress)
    if strict:
        check_found(sources, found)
    return found


def _plan(
    sources: Sequence[SourceSpec], found: Sequence[Found], tokenizer: Tokenizer, work: Path
) -> list[Unit]:
    """Returns the units of all sources, in order; each shard is named by the hash of its inputs."""
    versions = [splitter(), importlib.metadata.version("tokenizers")]
    jobs = []
    for spec, result in zip(sources, found, strict=True):
        with ThreadPoolExecutor() as pool:  # hashing releases the GIL
            examined = pool.map(functools.partial(_examine, spec), result.files)
            of_file = dict(zip(result.files, examined, strict=True))
        base = spec.path if spec.path.is_dir() else spec.path.parent
        settings = [spec.kind, spec.name, spec.language, spec.document_lines]
        settings += map(importlib.metadata.version, kind_of(spec).LIBRARIES)
        for group in _groups(part for _, parts in of_file.values() for part in parts):
            contents = [
                [os.path.relpath(part.path, base), of_file[part.path][0], *_position(part)]
                for part in group
            ]
            inputs = [BUILD_VERSION, versions, tokenizer.digest, settings, contents]
            key = json_digest(inputs, sort_keys=False)
            size = sum(part.bytes for part in group)
            jobs.append(Unit(spec, tuple(group), size, work / "shards" / key, work / TOKENIZER))
    return jobs


def _position(part: Range) -> list[int]:
    """Returns where a range is in its file; nothing for a whole file."""
    return [] if part.stop is None else [part.start, part.stop]


def _groups(parts: Iterable[Range]) -> Iterator[list[Range]]:
    group: list[Range] = []
    size = 0
    for part in parts:
        group.append(part)
        size += part.bytes
        if size >= _UNIT_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _examine(spec: SourceSpec, path: Path) -> tuple[str, list[Range]]:
    """Checks that a file has its source's kind; returns its sha256 and its ranges."""
    check(spec, path)
    with storage_errors(path, remedy="; copy it again"):
        return file_digest(path), ranges(spec, path)


def check_out(out: Path) -> None:
    """Raises UserError if something other than a store is at `out`."""
    if not working_folder.is_free(out) and not (out / MANIFEST).exists():
        raise UserError(f"{out}: exists and is not a token store; choose another --out")


def _reuse(out: Path, digest: str, work: Path, progress: bool, strict: bool) -> TokenStore:
    check_out(out)
    manifest = read_manifest(out)
    if manifest["build_digest"] != digest:
        raise UserError(
            f"{out}: already has a token store built from other text, tokenizer or settings, or by "
            "another version; remove it or choose another --out"
        )
    if strict:
        check_dropped(manifest["sources"])
    if working_folder.is_ours(work):  # the build was interrupted between its last two steps
        with working_folder.locked(work):
            shutil.rmtree(work, ignore_errors=True)
    if progress:
        message = f"{escape(str(out))}: already built from the same text and settings; reusing it"
        terminal.print(message, soft_wrap=True)
    return open_store(out)


def _unfinished_jobs(jobs: Sequence[Unit], work: Path) -> list[Unit]:
    """Returns the units without a valid shard; removes invalid shards, with a message each."""
    (work / "shards").mkdir(exist_ok=True)
    for part in (work / "shards").glob(f"*{PART}"):
        shutil.rmtree(part, ignore_errors=True)
    existing = [job for job in jobs if os.path.lexists(job.shard)]
    with ThreadPoolExecutor() as pool:  # hashing releases the GIL
        damages = dict(zip(existing, pool.map(damage, existing), strict=True))
    for job, problem in damages.items():
        if problem:
            _log.warning(f"{job.shard}: left by an earlier build, but {problem}; it is built again")
            working_folder.remove(job.shard)
    return [job for job in jobs if damages.get(job, "absent")]


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    """Turns an OSError into a UserError: one line on why a store cannot be written."""
    try:
        yield
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        raise UserError(
            f"{out}: cannot be built ({error.strerror or error}{where}); free some space or grant "
            "access and run the same command again to resume: finished shards are kept"
        ) from None
