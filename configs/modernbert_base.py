r"""ModernBERT-base: local and global attention, gates, rotary positions; length 1,024, then 8,192.

    bert-jax data build --source=... --tokenizer=tokenizer.json --out=STORE
    bert-jax pretrain --config=modernbert_base --config.data.store=STORE --workdir=RUN

Warner et al. 2024 (arXiv 2412.13663, table 3 and section 2) on 2 trillion tokens: 1,719 billion at
length 1,024, batch 4,608, rate 8e-4 after a warmup of 3 billion; 250 billion at length 8,192, batch
576, rate 3e-4; and 50 billion in which the rate decays as 1 - √. StableAdamW (betas 0.9 and 0.98,
eps 1e-6, decay 1e-5), 30 % masks, no pairs, packed rows. With the vocabulary of the release (50,368
rows) 149,655,232 parameters, as transformers' ModernBertForMaskedLM (checked by a test). Published:
GLUE dev 88.4 (table 1); not measured here.

Differences from the release: activations between layers are bfloat16 (release: matrix products are,
by autocast); the batch does not grow from 768 rows over the first 50 billion tokens. All moments
carry over between phases. Any tokenizer of the store works. Initial values are those of
transformers' class. The global theta of the rotary positions is 10,000 at length 1,024 and 160,000
at 8,192, as there; the local one is 10,000 in all phases.

micro_batches: 12 rows of 1,024 tokens or 1 of 8,192 at a time on each of 16 devices with 16 GB
(v5e-16): compiled with layers in a loop (docs/compile.md), not run.

Hours by the TPU compiler, layers in a loop (docs/compile.md): 484, 75 and 15 for the three phases
on v5e-16; 444, 71 and 14 on v5p-16.
"""

from ml_collections import ConfigDict

from bert_jax.configs import base

SLICE = "v5e-16"
TOKENS = 4608 * 1024  # of a batch


def get_config() -> ConfigDict:
    config = base.get_config()
    layers(config.model)
    config.data.pairing = "full_sentences"
    config.data.short_seq_prob = 0.0
    config.data.mask_rate = 0.3
    config.phases = phases(config.phases[0], short=1719, long=250, decay=50)
    for phase, rate in zip(config.phases, (8e-4, 3e-4, 3e-4), strict=True):
        phase.learning_rate = rate
    optimizer(config.optimizer)
    return config


def layers(model: ConfigDict) -> None:
    """Sets the layers of ModernBERT-base."""
    model.layout = "modernbert"
    model.hidden_size, model.num_attention_heads = 768, 12
    model.num_hidden_layers, model.intermediate_size = 22, 1152
    model.max_position_embeddings = 8192
    model.position, model.norm_position = "rotary", "pre"
    model.first_attention_norm = model.norm_bias = model.linear_bias = False
    model.gated_mlp = True
    model.local_attention = 128
    model.global_rope_theta = 160_000.0
    model.layer_norm_eps = 1e-5
    model.type_vocab_size = 0
    model.hidden_dropout_prob = model.attention_probs_dropout_prob = 0.0


def phases(
    phase: ConfigDict, *, short: float, long: float, decay: float, rows: int = 4608
) -> tuple[ConfigDict, ...]:
    """Returns a phase at length 1,024, one at 8,192, and one there in which the rate decays.

    Args:
        short, long, decay: billions of tokens.
        rows: of 1,024 tokens in a batch.
    """
    phase.seq_length, phase.max_predictions = 1024, 307
    phase.batch_size, phase.micro_batches = rows, 24
    phase.examples_per_row = 16
    phase.decay_share = 0.0
    phase.steps = round(short * 1e9 / (rows * 1024))
    phase.global_rope_theta = 10_000.0
    extended = phase.copy_and_resolve_references()
    extended.global_rope_theta = None  # the model's, also in a config that starts from this one
    extended.seq_length, extended.max_predictions = 8192, 2458
    extended.batch_size, extended.micro_batches = rows // 8, 36
    extended.examples_per_row = 64
    extended.steps, extended.warmup_steps = round(long * 1e9 / (rows * 1024)), 0
    last = extended.copy_and_resolve_references()
    last.steps, last.decay_share = round(decay * 1e9 / (rows * 1024)), 1.0
    return phase, extended, last


def optimizer(settings: ConfigDict) -> None:
    """Sets ModernBERT's optimizer and schedule."""
    settings.name = "stable_adamw"
    settings.learning_rate = 8e-4
    settings.b2, settings.eps = 0.98, 1e-6
    settings.weight_decay = 1e-5 / 8e-4  # of the rate: the release decays by 1e-5 at the peak
    settings.clip_norm = 0.0
    settings.schedule, settings.schedule_over = "trapezoid", "phase"
    settings.warmup_steps = round(3e9 / TOKENS)
