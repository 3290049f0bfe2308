"""Writes a token store, file by file; see `store` for its format."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from bert_jax.data_pipeline.store.digests import FileDigest, entry_of
from bert_jax.data_pipeline.store.manifest import (
    FORMAT_VERSION,
    MANIFEST,
    TOKENIZER,
    manifest_digest,
)
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.storage import atomic


class ArrayWriter:
    """Writes a one-dimensional .npy file of known length in pieces, hashing it at the same time."""

    def __init__(self, path: Path, dtype: np.dtype, length: int) -> None:
        self._path, self._dtype, self._length = path, np.dtype(dtype), length
        self._digest, self._written = FileDigest(), 0
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO = path.open("wb")
        header = {"descr": self._dtype.str, "fortran_order": False, "shape": (length,)}
        try:
            np.lib.format.write_array_header_1_0(self, header)
        except OSError:
            self._file.close()
            raise

    def write(self, data: bytes | memoryview) -> None:
        """Appends raw bytes (numpy's header writer calls this too)."""
        self._file.write(data)
        self._digest.update(data)

    def append(self, values: np.ndarray) -> None:
        """Appends elements, which must have the file's dtype."""
        if values.dtype != self._dtype:
            raise TypeError(f"{self._path}: {values.dtype} elements for a {self._dtype} file")
        self._written += len(values)
        self.write(np.ascontiguousarray(values).data.cast("B") if len(values) else b"")

    def __enter__(self) -> "ArrayWriter":
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def close(self) -> dict[str, Any]:
        """Closes the file; returns its entry in the manifest."""
        self._file.close()
        if self._written != self._length:
            raise ValueError(f"{self._path}: {self._written} elements, expected {self._length}")
        return self._digest.entry()


def write_manifest(
    folder: Path,
    *,
    tokenizer: Tokenizer,
    sources: Sequence[Mapping[str, Any]],
    languages: Sequence[str],
    held_out_share: float | None,
    build_digest: str,
    files: Mapping[str, Mapping[str, Any]],
    build: Mapping[str, Any] | None = None,
) -> None:
    """Writes tokenizer.json and, last, manifest.json to a store folder."""
    atomic.write_bytes(folder / TOKENIZER, tokenizer.json)
    manifest = {
        "format_version": FORMAT_VERSION,
        "tokenizer_digest": tokenizer.digest,
        "vocab_size": tokenizer.vocab_size,
        "special": tokenizer.special._asdict(),
        "sources": list(sources),
        "languages": list(languages),
        "held_out_share": held_out_share,
        "build_digest": build_digest,
        **({"build": build} if build else {}),
        "files": {**files, TOKENIZER: entry_of(tokenizer.json)},
    }
    manifest["digest"] = manifest_digest(manifest)
    text = json.dumps(manifest, indent=1, sort_keys=True, ensure_ascii=False)
    atomic.write_text(folder / MANIFEST, text + "\n")
