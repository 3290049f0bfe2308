"""The border between configuration and data: the batches of a phase. Needs no accelerator."""

import os
from pathlib import Path

from bert_jax.config import Config, PhaseConfig
from data_pipeline.batch import Batches
from data_pipeline.masking import MaskingSpec
from data_pipeline.plan import PlanSpec
from data_pipeline.store import Split, TokenStore
from data_pipeline.tokenizer import Tokenizer


def make_batches(config: Config, store: TokenStore, split: Split, phase: PhaseConfig) -> Batches:
    """The batches of a phase over a split of the store."""
    data = config.data
    return Batches(
        split,
        PlanSpec(
            seq_length=phase.seq_length,
            pairing=data.pairing,
            short_seq_prob=data.short_seq_prob,
            negative_pool=data.negative_pool,
            seed=config.seed,
            phase=config.phases.index(phase),
        ),
        MaskingSpec(
            max_predictions=phase.max_predictions,
            mode=data.masking,
            rate=data.mask_rate,
            mask_share=data.mask_share,
            random_share=data.random_share,
            max_ngram=data.max_ngram,
            span_success=data.span_success,
            max_span=data.max_span,
            random_tokens=data.random_tokens,
        ),
        phase.batch_size,
        store.special,
        store.vocab_size,
        cache_dir(),
        word_starts=Tokenizer.load(store.tokenizer_path).word_starts,
        token_counts=store.train.token_counts,
        span_boundary=data.span_boundary,
        sources=store.sources,
        languages=store.languages,
    )


def cache_dir() -> Path:
    """Where plans are kept: $BERT_JAX_CACHE, or bert_jax in the user's cache folder."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bert_jax"
    return Path(os.environ.get("BERT_JAX_CACHE") or default)
