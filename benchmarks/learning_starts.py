"""Other initial values for `learning_variants.py`, as models for `config.init`.

--table=starts: each changes published initial values. "sinusoids" gives the position table sines
and cosines; "mimetic" (Trockman and Kolter 2023, arXiv 2305.09828, section 4) also brings the
product of query and key near the identity; "symmetric" (Saponati et al. 2025, arXiv 2502.10927)
starts with equal queries and keys.

--table=special: each changes those with positional heads. "no_segments" starts with a segment table
of zeros, "no_special" with zeros in the rows of [CLS], [SEP] and [MASK], "large_special" with a
segment table and rows of [CLS] and [SEP] three times as large.

--table=vectors: "exact" starts words from the singular vectors of scipy's svds, in place of those
of data_pipeline/analysis/word_vectors.py, and the output bias as the counted start does.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

SHARE = 0.7  # of noise and of the identity in mimetic products, as for the paper's query and key


def write(start: str, config: Any, store: Any, folder: Path) -> None:
    """Writes a model with these initial values of `config` into a folder."""
    import jax

    from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
    from bert_jax.objectives.known_objectives import chosen
    from bert_jax.objectives.pretraining_model import init_params
    from bert_jax.publish.export import export
    from bert_jax.publish.model_card import Card

    objectives = chosen(config.data)
    params = init_params(config.model, config.compute, objectives, jax.random.key(config.seed))
    params = jax.tree.map(np.array, params)
    tokenizer = Tokenizer.load(store.tokenizer_path)
    change(start, params["encoder"], config.model, np.random.default_rng(config.seed))
    change_special(start, params["encoder"]["embeddings"], tokenizer.special)
    if start == "exact":
        count(params, config.model, store)
    export(params, config.model, tokenizer, folder, card=Card(objectives=objectives))


def change(start: str, encoder: Any, model: Any, rng: np.random.Generator) -> None:
    from bert_jax.model.positional_heads import sinusoids

    if start in ("sinusoids", "mimetic"):
        std = model.initializer_range
        table = sinusoids(model.max_position_embeddings, model.hidden_size, std)
        encoder["embeddings"]["position"][:] = table
    kernel = encoder["layers"]["attention"]["qkv"]["kernel"]  # [L, H, 3, A, D]
    if start == "symmetric":
        kernel[:, :, 1] = kernel[:, :, 0]
    if start == "mimetic":
        for layer in kernel:
            for head in range(model.num_attention_heads):
                layer[:, 0, head], layer[:, 1, head] = mimetic(rng, model)


def change_special(start: str, embeddings: Any, special: Any) -> None:
    ends = [special.cls, special.sep]
    if start == "no_segments":
        embeddings["type"][:] = 0
    if start == "no_special":
        embeddings["word"][[*ends, special.mask]] = 0
    if start == "large_special":
        embeddings["word"][ends] *= 3
        embeddings["type"][:] *= 3


def count(params: Any, model: Any, store: Any) -> None:
    """Starts words and the output bias from counts, with the exact singular vectors."""
    import scipy.sparse.linalg

    from bert_jax.data_pipeline.analysis.cooccurrence import (
        count_cooccurrences,
        text_of,
        window_weights,
    )
    from bert_jax.model.positional_heads import TRUNCATED

    size, width = store.vocab_size, model.hidden_size
    with ThreadPoolExecutor() as pool:
        text = text_of(store.train, size, 10**9)
        found = count_cooccurrences(text, window_weights(model.cooccurrence.window), pool)
    place = found.weights, found.others, found.offsets
    near = scipy.sparse.csr_array(place, shape=(size, size)).tocoo()
    row, column = near.coords
    contexts = found.sums**model.cooccurrence.smoothing
    information = np.log(near.data / found.sums[row] * contexts.sum() / contexts[column])
    matrix = scipy.sparse.csr_array((np.maximum(information, 0), near.coords), shape=(size, size))
    left, values, _ = scipy.sparse.linalg.svds(matrix, width, v0=np.ones(size))
    words = left * values**model.cooccurrence.exponent
    known = (found.counts >= 3) & words.any(axis=1)
    known[list(store.special)] = False
    length = TRUNCATED * model.initializer_range * width**0.5
    rows = words[known] / np.linalg.norm(words[known], axis=1, keepdims=True)
    params["encoder"]["embeddings"]["word"][: len(known)][known] = length * rows
    logs = np.log(found.counts + 1.0)
    params["mlm"]["bias"][: len(logs)] = logs - logs.mean()


def mimetic(rng: np.random.Generator, model: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns a query and a key kernel [H, D] whose product is near noise plus the identity."""
    size, dim = model.hidden_size, model.head_dim
    noise = rng.normal(size=(size, size)) / size**0.5
    left, values, right = np.linalg.svd(SHARE * noise + SHARE * np.eye(size))
    root = values[:dim] ** 0.5
    return left[:, :dim] * root, right[:dim].T * root
