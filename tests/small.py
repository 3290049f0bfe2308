"""Configurations of models small enough for a test."""

from goldens.case import RECIPES, TINY, Case, Recipe

from bert_jax.config import (
    CheckpointConfig,
    ComputeConfig,
    Config,
    DataConfig,
    EvaluationConfig,
    MeshConfig,
    ModelConfig,
    OptimizerConfig,
    PhaseConfig,
)

COMPUTE = ComputeConfig(dtype="float32", unroll_layers=1)


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
        b1=recipe.b1,
        b2=recipe.b2,
        eps=recipe.eps,
        weight_decay=recipe.weight_decay,
        clip_norm=recipe.clip_norm,
    )
    data = DataConfig(
        store="",
        pairing="nsp",
        negative_pool="source",
        short_seq_prob=0.1,
        masking="token",
        mask_rate=0.15,
        mask_share=0.8,
        random_share=0.1,
    )
    phase = PhaseConfig(
        steps=recipe.total_steps,
        batch_size=case.rows,
        seq_length=case.length,
        max_predictions=case.slots,
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
        checkpoint=CheckpointConfig(every_steps=1, keep=1),
        evaluation=EvaluationConfig(every_steps=1, batches=1),
    )
