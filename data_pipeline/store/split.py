"""The arrays of one split of a token store."""

from dataclasses import dataclass, field

import numpy as np

from bert_jax.data_pipeline.store.watched_files import WatchedFiles


@dataclass(frozen=True)
class Split:
    """One split's arrays; memory-mapped and read-only when they come from a store."""

    name: str  # "train" or "held_out"
    tokens: np.ndarray  # [T] uint16 or uint32
    sentence_lengths: np.ndarray  # [S] uint32, tokens per sentence, >= 1
    document_lengths: np.ndarray  # [D] uint32, sentences per document, >= 1
    document_source: np.ndarray  # [D] uint16, index into TokenStore.sources
    document_language: np.ndarray  # [D] uint16, index into TokenStore.languages
    token_counts: np.ndarray  # [V] int64
    digest: str  # sha256 over the digests of this split's files
    files: WatchedFiles = field(default_factory=WatchedFiles)  # the memory-mapped files
