"""Copies a token store from a bucket to this machine's cache, checked against its manifest.

    $BERT_JAX_CACHE/stores/<digest of the manifest>/    the store; manifest.json comes last
                           <digest of the manifest>.lock

One process of a machine copies, the others wait for it. Blocks that are there and right stay, so a
copy that was interrupted goes on where it was.
"""

import contextlib
import fcntl
import shutil
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bert_jax.data_pipeline.errors import UserError
from bert_jax.data_pipeline.storage import atomic
from bert_jax.data_pipeline.storage.cache_dir import cache_dir
from bert_jax.data_pipeline.storage.progress import byte_bar
from bert_jax.data_pipeline.storage.remote import read_range, retry, storage_errors
from bert_jax.data_pipeline.store.digests import BLOCK, block_digest, check_contents
from bert_jax.data_pipeline.store.manifest import (
    ARRAYS,
    MANIFEST,
    SPLITS,
    TOKENIZER,
    manifest_bytes,
    parse_manifest,
)

_AT_ONCE: Final = 16  # blocks of 4 MiB in flight: what one connection carries is the limit
_FILES: Final = frozenset({TOKENIZER, *(f"{s}/{a}.npy" for s in SPLITS for a in ARRAYS)})


class _DamagedError(OSError):
    """Bytes arrived that are not those of the manifest; the next time they may be."""


@dataclass(frozen=True)
class _Block:
    """A range of a file that has to be fetched."""

    name: str  # of the file, relative to the store
    start: int
    length: int
    digest: str


def stage(url: str, *, repair: bool = False) -> Path:
    """The local copy of a store in a bucket, made now unless it is there.

    Args:
        url: the store's folder, gs://…
        repair: read what is there again, and fetch what is not as the manifest says.

    Raises:
        UserError: no store there, no permission, no client, the bucket does not answer or its
            files are not those of the manifest, or this machine has no room.
    """
    data = manifest_bytes(url)
    manifest = parse_manifest(data, f"{url}/{MANIFEST}")
    odd = sorted(set(manifest["files"]) ^ _FILES)
    if odd:  # names become paths on this machine
        raise UserError(f"{url}/{MANIFEST}: {odd[0]} is not a file of a store; build it again")
    folder = cache_dir() / "stores" / manifest["digest"]
    done = folder / MANIFEST
    if done.exists() and not repair:
        return folder
    _check_ours(folder)
    with _writing(folder), _locked(folder, url):
        if repair or not done.exists():
            done.unlink(missing_ok=True)
            _copy(url, folder, manifest["files"])
            atomic.sync_tree(folder)  # the manifest says that everything else is there
            atomic.write_bytes(done, data)
    return folder


def _check_ours(folder: Path) -> None:
    """UserError where the folder holds anything that no copy of a store consists of."""
    ours = {MANIFEST, *_FILES, *SPLITS}
    for path in sorted(folder.rglob("*")) if folder.is_dir() else []:
        name = path.relative_to(folder).as_posix()
        temporary = path.parent == folder and path.name.startswith(f".{MANIFEST}")
        if path.is_symlink() or (name not in ours and not temporary):
            raise UserError(
                f"{path}: not a file of a token store; {folder} is for the copy of one: move it "
                "away, or name another folder as BERT_JAX_CACHE"
            )


def _copy(url: str, folder: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    total = sum(entry["bytes"] for entry in files.values())
    blocks = [block for name, entry in files.items() for block in _missing(folder, name, entry)]
    needed, free = sum(block.length for block in blocks), shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"{folder}: {needed / 1e9:,.2f} GB of {url} are to come, {free / 1e9:,.2f} GB are "
            "free; free some space there, or name another folder as BERT_JAX_CACHE"
        )
    done, lock = total - needed, threading.Lock()
    with byte_bar("copy", total, done, True) as update:

        def fetch(block: _Block) -> None:
            nonlocal done
            data = retry(lambda: _read(url, block))
            with _writing(folder), (folder / block.name).open("r+b") as stream:
                stream.seek(block.start)
                stream.write(data)
            with lock:
                done += block.length
                update(done)

        pool = ThreadPoolExecutor(_AT_ONCE, "stage")
        try:
            jobs = [pool.submit(fetch, block) for block in blocks]
            finished, _ = wait(jobs, return_when=FIRST_EXCEPTION)
            for job in finished:
                with storage_errors(url):
                    _result(job)
        finally:
            pool.shutdown(cancel_futures=True)
    for name in {block.name for block in blocks}:
        check_contents(folder / name, files[name])


def _result(job: Future[None]) -> None:
    try:
        job.result()
    except _DamagedError as error:
        raise UserError(f"{error}; copy the store to the bucket again") from None


def _missing(folder: Path, name: str, entry: Mapping[str, Any]) -> Iterator[_Block]:
    """The blocks of a file that are not there as they should be; makes room for them."""
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
    """The bytes of a block, as the manifest wants them."""
    data = read_range(f"{url.rstrip('/')}/{block.name}", block.start, block.length)
    if block_digest(data) != block.digest:
        raise _DamagedError(
            f"{url}/{block.name}: bytes {block.start:,} to {block.start + block.length - 1:,} are "
            "not those that were written (sha256)"
        )
    return data


@contextlib.contextmanager
def _locked(folder: Path, url: str) -> Iterator[None]:
    """Holds a store's place in the cache; the system lets go when this process ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"{url}: waits for another process that copies it", file=sys.stderr)
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Says in one line why the cache cannot be written."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{folder}: cannot be written ({error.strerror or error}); make room or give access "
            "there, or name another folder as BERT_JAX_CACHE"
        ) from None
