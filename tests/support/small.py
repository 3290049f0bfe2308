"""Configurations of models small enough for a test."""

from golden_case import RECIPES, TINY, Case, Recipe

from bert_jax.config.optimizer_settings import OptimizerConfig
from bert_jax.config.schema import (
    CheckpointConfig,
    ComputeConfig,
    Config,
    DataConfig,
    DeadlineConfig,
    EvaluationConfig,
    MeshConfig,
    ModelConfig,
    PhaseConfig,
)

COMPUTE = ComputeConfig.plain()
DEADLINES = DeadlineConfig(
    start=600.0,
    compile=600.0,
    data=600.0,
    step=600.0,
    evaluate=600.0,
    save=600.0,
    restore=600.0,
    barrier=600.0,
    peer=60.0,
    grace=60.0,
)


def model_config(case: Case = TINY) -> ModelConfig:
    """A model of the sizes of a parity case, without dropout, its vocabulary padded to 128s."""
    return ModelConfig(
        vocab_size=case.vocab_size,
        hidden_size=case.hidden_size,
        num_hidden_layers=case.layers,
        num_attention_heads=case.heads,
        intermediate_size=case.intermediate_size,
        hidden_act=case.act,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        max_position_embeddings=case.positions,
        type_vocab_size=2,
        initializer_range=0.02,
        layer_norm_eps=1e-12,
        pad_vocab_to_multiple_of=128,
    )


def run_config(case: Case = TINY, recipe: Recipe = RECIPES["adamw"]) -> Config:
    """A run over a parity case's batches with one of its optimizers, on one device."""
    optimizer = OptimizerConfig(
        name=recipe.name,
        learning_rate=case.learning_rate,
        warmup_steps=recipe.warmup_steps,
        decay_power=1.0,
        schedule_over="run",
        phase_moments="carry",
        phase_count="carry",
        b1=recipe.b1,
        b2=recipe.b2,
        eps=recipe.eps,
        weight_decay=recipe.weight_decay,
        clip_norm=recipe.clip_norm,
        max_nonfinite_steps=10,
        moment_dtype="float32",
    )
    data = DataConfig(
        store="",
        source_weights="",
        language_smoothing=1.0,
        pairing="nsp",
        negative_pool="source",
        short_seq_prob=0.1,
        dupe_factor=0,
        masking="token",
        max_ngram=3,
        span_success=0.2,
        max_span=10,
        frequency_exponent=0.7,
        mask_rate=0.15,
        mask_share=0.8,
        random_share=0.1,
        random_tokens="uniform",
        span_boundary=False,
        replaced_tokens=False,
    )
    phase = PhaseConfig(
        steps=recipe.total_steps,
        batch_size=case.rows,
        micro_batches=1,
        seq_length=case.length,
        max_predictions=case.slots,
        examples_per_row=1,
        row_length=0,
        learning_rate=None,
        warmup_steps=None,
    )
    return Config(
        seed=0,
        log_every_steps=1,
        model=model_config(case),
        data=data,
        phases=(phase,),
        optimizer=optimizer,
        mesh=MeshConfig(slice=1, data=1, fsdp=1, tensor=1),
        compute=COMPUTE,
        checkpoint=CheckpointConfig(
            every_steps=1, keep=1, keep_every_steps=0, keep_best=False, write_attempts=1
        ),
        evaluation=EvaluationConfig(every_steps=1, batches=1),
        deadlines=DEADLINES,
    )
