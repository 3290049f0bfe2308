"""The configuration as frozen dataclasses, validated when a `configs/*.py` file is loaded.

A config file returns an `ml_collections.ConfigDict`; `serialization.from_dict` turns it into a
`Config`. Code that receives a `Config` never checks whether a key exists.

A field has a default only if it was added after the first release: the default is the behaviour of
earlier versions, so that their runs can be resumed.
"""

import bisect
import dataclasses
import itertools
from typing import Annotated, Literal

from bert_jax.config.serialization import Within
from bert_jax.errors import UserError

# Upper limits are far beyond any real training run and below the values that overflow a counter
# (steps and positions are int32) or make a compiler abort instead of reporting out of memory.
_INT32 = 2**31 - 1
_BATCH_TOKENS = 2**26  # one host may have to build the entire batch; LAMB's largest has half
Count = Annotated[int, Within(1, _INT32)]
Whole = Annotated[int, Within(0, _INT32)]
Amount = Annotated[float, Within(0)]
Positive = Annotated[float, Within(0, without=(0,))]
Seconds = Annotated[float, Within(0, 10**8, without=(0,))]  # three years: must fit a timer
Vocabulary = Annotated[int, Within(1, 2**24)]
Width = Annotated[int, Within(1, 2**17)]
Layers = Annotated[int, Within(1, 1000)]
Heads = Annotated[int, Within(1, 2**12)]
Positions = Annotated[int, Within(1, 2**17)]
Rows = Annotated[int, Within(1, 2**20)]  # of a batch
Attempts = Annotated[int, Within(1, 20)]
Words = Annotated[int, Within(1, 512)]
Axis = Annotated[int, Within(-1, 2**20, without=(0,))]  # devices along it; -1 = the remaining
Share = Annotated[float, Within(0, 1)]
BelowOne = Annotated[float, Within(0, 1, without=(1,))]
Inside = Annotated[float, Within(0, 1, without=(0, 1))]
Objective = Literal["mlm", "nsp", "sop", "sbo"]
OptimizerName = Literal["bert_adamw", "adamw", "lamb", "lamb_albert", "lamb_all", "lamb_clamped"]
ScheduleName = Literal["bert", "fairseq"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The encoder's architecture, named as in transformers' `BertConfig`."""

    vocab_size: Vocabulary
    hidden_size: Width
    num_hidden_layers: Layers
    num_attention_heads: Heads
    intermediate_size: Width
    hidden_act: Literal["gelu", "gelu_tanh"]  # erf (the 2018 release), or its tanh approximation
    hidden_dropout_prob: BelowOne
    attention_probs_dropout_prob: BelowOne
    max_position_embeddings: Positions
    type_vocab_size: Width
    initializer_range: Amount
    layer_norm_eps: Positive
    pad_vocab_to_multiple_of: Width  # padding rows are zero and never predicted

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_attention_heads:
            raise UserError(
                f"config.model.hidden_size={self.hidden_size} is not a multiple of "
                f"config.model.num_attention_heads={self.num_attention_heads}; change one of them"
            )

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def padded_vocab_size(self) -> int:
        multiple = self.pad_vocab_to_multiple_of
        return -(-self.vocab_size // multiple) * multiple


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The token store, and how examples and masks are made from it."""

    store: str
    source_weights: str  # "books=2,wiki=0.5": visits of a source's documents in an epoch; "" = 1
    language_smoothing: Amount  # languages are sampled by share ** this; 1 = unsmoothed
    pairing: Literal["nsp", "sop", "full_sentences", "doc_sentences", "single"]
    # Position of [SEP] in blocks of sentences: between documents, or also after every sentence.
    separators: Literal["documents", "sentences"] = "documents"
    negative_pool: Literal["source", "corpus"]  # source of a random second sentence
    short_seq_prob: Share
    dupe_factor: Whole  # 0 = new pairs and masks every epoch; n = cycles through n fixed sets
    masking: Literal["token", "whole_word", "ngram", "span", "roberta"]
    max_ngram: Words  # words, of masking=ngram
    span_success: Inside  # p of the geometric lengths of masking=span
    max_span: Words  # words, of masking=span
    mask_rate: Share
    mask_share: Share  # of the chosen tokens: replaced by [MASK]
    random_share: Share  # replaced by a random token; the rest is unchanged
    random_tokens: Literal["uniform", "unigram"]  # distribution of random tokens
    span_boundary: bool  # train the span boundary objective, too

    def __post_init__(self) -> None:
        if self.mask_share + self.random_share > 1:
            raise UserError("config.data.mask_share + config.data.random_share exceeds 1")
        separated = ("full_sentences", "doc_sentences")
        if self.separators == "sentences" and self.pairing not in separated:
            raise UserError(
                'config.data.separators="sentences" does not apply to '
                f'config.data.pairing="{self.pairing}"; set separators="documents", or pairing to '
                f"{' or '.join(separated)}"
            )
        if self.span_boundary and self.masking != "span":
            raise UserError(
                f'config.data.span_boundary requires config.data.masking="span", not '
                f'"{self.masking}"; change it or set span_boundary=False'
            )

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """The training objectives: always MLM, plus pairs and span boundaries if configured."""
        pair: tuple[Objective, ...] = (self.pairing,) if self.pairing in ("nsp", "sop") else ()
        return ("mlm", *pair, *(("sbo",) if self.span_boundary else ()))


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhaseConfig:
    """One phase of a run: a batch shape and a number of steps."""

    steps: Count
    batch_size: Rows  # rows in the global batch
    micro_batches: Rows  # gradient accumulation steps per update
    seq_length: Positions  # maximum tokens per example
    max_predictions: Positions  # maximum predictions per example
    examples_per_row: Positions  # 1 = padded rows of one example; more = rows packed with examples
    row_length: Annotated[int, Within(0, 2**17)]  # tokens of a packed row; 0 = seq_length
    learning_rate: Amount | None  # with optimizer.schedule_over="phase"; None = the optimizer's
    warmup_steps: Whole | None  # the same

    @property
    def row_tokens(self) -> int:
        """Tokens of a row, padding included."""
        return self.row_length or self.seq_length

    @property
    def row_predictions(self) -> int:
        """Prediction slots of a row: `max_predictions` scaled from an example to the row length."""
        return -(-self.max_predictions * self.row_tokens // self.seq_length)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """`bert_adamw` is original BERT's (no bias correction); `adamw` is Loshchilov and Hutter's."""

    name: OptimizerName
    learning_rate: Amount
    warmup_steps: Whole
    schedule: ScheduleName = "bert"  # the decay begins at step 0, or at the end of the warmup
    decay_power: Amount  # power of the remaining share of the steps; 1 = linear
    schedule_over: Literal["run", "phase"]  # one schedule for all steps, or one for each phase
    phase_moments: Literal["carry", "reset"]  # Adam's moments at the start of a later phase
    phase_count: Literal["carry", "reset"]  # the same for the update count of the bias correction
    b1: BelowOne
    b2: BelowOne
    eps: Positive  # not 0: parameters without a gradient yet would become 0/0
    moment_dtype: Literal["float32", "bfloat16"]  # of Adam's stored moments; it computes in float32
    weight_decay: Amount
    weight_decay_on: Literal["weights", "all"] = "weights"  # all: biases and LayerNorm too
    clip_norm: Amount  # maximum global gradient norm; 0 = no clipping
    max_nonfinite_steps: Count  # consecutive steps with non-finite loss or gradient; then it stops


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """Devices along each mesh axis; one of them may be -1: the remaining devices."""

    slice: Axis
    data: Axis
    fsdp: Axis
    tensor: Axis


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComputeConfig:
    """How the model is computed; affects speed, memory and rounding only."""

    dtype: Literal["float32", "bfloat16"]  # of activations; parameters are always float32
    unroll_layers: Whole  # layers per iteration of the scan over layers; 0 = all of them
    # "auto" is the fastest implementation for the devices; always "xla" with attention dropout.
    attention: Literal["auto", "xla", "pallas", "cudnn"]
    # Activations stored for the backward pass: all, none, or a policy of jax.checkpoint_policies.
    remat: Literal["none", "full", "dots_saveable", "dots_with_no_batch_dims_saveable"]
    # Shard parameters, gradients and moments over the data axis, too, between steps (ZeRO-1).
    shard_optimizer: bool

    @classmethod
    def plain(cls) -> "ComputeConfig":
        """Float32 on one device, without rematerialization or kernels: for inference."""
        return cls(
            dtype="float32",
            unroll_layers=1,
            attention="xla",
            remat="none",
            shard_optimizer=False,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    every_steps: Count
    keep: Count  # number of newest checkpoints to retain
    keep_every_steps: Whole  # checkpoints at multiples of this are never removed; 0 = none
    keep_best: bool  # retain the one with the lowest held-out loss of each phase
    write_attempts: Attempts  # with backoff of 1, 2, 4, … seconds; then the run stops


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    every_steps: Count
    batches: Whole  # maximum number of held-out batches; 0 = all


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeadlineConfig:
    """Seconds a process may spend on one activity before it counts as hung."""

    start: Seconds  # until all processes have connected
    compile: Seconds  # one program
    data: Seconds  # waiting for a batch
    step: Seconds  # one step
    evaluate: Seconds  # one batch of an evaluation
    save: Seconds  # until the previous checkpoint is written and this one is copied to the host
    restore: Seconds  # reading and checking one checkpoint
    barrier: Seconds  # waiting for the other processes
    peer: Seconds  # without a heartbeat from another process
    grace: Seconds  # from the request to stop until the checkpoint is saved


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """The configuration of a run."""

    seed: Annotated[int, Within(0, 2**32 - 1)]
    log_every_steps: Count
    model: ModelConfig
    data: DataConfig
    phases: tuple[PhaseConfig, ...]
    optimizer: OptimizerConfig
    mesh: MeshConfig
    compute: ComputeConfig
    checkpoint: CheckpointConfig
    evaluation: EvaluationConfig
    deadlines: DeadlineConfig

    def __post_init__(self) -> None:
        if not self.phases:
            raise UserError("config.phases is empty; give at least one phase")
        for i, phase in enumerate(self.phases):
            self._check_phase(f"config.phases[{i}]", phase)
        if self.total_steps > _INT32:
            raise UserError(
                f"config.phases: {self.total_steps} steps in total; the maximum is {_INT32}"
            )
        if self.data.pairing in ("nsp", "sop") and self.model.type_vocab_size < 2:
            raise UserError(
                f'config.data.pairing="{self.data.pairing}" needs two token types; '
                "set config.model.type_vocab_size=2"
            )
        kernel = self.compute.attention in ("pallas", "cudnn")
        if kernel and self.model.attention_probs_dropout_prob > 0:
            raise UserError(
                f'config.compute.attention="{self.compute.attention}" has no dropout; '
                'set config.model.attention_probs_dropout_prob=0 or config.compute.attention="auto"'
            )

    def _check_phase(self, where: str, phase: PhaseConfig) -> None:
        if phase.seq_length > self.model.max_position_embeddings:
            raise UserError(
                f"{where}.seq_length={phase.seq_length} exceeds "
                f"config.model.max_position_embeddings={self.model.max_position_embeddings}"
            )
        if phase.max_predictions > phase.seq_length:
            raise UserError(
                f"{where}.max_predictions={phase.max_predictions} exceeds the tokens of an "
                f"example (seq_length={phase.seq_length}); lower it"
            )
        if phase.batch_size * phase.row_tokens > _BATCH_TOKENS:
            raise UserError(
                f"{where}: {phase.batch_size} rows of {phase.row_tokens} tokens exceed the limit "
                f"of {_BATCH_TOKENS} tokens per batch; lower batch_size or the row length"
            )
        if phase.row_tokens < phase.seq_length:
            raise UserError(
                f"{where}.row_length={phase.row_length} is shorter than "
                f"seq_length={phase.seq_length}; set it to 0 for the same length"
            )
        if phase.row_tokens > phase.seq_length and phase.examples_per_row == 1:
            raise UserError(
                f"{where}.row_length={phase.row_length} is longer than an example, but "
                "examples_per_row=1 allows one example per row; raise examples_per_row"
            )
        if phase.batch_size % phase.micro_batches:
            raise UserError(
                f"{where}.batch_size={phase.batch_size} is not a multiple of "
                f"micro_batches={phase.micro_batches}; change one of them"
            )
        own = [n for n in ("learning_rate", "warmup_steps") if getattr(phase, n) is not None]
        if own and self.optimizer.schedule_over == "run":
            raise UserError(
                f"{where}.{own[0]} has no effect with one schedule over the entire run; set "
                'config.optimizer.schedule_over="phase" or leave it None'
            )

    @property
    def objectives(self) -> tuple[Objective, ...]:
        return self.data.objectives

    @property
    def total_steps(self) -> int:
        return sum(phase.steps for phase in self.phases)

    @property
    def phase_ends(self) -> tuple[int, ...]:
        """Number of updates done at the end of each phase."""
        return tuple(itertools.accumulate(phase.steps for phase in self.phases))

    def phase_at(self, step: int) -> tuple[int, int]:
        """Returns the phase index of update `step` (from 0), and the step within that phase.

        Raises:
            UserError: the run has no such step.
        """
        if not 0 <= step < self.total_steps:
            raise UserError(
                f"step {step} is not one of this run's {self.total_steps} steps: "
                f"give one from 0 to {self.total_steps - 1}"
            )
        index = bisect.bisect_right(self.phase_ends, step)
        return index, step - (self.phase_ends[index] - self.phases[index].steps)
