"""A small store of random documents, and the shortest config that trains on it."""

import dataclasses
from pathlib import Path

import numpy as np
from stores import StoredDocument, write_store

from bert_jax.config.config_files import load
from bert_jax.config.schema import Config
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = 95


def small_store(
    path: Path,
    *,
    documents: int = 40,
    held_out: int = 8,
    words: str = "w",
    repeat: bool = False,
    sentences: int = 8,
) -> TokenStore:
    """Documents of up to `sentences` short sentences over 100 entries, from two sources.

    words: how entries of the vocabulary begin. repeat: every document says one word over and over.
    """
    rng = np.random.default_rng(0)

    def document(source: int) -> StoredDocument:
        count, first = rng.integers(1, sentences + 1), len(SPECIAL)
        low = int(rng.integers(first, first + WORDS)) if repeat else first
        high = low + 1 if repeat else first + WORDS
        made = [rng.integers(low, high, rng.integers(1, 12)).tolist() for _ in range(count)]
        return StoredDocument(made, source=source)

    made = [document(i % 2) for i in range(documents + held_out)]
    return write_store(
        path,
        tokenizer=Tokenizer.from_vocab(
            [*SPECIAL, *(f"{words}{i}" for i in range(WORDS))], lowercase=True
        ),
        train=made[held_out:],
        held_out=made[:held_out],
        sources=("wiki", "books"),
    )


def small_config(store: TokenStore, **changes: object) -> Config:
    """Two layers, 32 wide, 12 steps of 8 rows of 32 tokens; `changes` go to the whole config."""
    config = load("tiny")
    (phase,) = config.phases
    config = dataclasses.replace(
        config,
        model=dataclasses.replace(
            config.model,
            vocab_size=store.vocab_size,
            hidden_size=32,
            intermediate_size=64,
            max_position_embeddings=32,
            pad_vocab_to_multiple_of=64,
        ),
        data=dataclasses.replace(config.data, store=str(store.path)),
        phases=(
            dataclasses.replace(phase, steps=12, batch_size=8, seq_length=32, max_predictions=5),
        ),
        optimizer=dataclasses.replace(config.optimizer, warmup_steps=3),
        log_every_steps=4,
    )
    return dataclasses.replace(config, **changes)


def two_phases(store: TokenStore, steps: tuple[int, int] = (6, 6), **changes: object) -> Config:
    """One layer in two phases: rows of 16 tokens, then of 32 with moments and count anew."""
    config = small_config(store)
    (phase,) = config.phases
    short = dataclasses.replace(phase, steps=steps[0], seq_length=16, max_predictions=3)
    long = dataclasses.replace(phase, steps=steps[1])
    optimizer = dataclasses.replace(
        config.optimizer, name="adamw", phase_moments="reset", phase_count="reset"
    )
    config = dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, num_hidden_layers=1),
        phases=(short, long),
        optimizer=optimizer,
    )
    return dataclasses.replace(config, **changes)
