"""BERT-base, and the defaults every other config starts from.

    bert-jax pretrain --config=base --config.data.store=STORE --workdir=RUN

110,106,428 parameters with both heads, as transformers' BertForPreTraining counts them (checked by
a test). The training values are the paper's (Devlin et al. 2018, appendix A.2) at sequence length
128. Not measured here.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.seed = 0
    config.log_every_steps = 100

    config.model = ConfigDict()
    config.model.vocab_size = 30522
    config.model.hidden_size = 768
    config.model.num_hidden_layers = 12
    config.model.num_attention_heads = 12
    config.model.intermediate_size = 3072
    config.model.hidden_act = "gelu"  # gelu (erf) or gelu_tanh
    config.model.hidden_dropout_prob = 0.1
    config.model.attention_probs_dropout_prob = 0.1
    config.model.max_position_embeddings = 512
    config.model.type_vocab_size = 2
    config.model.initializer_range = 0.02
    config.model.layer_norm_eps = 1e-12
    config.model.pad_vocab_to_multiple_of = 128  # zero rows for the hardware, stripped at export

    config.data = ConfigDict()
    config.data.store = ""  # folder that `bert-jax data build` made
    config.data.pairing = "nsp"
    config.data.negative_pool = "source"  # source, or corpus (the paper)
    config.data.short_seq_prob = 0.1
    config.data.masking = "token"
    config.data.mask_rate = 0.15
    config.data.mask_share = 0.8
    config.data.random_share = 0.1

    phase = ConfigDict()
    phase.steps = 1_000_000
    phase.batch_size = 256
    phase.seq_length = 128
    phase.max_predictions = 20
    config.phases = (phase,)

    config.optimizer = ConfigDict()
    config.optimizer.name = "bert_adamw"  # bert_adamw (no bias correction) or adamw
    config.optimizer.learning_rate = 1e-4
    config.optimizer.warmup_steps = 10_000
    config.optimizer.b1 = 0.9
    config.optimizer.b2 = 0.999
    config.optimizer.eps = 1e-6
    config.optimizer.weight_decay = 0.01
    config.optimizer.clip_norm = 1.0

    config.mesh = ConfigDict()
    config.mesh.slice = 1
    config.mesh.data = -1  # all devices that are left
    config.mesh.fsdp = 1
    config.mesh.tensor = 1

    config.compute = ConfigDict()
    config.compute.dtype = "bfloat16"  # of activations; parameters are float32
    config.compute.unroll_layers = 1  # per iteration of the scan over layers; 0 = all

    config.checkpoint = ConfigDict()
    config.checkpoint.every_steps = 1000
    config.checkpoint.keep = 3

    config.evaluation = ConfigDict()
    config.evaluation.every_steps = 1000
    config.evaluation.batches = 64
    return config
