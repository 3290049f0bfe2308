"""BERT-base, and the defaults that every other config starts from.

    bert-jax pretrain --config=base --config.data.store=STORE --workdir=RUN

110,106,428 parameters with both heads, as in transformers' BertForPreTraining (checked by a test).
The training hyperparameters are the paper's (Devlin et al. 2018, appendix A.2) at sequence length
128. Not measured here.

Differences from the release: activations between layers are bfloat16 (release: float32,
`--config.compute.dtype=float32`). Pairs and masks are drawn again in every epoch (release: 10 fixed
sets written in advance, `--config.data.dupe_factor=10`). A random second sentence comes from a
document of the same source (release: of any, `--config.data.negative_pool=corpus`). Losses are
divided by the counts of the global batch (release: of each core, plus 1e-5). The paper trains the
last tenth of its steps at length 512: see `wiki_books_base`.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

SLICE = "v5e-16"  # the default target of `bert-jax compile`


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.seed = 0
    config.log_every_steps = 100
    config.objectives = ""  # "mlm,nsp"; "" = all that the data have labels for

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
    config.model.pad_vocab_to_multiple_of = 128  # zero rows, stripped at export

    config.data = ConfigDict()
    config.data.store = ""  # folder written by `bert-jax data build`
    config.data.source_weights = ""  # "books=2,wiki=0.5": visits to each document per epoch
    config.data.language_smoothing = 1.0  # exponent on language shares; multilingual BERT: 0.7
    config.data.pairing = "nsp"  # nsp, sop, full_sentences, doc_sentences or single
    config.data.separators = "documents"  # [SEP] between documents, or after sentences (fairseq)
    config.data.negative_pool = "source"  # source, or corpus (the paper)
    config.data.short_seq_prob = 0.1
    config.data.dupe_factor = 0  # 0 = new pairs and masks every epoch; n = n fixed sets
    config.data.masking = "token"  # token, whole_word, ngram, span or roberta
    config.data.max_ngram = 3  # ALBERT's
    config.data.span_success = 0.2  # SpanBERT's
    config.data.max_span = 10  # SpanBERT's
    config.data.mask_rate = 0.15
    config.data.mask_share = 0.8
    config.data.random_share = 0.1
    config.data.random_tokens = "uniform"  # over the vocabulary; unigram: by frequency in the text
    config.data.span_boundary = False  # SpanBERT's objective; needs masking = "span"

    phase = ConfigDict()
    phase.steps = 1_000_000
    phase.batch_size = 256
    phase.micro_batches = 1  # gradient accumulation steps per update
    phase.seq_length = 128
    phase.max_predictions = 20
    phase.examples_per_row = 1  # above 1: sequence packing
    phase.row_length = 0  # tokens per packed row; 0 = seq_length
    phase.learning_rate = placeholder(float)  # only with schedule_over = "phase"
    phase.warmup_steps = placeholder(int)
    config.phases = (phase,)

    config.optimizer = ConfigDict()
    # bert_adamw (no bias correction), adamw, lamb, lamb_albert, lamb_all or lamb_clamped
    config.optimizer.name = "bert_adamw"
    config.optimizer.learning_rate = 1e-4
    config.optimizer.warmup_steps = 10_000
    config.optimizer.schedule = "bert"  # decays from step 0; fairseq: after the warmup
    config.optimizer.decay_power = 1.0
    config.optimizer.schedule_over = "run"  # or phase: each phase has its own warmup and decay
    config.optimizer.phase_moments = "carry"  # or reset, at the start of each later phase
    config.optimizer.phase_count = "carry"
    config.optimizer.b1 = 0.9
    config.optimizer.b2 = 0.999
    config.optimizer.eps = 1e-6
    config.optimizer.moment_dtype = "float32"  # or bfloat16: half the memory
    config.optimizer.weight_decay = 0.01
    config.optimizer.weight_decay_on = "weights"  # or all: biases and LayerNorm too (fairseq)
    config.optimizer.clip_norm = 1.0
    config.optimizer.max_nonfinite_steps = 10  # in a row, all skipped; then the run stops

    config.mesh = ConfigDict()
    config.mesh.slice = 1
    config.mesh.data = -1  # -1 = all remaining devices
    config.mesh.fsdp = 1
    config.mesh.tensor = 1

    config.compute = ConfigDict()
    config.compute.dtype = "bfloat16"  # of activations; parameters stay float32
    config.compute.unroll_layers = 0  # layers per scan iteration; 0 = all (no scan)
    config.compute.attention = "auto"  # or xla, pallas, cudnn; auto with attention dropout: xla
    config.compute.remat = "none"
    config.compute.shard_optimizer = True  # each device updates its shard (ZeRO-1)

    config.checkpoint = ConfigDict()
    config.checkpoint.every_steps = 1000
    config.checkpoint.keep = 3
    config.checkpoint.keep_every_steps = 0  # keep multiples of this permanently; 0 = none
    config.checkpoint.keep_best = True  # of each phase, by held-out loss
    config.checkpoint.write_attempts = 6  # 1, 2, 4, … s apart; then the run stops

    config.evaluation = ConfigDict()
    config.evaluation.every_steps = 1000
    config.evaluation.batches = 64

    # Watchdog timeouts: seconds before a process counts as hung (docs/reliability.md).
    config.deadlines = ConfigDict()
    config.deadlines.start = 600.0
    config.deadlines.compile = 1800.0  # one program
    config.deadlines.data = 600.0  # waiting for a batch
    config.deadlines.step = 600.0
    config.deadlines.evaluate = 600.0  # one batch
    config.deadlines.save = 500.0  # below `step`: the other processes wait for process 0 in one
    config.deadlines.restore = 1800.0
    config.deadlines.barrier = 2000.0  # above compile and restore: waits for the slowest process
    config.deadlines.peer = 60.0  # without a heartbeat from another process
    config.deadlines.grace = 25.0  # from the stop signal to the saved checkpoint
    return config


def short_then_long(phase: ConfigDict) -> tuple[ConfigDict, ConfigDict]:
    """Splits a phase in two: 90 % of its steps at length 128, the rest at 512, as in the paper."""
    short, long = phase.copy_and_resolve_references(), phase.copy_and_resolve_references()
    short.steps = phase.steps * 9 // 10
    long.steps = phase.steps - short.steps
    long.seq_length, long.max_predictions = 512, 77
    return short, long
