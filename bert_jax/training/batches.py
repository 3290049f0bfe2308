"""Builds the batches of a phase from the configuration. Needs no accelerator."""

import dataclasses

from bert_jax.config.schema import Config, DataConfig, PhaseConfig
from bert_jax.data_pipeline.assemble import Batch, BatchArrays
from bert_jax.data_pipeline.batch import Batches
from bert_jax.data_pipeline.masking.masking_settings import MaskingSettings
from bert_jax.data_pipeline.masking.spec import MaskingSpec
from bert_jax.data_pipeline.pairing.modes import PAIRS
from bert_jax.data_pipeline.plan.plan import PlanSpec
from bert_jax.data_pipeline.plan.plan_settings import UNMIXED, PlanSettings
from bert_jax.data_pipeline.store.split import Split
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.storage.cache_dir import cache_dir


def phase_batches(config: Config, store: TokenStore, split: Split, phase: PhaseConfig) -> Batches:
    """Returns the batches of a phase over a split of the store.

    Raises:
        UserError: the split has no text for the phase.
    """
    masking = _masking(*read_as(config, split, phase))
    plan = plan_spec(config, split, phase)
    needs_words = masking.mode.needs_words
    with phase.named(f"config.phases[{config.index_of(phase)}]"):
        return Batches(
            split,
            plan,
            masking,
            phase.batch_size,
            store.special,
            store.vocab_size,
            cache_dir(),
            word_starts=Tokenizer.load(store.tokenizer_path).word_starts if needs_words else None,
            token_counts=store.train.token_counts,
            sources=store.sources,
            languages=store.languages,
        )


def read_as(config: Config, split: Split, phase: PhaseConfig) -> tuple[DataConfig, PhaseConfig]:
    """Returns how a phase reads a split: the data's settings, and the phase.

    Source weights, language smoothing and what else a phase has of its own apply to training text
    only. Held-out text is read unmixed, every document once, so that held-out losses of different
    mixtures and phases are comparable.
    """
    if split.name == "train":
        return config.data_of(phase), phase
    return dataclasses.replace(config.data, **UNMIXED), phase.without_own()


def plan_spec(config: Config, split: Split, phase: PhaseConfig) -> PlanSpec:
    """Returns what decides the rows of a phase over a split."""
    data, shape = read_as(config, split, phase)
    packed = phase.examples_per_row > 1
    return PlanSpec(
        phase.seq_length,
        **data.values(PlanSettings),
        seed=config.seed,
        phase=config.index_of(phase),
        row_tokens=phase.row_tokens,
        row_predictions=shape.row_predictions,
        examples_per_row=phase.examples_per_row,
        predictions=tuple(_masking(data, shape).predictions(phase.seq_length).tolist())
        if packed
        else (),
    )


def _masking(data: DataConfig, phase: PhaseConfig) -> MaskingSpec:
    return MaskingSpec(
        phase.predictions,
        mask_rate_end=phase.mask_rate_end,
        steps=phase.steps,
        **data.values(MaskingSettings),
    )


def held_out_config(config: Config, phase: PhaseConfig) -> Config:
    """Returns the configuration with everything reset that does not define the held-out set.

    A batch has padded rows of one example each, as many as a micro-batch of the run.
    """
    data = dataclasses.replace(config.data, dupe_factor=0)
    rows = phase.batch_size // phase.micro_batches
    held_out_phase = dataclasses.replace(
        phase.without_own(), batch_size=rows, micro_batches=1, examples_per_row=1, row_length=0
    )
    return dataclasses.replace(config.with_only(held_out_phase), seed=0, data=data)


def empty_batch(config: Config, phase: PhaseConfig) -> Batch:
    """Returns `phase_batches(…).batch(0, rows=[])` without a store: names, dtypes and widths."""
    return BatchArrays.empty(
        rows=0,
        tokens=phase.row_tokens,
        predictions=phase.row_predictions,
        pairs=phase.examples_per_row if config.data.pairing in PAIRS else 0,
        spans=phase.row_predictions if config.data.span_boundary else 0,
        draws=phase.row_predictions if config.data.replaced_tokens else 0,
    ).by_name()
