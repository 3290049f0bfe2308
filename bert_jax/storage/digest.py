"""Digests (sha256, in hexadecimal) of bytes, files and JSON values."""

import hashlib
import json
from pathlib import Path
from typing import Any

from bert_jax.storage.regular_file import open_regular


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def file_digest(path: Path) -> str:
    """Returns the sha256 of a file."""
    with open_regular(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def json_digest(value: Any, *, compact: bool = False, sort_keys: bool = True) -> str:
    """Returns the sha256 of a value as JSON.

    These digests are stored with stores, plans, shards and checkpoints: a change of the JSON text
    would invalidate them all.

    Args:
        compact: without spaces, as in the digests of stores.
        sort_keys: else in their own order, as in the digests of builds and shards.
    """
    separators = (",", ":") if compact else (", ", ": ")
    return sha256(json.dumps(value, sort_keys=sort_keys, separators=separators).encode())
