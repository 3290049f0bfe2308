"""The manifest of a token store: the list of its files, with digests that identify them.

`store` documents the files and the fields.
"""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.data_pipeline.store.manifest_schema import check_fields
from bert_jax.errors import UserError
from bert_jax.storage import json_record
from bert_jax.storage.digest import json_digest, sha256
from bert_jax.storage.hub import check_not_hub
from bert_jax.storage.read_files import read_bytes
from bert_jax.storage.remote import STORAGE_RETRIES, is_remote, open_path, storage_errors
from bert_jax.storage.retry import RetryPolicy, retry

FORMAT_VERSION = 2
MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"
SPLITS = ("train", "held_out")
# Array name -> element type; the type of tokens depends on the vocabulary, see `token_type`.
ARRAYS: Mapping[str, Any] = {
    "tokens": None,
    "sentence_lengths": np.uint32,
    "document_lengths": np.uint32,
    "document_source": np.uint16,
    "document_language": np.uint16,
    "token_counts": np.int64,
}
FILES = (TOKENIZER, *(f"{split}/{array}.npy" for split in SPLITS for array in ARRAYS))


class _InvalidError(UserError):
    """A manifest that was read is not valid."""


_INVALID_RETRIES = RetryPolicy(
    attempts=3, pause=0.0, retryable=lambda error: isinstance(error, _InvalidError)
)


def token_type(vocab_size: int) -> np.dtype:
    """Returns the dtype of tokens.npy: uint16 if it can represent every id, else uint32."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)


def split_digest(name: str, files: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the sha256 over the file digests of one split, in the order of `ARRAYS`."""
    return sha256("".join(f"{a}:{files[f'{name}/{a}.npy']['sha256']}\n" for a in ARRAYS).encode())


def bytes_to_verify(manifest: Mapping[str, Any]) -> int:
    """Returns the bytes that `open_store` reads: every file for its hash, the ids once more."""
    files = manifest["files"]
    ids = sum(files[f"{split}/tokens.npy"]["bytes"] for split in SPLITS)
    return ids + sum(entry["bytes"] for entry in files.values())


def read_manifest(path: Path | str) -> dict[str, Any]:
    """Reads manifest.json of the store at `path`, a local folder or one in a bucket.

    Raises:
        UserError: the manifest is missing, is not JSON, was changed, or has another format version
            or other fields; or the bucket cannot be read.
    """
    return fetch_manifest(path)[1]


def fetch_manifest(path: Path | str) -> tuple[bytes, dict[str, Any]]:
    """Returns manifest.json as raw bytes and parsed; raises UserError as `read_manifest` does.

    A bad connection can damage the bytes, so a manifest that is not valid is read again.
    """

    def read() -> tuple[bytes, dict[str, Any]]:
        data = manifest_bytes(path)
        try:
            return data, parse_manifest(data, f"{path}/{MANIFEST}")
        except UserError as error:
            raise _InvalidError(str(error)) from None

    return retry(read, _INVALID_RETRIES)


def manifest_bytes(path: Path | str) -> bytes:
    """Returns the raw bytes of manifest.json; raises UserError as `read_manifest` does."""
    check_not_hub(path)
    where = "no such bucket, or " if is_remote(path) else ""
    try:
        with storage_errors(path):
            file = open_path(path) / MANIFEST
            return retry(functools.partial(read_bytes, file), STORAGE_RETRIES)
    except UserError as error:
        if not isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            raise
        raise UserError(
            f"{path}: not a token store ({where}no {MANIFEST}); make one with `bert-jax data build`"
        ) from None


def parse_manifest(data: bytes, file: str) -> dict[str, Any]:
    """Parses a manifest; raises UserError, naming `file`, as `read_manifest` does."""
    try:
        manifest: dict[str, Any] = json_record.parse(data, {"format_version": object})
        version = manifest["format_version"]
    except ValueError:
        raise UserError(f"{file}: not a token store's manifest; build the store again") from None
    if version != FORMAT_VERSION:
        raise UserError(
            f"{file}: format version {version}, this program reads {FORMAT_VERSION}; "
            "build the store again"
        )
    if manifest.get("digest") != manifest_digest(manifest):
        raise UserError(
            f"{file}: was changed after it was written (its digest does not match); "
            "copy it again or rebuild the store"
        )
    check_fields(file, manifest, FILES)
    return manifest


def manifest_digest(manifest: Mapping[str, Any]) -> str:
    """Returns the sha256 of a manifest as compact JSON with sorted keys, without "digest"."""
    rest = {key: value for key, value in manifest.items() if key != "digest"}
    return json_digest(rest, compact=True)
