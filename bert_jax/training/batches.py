"""Builds the batches of a phase from the configuration. Needs no accelerator."""

from bert_jax.config.schema import Config, PhaseConfig
from bert_jax.data_pipeline.assemble import Batch, BatchArrays
from bert_jax.data_pipeline.batch import Batches
from bert_jax.data_pipeline.masking import MaskingSpec
from bert_jax.data_pipeline.pairing.modes import PAIRS
from bert_jax.data_pipeline.plan.plan import PlanSpec
from bert_jax.data_pipeline.storage.cache_dir import cache_dir
from bert_jax.data_pipeline.store.split import Split
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError


def phase_batches(config: Config, store: TokenStore, split: Split, phase: PhaseConfig) -> Batches:
    """Returns the batches of a phase over a split of the store.

    Source weights and language smoothing apply to training text only. Held-out text is read
    unmixed, every document once, so that held-out losses of different mixtures are comparable.
    """
    data = config.data
    training = split.name == "train"
    masking = MaskingSpec(
        max_predictions=phase.max_predictions,
        mode=data.masking,
        rate=data.mask_rate,
        mask_share=data.mask_share,
        random_share=data.random_share,
        max_ngram=data.max_ngram,
        span_success=data.span_success,
        max_span=data.max_span,
        random_tokens=data.random_tokens,
    )
    packed = phase.examples_per_row > 1
    words = Tokenizer.load(store.tokenizer_path).word_starts if masking.needs_words else None
    return Batches(
        split,
        PlanSpec(
            seq_length=phase.seq_length,
            pairing=data.pairing,
            separators=data.separators,
            short_seq_prob=data.short_seq_prob,
            negative_pool=data.negative_pool,
            seed=config.seed,
            phase=_number(config, phase),
            dupe_factor=data.dupe_factor,
            source_weights=parse_weights(data.source_weights) if training else (),
            language_smoothing=data.language_smoothing if training else 1.0,
            row_tokens=phase.row_tokens,
            row_predictions=phase.row_predictions,
            examples_per_row=phase.examples_per_row,
            predictions=tuple(masking.predictions(phase.seq_length).tolist()) if packed else (),
        ),
        masking,
        phase.batch_size,
        store.special,
        store.vocab_size,
        cache_dir(),
        word_starts=words,
        token_counts=store.train.token_counts,
        span_boundary=data.span_boundary,
        sources=store.sources,
        languages=store.languages,
    )


def empty_batch(config: Config, phase: PhaseConfig) -> Batch:
    """Returns `phase_batches(…).batch(0, rows=[])` without a store: names, dtypes and widths."""
    return BatchArrays.empty(
        rows=0,
        tokens=phase.row_tokens,
        predictions=phase.row_predictions,
        pairs=phase.examples_per_row if config.data.pairing in PAIRS else 0,
        spans=phase.row_predictions if config.data.span_boundary else 0,
    ).by_name()


def _number(config: Config, phase: PhaseConfig) -> int:
    """Returns the index of a phase; phases with equal settings still get different text."""
    same = [i for i, other in enumerate(config.phases) if other is phase]
    return same[0] if same else config.phases.index(phase)


def parse_weights(text: str) -> tuple[tuple[str, float], ...]:
    """Parses "books=2,wiki=0.5" into (name, weight) pairs, sorted by name.

    Raises:
        UserError: the text has another format.
    """
    weights = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, number = part.rpartition("=")
        try:
            weights.append((name.strip(), float(number)))
        except ValueError:
            equals = ""
        if not (equals and name.strip()):
            raise UserError(
                f'config.data.source_weights: "{part}" is not of the form source=number; '
                'write "books=2,wiki=0.5"'
            )
    return tuple(sorted(weights))
