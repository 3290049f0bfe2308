"""Statistics of the training text for the baselines."""

import dataclasses

import numpy as np

from bert_jax.data_pipeline.store.store import TokenStore


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Token frequencies and sources of the training text."""

    sources: tuple[str, ...]
    log_unigram: np.ndarray  # float32 [V] log-frequencies of the ids, add-one smoothed

    @classmethod
    def of(cls, store: TokenStore, specials: tuple[float, float] = (0.0, 0.0)) -> "Corpus":
        """specials: numbers of predictable [CLS] and [SEP] per token of text."""
        counts = store.train.token_counts.astype(np.float64)
        counts[[store.special.cls, store.special.sep]] += np.multiply(specials, counts.sum())
        counts += 1
        return cls(store.sources, np.log(counts / counts.sum()).astype(np.float32))
