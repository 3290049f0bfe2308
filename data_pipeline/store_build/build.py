"""Builds a token store from raw text: ranges of files -> shards, in parallel -> one store.

Shards are kept in a working folder, by default next to the store (`.NAME.building`), so an
interrupted build resumes where it stopped. Existing shards are verified before they are reused.
Several machines may build shards at the same time (`build_shards`); one then merges them. The
default working folder is removed when the store is complete.
"""

# Over 300 lines: one process, several machines and Beam build in one order of steps.

import shutil
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from etils import epath
from rich.markup import escape

from bert_jax.data_pipeline.sources import Found, SourceSpec
from bert_jax.data_pipeline.sources.finding import named
from bert_jax.data_pipeline.store.manifest import MANIFEST, TOKENIZER, read_manifest
from bert_jax.data_pipeline.store.store import TokenStore, open_store
from bert_jax.data_pipeline.store_build import working_folder
from bert_jax.data_pipeline.store_build.beam import Pipeline, build_with_beam, check_pipeline
from bert_jax.data_pipeline.store_build.build_report import (
    check_dropped,
    print_tables,
    print_warnings,
)
from bert_jax.data_pipeline.store_build.casing import check_casing
from bert_jax.data_pipeline.store_build.digests import FileDigests
from bert_jax.data_pipeline.store_build.duplicates import Dedup
from bert_jax.data_pipeline.store_build.found_sources import check_sources, find_all
from bert_jax.data_pipeline.store_build.merge import merge
from bert_jax.data_pipeline.store_build.shard import build_shard, forget_words
from bert_jax.data_pipeline.store_build.shard_files import Unit
from bert_jax.data_pipeline.store_build.shards import WORK, ShardFolders
from bert_jax.data_pipeline.store_build.units import (
    HUB,
    Plan,
    commits_in,
    difference,
    plan_units,
)
from bert_jax.data_pipeline.store_build.units import module_of as settings_module
from bert_jax.data_pipeline.store_build.workers import run
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.extensions.registry import added
from bert_jax.storage import atomic, hub
from bert_jax.storage.digest import json_digest
from bert_jax.storage.outputs import OutputKind, check_output
from bert_jax.storage.progress import byte_bar, terminal
from bert_jax.storage.remote import put, storage_errors

_SHOWN = 5  # numbers of shards in a message
_EARLIER_SHARE = 0.01  # of held-out documents, by default, when there was no minimum


def build_store(
    sources: Sequence[SourceSpec],
    tokenizer: Tokenizer,
    out: Path | str,
    *,
    held_out_share: float | None = None,
    dedup: Dedup = "none",
    workers: int | None = None,
    work: Sequence[str] = (),
    merge_only: bool = False,
    beam: Sequence[str] | None = None,
    progress: bool = True,
    strict: bool = False,
) -> TokenStore:
    """Builds the store at `out`, or opens it if it was built from the same inputs.

    The bytes do not depend on `workers`, nor on the machines that built the shards. The held-out
    split has, per source, the documents whose raw text has the smallest sha256: the given share, at
    least two, at most half (none of a single one). Equal texts count once and stay in one split.
    A store at `out` that an earlier version built with its default share is opened too.

    Args:
        sources: with distinct names.
        held_out_share: of each source's documents, 0 to 0.5. None is 1 %, at least 20 documents
            where these are at most 5 %.
        dedup: leave out documents that repeat an earlier one (see `find_duplicates`).
        workers: processes; None uses every core, 1 stays in this process.
        work: working folders with shards, local or in buckets, which stay.
        merge_only: fail if a shard is missing, rather than build it.
        beam: build the shards by a pipeline of Apache Beam with these options, rather than here.
        progress: show the bar and the tables on standard error, where warnings always go.
        strict: fail rather than skip anything: a file of another kind, a document without text, …

    Raises:
        UserError: bad sources or files, another store or a running build at `out`, missing shards,
            shards of other settings, or a full disk (finished shards are kept).
    """
    started = time.monotonic()
    check_sources(sources, held_out_share)
    out = check_out(out, sources)
    shared = ShardFolders(out, work).shared
    pipeline = check_pipeline(beam, sources, shared) if beam is not None else None
    inputs = _inputs(sources, tokenizer, out, work, held_out_share, dedup, progress, strict)
    folders = inputs.folders
    with _writing(out):
        if not working_folder.is_free(out):
            return _reuse(out, inputs, progress, strict)
        if merge_only:
            folders.check_there()
        with _claimed(folders):
            if not working_folder.is_free(out):  # another build has just finished it
                return _reuse(out, inputs, progress, strict)
            built, units = _ready(inputs, workers, progress, merge_only, pipeline, bool(work))
            entries = _merge(inputs, units, sources, out, strict)
    if progress:
        print_tables(entries, out, built, time.monotonic() - started)
    store = open_store(out, verify=False)
    print_warnings(entries, store)
    return store


def build_shards(
    sources: Sequence[SourceSpec],
    tokenizer: Tokenizer,
    out: Path | str,
    *,
    number: int,
    count: int,
    dedup: Dedup = "none",
    workers: int | None = None,
    work: Sequence[str] = (),
    progress: bool = True,
    strict: bool = False,
) -> None:
    """Builds one of `count` equal parts of a store's shards, for `build_store` to merge.

    Any number of machines may do this at the same time, also for the same part.

    Args:
        number: 1 to `count`.
        dedup: as in `build_store`; shards differ only for `near`.
        work: as in `build_store`; shards go to the first local one, else to the first bucket.

    Raises:
        UserError: as in `build_store`.
    """
    check_sources(sources)
    out = check_out(out, sources)
    inputs = _inputs(sources, tokenizer, out, work, None, dedup, progress, strict)
    folders, plan = inputs.folders, inputs.plan
    with _writing(out):
        folders.check(plan.settings)
        folders.check_division(count)
        folders.claim()
        folders.record(plan.settings, count)
        inputs.digests.save()
        atomic.write_bytes(folders.main / TOKENIZER, tokenizer.json)
        mine = plan.units[number - 1 :: count]
        found = folders.find(mine, fetch_them=False)
        missing = [folders.sent(unit) for unit in mine if unit not in found]
        _build_shards(missing, mine, workers, progress)
    if progress:
        where = escape(folders.bucket or str(folders.main))
        ranges = f"{len(mine)} of {len(plan.units)} ranges"
        terminal.print(f"shard {number}/{count}: {ranges} are in {where}", soft_wrap=True)


@dataclass(frozen=True)
class _Inputs:
    """The inputs of a build."""

    tokenizer: Tokenizer
    found: list[Found]
    digests: FileDigests
    folders: ShardFolders
    plan: Plan
    settings: dict[str, Any]  # that determine the store
    digest: str  # of everything that does
    accepted: Collection[str]  # digests of a store that is as good


def _inputs(
    sources: Sequence[SourceSpec],
    tokenizer: Tokenizer,
    out: Path,
    work: Sequence[str],
    held_out_share: float | None,
    dedup: Dedup,
    progress: bool,
    strict: bool,
) -> _Inputs:
    found = find_all(sources, progress, strict)
    for folder in work:  # a bucket, after what needs no network
        check_output(folder, WORK, inputs=_paths(sources))
    folders = ShardFolders(out, work)
    digests = FileDigests(folders.main)
    plan = plan_units(sources, found, tokenizer, folders.main, digests, signatures=dedup == "near")
    check_casing(tokenizer, plan.units)
    settings = {**plan.settings, "held_out_share": held_out_share, "dedup": dedup}
    names = [unit.shard.name for unit in plan.units]

    def digest(share: float | None) -> str:
        return json_digest([tokenizer.digest, share, *names, *([dedup] if dedup != "none" else [])])

    accepted = {digest(held_out_share)}
    if held_out_share is None:
        accepted.add(digest(_EARLIER_SHARE))
    return _Inputs(
        tokenizer, found, digests, folders, plan, settings, digest(held_out_share), accepted
    )


@contextmanager
def _claimed(folders: ShardFolders) -> Iterator[None]:
    """The working folders of a build are its own, and no other build of the store runs."""
    folders.claim()
    working_folder.claim(folders.home)
    with working_folder.locked(folders.home):
        yield


def _merge(
    inputs: _Inputs, units: Sequence[Unit], sources: Sequence[SourceSpec], out: Path, strict: bool
) -> list[dict[str, Any]]:
    """Makes the store of finished shards and removes them; returns the sources' entries."""
    home = inputs.folders.home
    entries = merge(
        units,
        sources,
        inputs.tokenizer,
        home / "store",
        left_out=[result.entry() for result in inputs.found],
        settings=inputs.settings,
        build_digest=inputs.digest,
    )
    if strict:
        check_dropped(entries)
    atomic.publish(home / "store", out)
    shutil.rmtree(home, ignore_errors=True)
    return entries


def _ready(
    inputs: _Inputs,
    workers: int | None,
    progress: bool,
    merge_only: bool,
    pipeline: Pipeline | None,
    shared: bool,
) -> tuple[int, list[Unit]]:
    """Builds the shards that are missing; returns the bytes of text read, and all units, each with
    the place of its shard.

    Args:
        shared: other machines may have filled the folders, so their settings are checked.
    """
    folders, plan = inputs.folders, inputs.plan
    has_others = shared or merge_only or folders.machines
    count = folders.check(plan.settings) if has_others else 0
    inputs.digests.save()
    atomic.write_bytes(folders.main / TOKENIZER, inputs.tokenizer.json)
    found = folders.find(plan.units, fetch_them=True)
    missing = [unit for unit in plan.units if unit not in found]
    if merge_only and missing:
        raise _missing(missing, plan.units, count)
    if added() or HUB in plan.settings or (pipeline and missing):
        folders.record(plan.settings, count)
    if pipeline and missing:
        found |= _build_with_beam(inputs, missing, pipeline, progress)
        built = sum(unit.bytes for unit in missing)
    else:
        built = _build_shards(missing, plan.units, workers, progress)
    return built, [found.get(unit, unit) for unit in plan.units]


def _build_with_beam(
    inputs: _Inputs, missing: Sequence[Unit], pipeline: Pipeline, progress: bool
) -> dict[Unit, Unit]:
    """Builds missing shards by a pipeline; returns their units, each with the shard's place."""
    folders, units = inputs.folders, inputs.plan.units
    folder = folders.shared
    if folders.bucket:  # where workers find it
        with storage_errors(folder, "cannot be written"):
            put(f"{folder}/{TOKENIZER}", inputs.tokenizer.json)
    done = _say_resuming(missing, units, progress)
    with byte_bar("build", sum(unit.bytes for unit in units), done, progress) as update:
        build_with_beam(
            pipeline,
            [folders.sent(unit) for unit in missing],
            folder,
            folders.finished,
            lambda count: update(done + count),
        )
    found = folders.find(missing, fetch_them=True)
    if lost := len(missing) - len(found):
        raise UserError(
            f"the Beam pipeline ended, but {lost:,} of {len(missing):,} shards are not in "
            f"{folder}; its workers must write to this very folder: choose a --work that all see"
        )
    return found


def _build_shards(
    missing: Sequence[Unit], units: Sequence[Unit], workers: int | None, progress: bool
) -> int:
    """Builds the shards that no earlier build finished; returns the bytes of text read."""
    done = _say_resuming(missing, units, progress)
    left = sum(unit.bytes for unit in missing)
    try:
        run(
            build_shard,
            missing,
            total_bytes=done + left,
            done_bytes=done,
            workers=workers,
            title="build",
            progress=progress,
        )
    finally:
        forget_words()
    return left


def _say_resuming(missing: Sequence[Unit], units: Sequence[Unit], progress: bool) -> int:
    """Says how many shards an earlier build finished; returns the bytes of their text."""
    if progress and len(missing) < len(units):
        finished = f"{len(units) - len(missing)} of {len(units)} shards"
        terminal.print(f"resuming: {finished} are already built")
    return sum(unit.bytes for unit in units) - sum(unit.bytes for unit in missing)


def _missing(missing: Sequence[Unit], units: Sequence[Unit], count: int) -> UserError:
    """Returns the error that names missing shards; `count`: of machines, 0 if unknown."""
    first = missing[0].ranges[0]
    gone = set(missing)
    numbers = {n % count + 1 for n, unit in enumerate(units) if unit in gone} if count else set()
    shown = [f"{number}/{count}" for number in sorted(numbers)[:_SHOWN]]
    more = ", …" if len(numbers) > _SHOWN else ""
    of = f", of --shard={', '.join(shown)}{more}" if shown else ""
    return UserError(
        f"{len(missing):,} of {len(units):,} shards are missing{of}; the first is of {first.path} "
        f"from {first.start:,} on; build them, or leave out --merge to build them here"
    )


def module_of(kind: str, out: Path | str, work: Sequence[str] = ()) -> str:
    """Returns the flag of the user's module that the store at `out`, or its unfinished build, read
    a kind of source with, and its digest; "" if unknown."""
    if (Path(out) / MANIFEST).is_file():
        return settings_module(read_manifest(out).get("build") or {}, kind)
    return ShardFolders(Path(out), work).module_of(kind)


def use_recorded(names: Iterable[object], out: Path | str, work: Sequence[str] = ()) -> None:
    """From now on, names on the hub mean the commits that the store at `out`, or its unfinished
    build, has recorded.

    names: of the sources and the tokenizer; nothing is read if none is on the hub.
    """
    if not any(map(hub.is_hub, names)):
        return
    if (Path(out) / MANIFEST).is_file():
        hub.use(commits_in(read_manifest(out).get("build") or {}))
    else:
        hub.use(ShardFolders(Path(out), work).commits())


def _is_store(out: epath.Path) -> bool:
    return (out / MANIFEST).exists()  # `_reuse` says of which text; none is replaced


STORE: Final = OutputKind(
    "token store", _is_store, is_folder=True, in_buckets=False, by_rename=True
)


def check_out(out: Path | str, sources: Sequence[SourceSpec] = ()) -> Path:
    """Returns the path of a store; UserError if it may not be written there, see `check_output`."""
    check_output(out, STORE, inputs=_paths(sources))
    out = Path(out)
    if not working_folder.is_free(out) and not _is_store(epath.Path(out)):  # a link to a free one
        raise UserError(f"{out}: exists and is not a token store; choose another --out")
    return out


def _paths(sources: Sequence[SourceSpec]) -> list[Path]:
    return [path for spec in sources for path in named(spec.path)]


def _reuse(out: Path, inputs: _Inputs, progress: bool, strict: bool) -> TokenStore:
    check_out(out)
    manifest = read_manifest(out)
    if manifest["build_digest"] not in inputs.accepted:
        recorded = manifest.get("build")
        which = recorded and difference(recorded, inputs.settings)
        raise UserError(
            f"{out}: already has a token store built from other text, tokenizer or settings: "
            f"{which or 'not recorded which'}; remove it or choose another --out"
        )
    if strict:
        check_dropped(manifest["sources"])
    home = inputs.folders.home
    if working_folder.is_ours(home):  # the build was interrupted between its last two steps
        with working_folder.locked(home):
            shutil.rmtree(home, ignore_errors=True)
    if progress:
        message = f"{escape(str(out))}: already built from the same text and settings; reusing it"
        terminal.print(message, soft_wrap=True)
    return open_store(out)


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
