"""Copies a token store from a bucket to the local cache and verifies it against its manifest.

    $BERT_JAX_CACHE/stores/<digest of the manifest>/    the store; manifest.json is written last
                           <digest of the manifest>.lock

One process per machine copies, the others wait for it. Valid blocks that exist already are reused,
so an interrupted copy resumes.
"""

import contextlib
import logging
import shutil
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bert_jax.data_pipeline.store.digests import BLOCK, block_digest, check_contents
from bert_jax.data_pipeline.store.manifest import (
    ARRAYS,
    MANIFEST,
    SPLITS,
    TOKENIZER,
    fetch_manifest,
)
from bert_jax.errors import UserError
from bert_jax.storage import atomic
from bert_jax.storage.cache_dir import cache_dir
from bert_jax.storage.locks import FileLock, LockedError
from bert_jax.storage.progress import byte_bar
from bert_jax.storage.remote import STORAGE_RETRIES, read_range, storage_errors
from bert_jax.storage.retry import retry
from bert_jax.storage.upload_command import upload_command

_log = logging.getLogger(__name__)

_PARALLEL: Final = 16  # 4 MiB blocks in flight, as the bandwidth of one connection is limited
_FILES: Final = frozenset({TOKENIZER, *(f"{s}/{a}.npy" for s in SPLITS for a in ARRAYS)})


class _DamagedError(OSError):
    """Received bytes do not match the manifest; a retry may return the right ones."""


@dataclass(frozen=True)
class _Block:
    """A byte range of a file to fetch."""

    name: str  # of the file, relative to the store
    start: int
    length: int
    digest: str


def stage(url: str, *, repair: bool = False) -> Path:
    """Returns the local copy of a store in a bucket; copies the store if necessary.

    Args:
        url: the store's folder, gs://…
        repair: verify an existing copy, and fetch the blocks that differ from the manifest.

    Raises:
        UserError: no store at `url`, no permission, no client, the bucket does not respond or its
            files do not match the manifest, or not enough local disk space.
    """
    data, manifest = fetch_manifest(url)
    unknown = sorted(set(manifest["files"]) ^ _FILES)
    if unknown:  # names become local paths
        raise UserError(f"{url}/{MANIFEST}: {unknown[0]} is not a file of a store; build it again")
    folder = cache_dir() / "stores" / manifest["digest"]
    done = folder / MANIFEST
    if done.exists() and not repair:
        return folder
    _check_names(folder)
    with _write_errors(folder), _locked(folder, url):
        if repair or not done.exists():
            for file in [done, *folder.glob(f".{MANIFEST}.*")]:  # the latter of a killed process
                file.unlink(missing_ok=True)
            _copy(url, folder, manifest["files"])
            atomic.sync_tree(folder)  # an existing manifest means that all other files are complete
            atomic.write_bytes(done, data)
    return folder


def _check_names(folder: Path) -> None:
    """Raises UserError if the folder contains any file that does not belong to a store's copy."""
    expected = {MANIFEST, *_FILES, *SPLITS}
    for path in sorted(folder.rglob("*")) if folder.is_dir() else []:
        name = path.relative_to(folder).as_posix()
        temporary = path.parent == folder and path.name.startswith(f".{MANIFEST}")
        if path.is_symlink() or (name not in expected and not temporary):
            raise UserError(
                f"{path}: not a file of a token store; {folder} is reserved for a copy of one; "
                "move the file away, or set BERT_JAX_CACHE to another folder"
            )


def _copy(url: str, folder: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    total = sum(entry["bytes"] for entry in files.values())
    blocks = [block for name, entry in files.items() for block in _missing(folder, name, entry)]
    needed, free = sum(block.length for block in blocks), shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"{folder}: the copy of {url} needs {needed / 1e9:,.2f} GB, {free / 1e9:,.2f} GB are "
            "free; free some space there, or set BERT_JAX_CACHE to another folder"
        )
    done, lock = total - needed, threading.Lock()
    with byte_bar("copy", total, done, True) as update:

        def fetch(block: _Block) -> None:
            nonlocal done
            data = retry(lambda: _read(url, block), STORAGE_RETRIES)
            with _write_errors(folder), (folder / block.name).open("r+b") as stream:
                stream.seek(block.start)
                stream.write(data)
            with lock:
                done += block.length
                update(done)

        pool = ThreadPoolExecutor(_PARALLEL, "stage")
        try:
            jobs = [pool.submit(fetch, block) for block in blocks]
            finished, _ = wait(jobs, return_when=FIRST_EXCEPTION)
            for job in finished:
                with storage_errors(url):
                    _result(job, url)
        finally:
            pool.shutdown(cancel_futures=True)
    for name in {block.name for block in blocks}:
        check_contents(folder / name, files[name])


def _result(job: Future[None], url: str) -> None:
    try:
        job.result()
    except _DamagedError as error:
        copy = upload_command("STORE", url, "--checksums-only")
        raise UserError(f"{error}; copy the store again: {copy}") from None


def _missing(folder: Path, name: str, entry: Mapping[str, Any]) -> Iterator[_Block]:
    """Yields the missing or damaged blocks of a file, after resizing it to its full length."""
    file, size = folder / name, entry["bytes"]
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("r+b" if file.exists() else "w+b") as stream:
        stream.truncate(size)
        for number, digest in enumerate(entry["blocks"]):
            start = number * BLOCK
            length = min(BLOCK, size - start)
            if block_digest(stream.read(length)) != digest:
                yield _Block(name, start, length, digest)


def _read(url: str, block: _Block) -> bytes:
    """Reads a block and checks it against its digest."""
    data = read_range(f"{url.rstrip('/')}/{block.name}", block.start, block.length)
    if block_digest(data) != block.digest:
        raise _DamagedError(
            f"{url}/{block.name}: bytes {block.start:,} to {block.start + block.length - 1:,} do "
            "not match the manifest (sha256)"
        )
    return data


@contextlib.contextmanager
def _locked(folder: Path, url: str) -> Iterator[None]:
    """Locks a store's folder in the cache; the lock is released when the process ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock")) as lock:
        try:
            lock.acquire()
        except LockedError:
            _log.warning(f"{url}: waiting for another process that copies it")
            lock.acquire(wait=True)
        yield


def _write_errors(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Turns an error on writing to the cache into a UserError."""
    remedy = "; free some space or grant access, or set BERT_JAX_CACHE to another folder"
    return storage_errors(folder, "cannot be written", remedy)
