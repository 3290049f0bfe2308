"""Writes the arrays of one split of a store in pieces."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import numpy as np

from bert_jax.data_pipeline.store.manifest import ARRAYS, token_type
from bert_jax.data_pipeline.store.writer import ArrayWriter

_COUNTED: Final = 1 << 22  # ids that are counted at once, as int64


class SplitWriter:
    """The files of a split, of known lengths; they are opened by `with`.

    Attributes:
        kind: dtype of the ids.
    """

    def __init__(self, folder: Path, counts: np.ndarray, vocab_size: int) -> None:
        """
        Args:
            counts: of the split's documents, sentences and tokens first.
        """
        documents, sentences, tokens, *_ = counts.tolist()
        lengths = {"tokens": tokens, "sentence_lengths": sentences, "token_counts": vocab_size}
        self.kind = token_type(vocab_size)
        self._folder = folder
        self._lengths = {name: lengths.get(name, documents) for name in ARRAYS}
        self._counts = np.zeros(vocab_size, np.int64)
        self._opened, self._writers = ExitStack(), dict[str, ArrayWriter]()

    def __enter__(self) -> "SplitWriter":
        with self._opened as opened:
            for name, length in self._lengths.items():
                kind = np.dtype(ARRAYS[name] or self.kind)
                writer = ArrayWriter(self._folder / f"{name}.npy", kind, length)
                self._writers[name] = opened.enter_context(writer)
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._opened.close()

    def append(self, **arrays: np.ndarray) -> None:
        """Appends documents: all arrays but `token_counts`."""
        for name, values in arrays.items():
            self._writers[name].append(values)
        tokens = arrays["tokens"]
        for start in range(0, len(tokens), _COUNTED):
            chunk = tokens[start : start + _COUNTED]
            self._counts += np.bincount(chunk, minlength=len(self._counts))

    def close(self) -> dict[str, dict[str, Any]]:
        """Closes the files; returns their entries in the manifest."""
        self._writers["token_counts"].append(self._counts)
        entries = {name: writer.close() for name, writer in self._writers.items()}
        return {f"{self._folder.name}/{name}.npy": entry for name, entry in entries.items()}
