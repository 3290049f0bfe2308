"""The configuration inside: frozen dataclasses, made at the border from a `configs/*.py` file.

A config file returns an `ml_collections.ConfigDict`; `config_values.from_dict` turns it into a
`Config`. Below this border nothing asks whether a key exists.

A field has a default only where it was added after the first release: what a run that began before
had all the same, so that it can be resumed.
"""

import bisect
import dataclasses
import itertools
from typing import Annotated, Literal

from bert_jax.config.serialization import Within
from bert_jax.data_pipeline.pairing.modes import PAIRS, SEPARATED, Pairing, Separators
from bert_jax.errors import UserError

# Upper limits are far beyond what anybody trains and below what overflows a counter (steps and
# positions are int32) or makes a compiler abort instead of saying that memory is short.
_INT32 = 2**31 - 1
_BATCH_TOKENS = 2**26  # a host may have to make all of them; LAMB's largest has half
Count = Annotated[int, Within(1, _INT32)]
Whole = Annotated[int, Within(0, _INT32)]
Amount = Annotated[float, Within(0)]
Positive = Annotated[float, Within(0, without=(0,))]
Seconds = Annotated[float, Within(0, 10**8, without=(0,))]  # three years: a timer must hold it
Vocabulary = Annotated[int, Within(1, 2**24)]
Width = Annotated[int, Within(1, 2**17)]
Layers = Annotated[int, Within(1, 1000)]
Heads = Annotated[int, Within(1, 2**12)]
Positions = Annotated[int, Within(1, 2**17)]
Rows = Annotated[int, Within(1, 2**20)]  # of a batch
Attempts = Annotated[int, Within(1, 20)]
Words = Annotated[int, Within(1, 512)]
Axis = Annotated[int, Within(-1, 2**20, without=(0,))]  # devices along it; -1 = what is left
Share = Annotated[float, Within(0, 1)]
BelowOne = Annotated[float, Within(0, 1, without=(1,))]
Inside = Annotated[float, Within(0, 1, without=(0, 1))]
OptimizerName = Literal["bert_adamw", "adamw", "lamb", "lamb_albert", "lamb_all", "lamb_clamped"]
ScheduleName = Literal["bert", "fairseq"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The encoder's architecture, in the names of transformers' `BertConfig`."""

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
    pad_vocab_to_multiple_of: Width  # rows added for the hardware: zero, never predicted

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
    """Which token store, and how examples and masks are made from it."""

    store: str
    source_weights: str  # "books=2,wiki=0.5": visits of a source's documents in an epoch; "" = 1
    language_smoothing: Amount  # languages are drawn by share ** this; 1 = as they are
    pairing: Pairing
    # Where blocks of sentences have [SEP]: between documents, or after every sentence too.
    separators: Separators = "documents"
    negative_pool: Literal["source", "corpus"]  # where a random second sentence comes from
    short_seq_prob: Share
    dupe_factor: Whole  # 0 = new pairs and masks every epoch; n = n fixed sets of them, in turn
    masking: Literal["token", "whole_word", "ngram", "span", "roberta"]
    max_ngram: Words  # words, of masking=ngram
    span_success: Inside  # p of the geometric lengths of masking=span
    max_span: Words  # words, of masking=span
    mask_rate: Share
    mask_share: Share  # of the chosen tokens: replaced by [MASK]
    random_share: Share  # replaced by a random token; the rest stay as they are
    random_tokens: Literal["uniform", "unigram"]  # how a random token is drawn
    span_boundary: bool  # the span boundary objective beside the masked tokens

    def __post_init__(self) -> None:
        if self.mask_share + self.random_share > 1:
            raise UserError("config.data.mask_share + config.data.random_share is over 1")
        if self.separators == "sentences" and self.pairing not in SEPARATED:
            raise UserError(
                'config.data.separators="sentences" has no meaning with '
                f'config.data.pairing="{self.pairing}"; set separators="documents", or pairing to '
                f"{' or '.join(SEPARATED)}"
            )
        if self.span_boundary and self.masking != "span":
            raise UserError(
                f"config.data.span_boundary needs spans to have boundaries, not masking="
                f'"{self.masking}"; set config.data.masking="span" or span_boundary=False'
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhaseConfig:
    """One stage of a run: a shape of the batch and how many steps it lasts."""

    steps: Count
    batch_size: Rows  # rows in the global batch
    micro_batches: Rows  # parts whose gradients are added up before an update
    seq_length: Positions  # most tokens of an example
    max_predictions: Positions  # most predictions of an example
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
        """Prediction slots of a row: as many for its length as an example has for its own."""
        return -(-self.max_predictions * self.row_tokens // self.seq_length)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """`bert_adamw` is the original's (no bias correction); `adamw` is Loshchilov and Hutter's."""

    name: OptimizerName
    learning_rate: Amount
    warmup_steps: Whole
    schedule: ScheduleName = "bert"  # the decay begins at step 0, or at the end of the warmup
    decay_power: Amount  # of what is left of the steps; 1 = linear
    schedule_over: Literal["run", "phase"]  # one schedule for all steps, or one for each phase
    phase_moments: Literal["carry", "reset"]  # what a phase after the first starts with
    phase_count: Literal["carry", "reset"]  # of updates, for the bias correction
    b1: BelowOne
    b2: BelowOne
    eps: Positive  # with 0, what has no gradient yet would become 0/0
    moment_dtype: Literal["float32", "bfloat16"]  # of what Adam keeps; it computes in float32
    weight_decay: Amount
    weight_decay_on: Literal["weights", "all"] = "weights"  # all: biases and LayerNorm too
    clip_norm: Amount  # of all gradients together; 0 = none
    max_nonfinite_steps: Count  # in a row whose loss or gradient is not finite; then the run stops


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """Devices along each axis; one of them may be -1: whatever is left."""

    slice: Axis
    data: Axis
    fsdp: Axis
    tensor: Axis


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComputeConfig:
    """How the same model is computed; changes speed and rounding, not meaning."""

    dtype: Literal["float32", "bfloat16"]  # of activations; parameters are always float32
    unroll_layers: Whole  # layers per iteration of the scan over layers; 0 = all of them
    # "auto" is the fastest that the devices have; while probabilities are dropped always "xla".
    attention: Literal["auto", "xla", "pallas", "cudnn"]
    # What the backward pass of a layer finds stored: all, nothing, or products without batch sizes.
    remat: Literal["none", "full", "dots_saveable", "dots_with_no_batch_dims_saveable"]
    # Parameters, gradients and moments split over the data axis too, between steps (ZeRO-1).
    shard_optimizer: bool

    @classmethod
    def plain(cls) -> "ComputeConfig":
        """Float32 on one device, nothing traded: for using a model rather than training it."""
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
    keep: Count  # the newest so many
    keep_every_steps: Whole  # those at multiples of this are never removed; 0 = none
    keep_best: bool  # the one with the lowest held-out loss of each phase
    write_attempts: Attempts  # with 1, 2, 4, … seconds between them; then the run stops


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    every_steps: Count
    batches: Whole  # at most so many batches of held-out rows; 0 = all of them


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeadlineConfig:
    """Seconds that a process may spend at one piece of work before it is taken to hang."""

    start: Seconds  # until all processes have found one another
    compile: Seconds  # one program
    data: Seconds  # waiting for a batch
    step: Seconds  # one step
    evaluate: Seconds  # one batch of an evaluation
    save: Seconds  # until an earlier checkpoint is written and this one is copied
    restore: Seconds  # reading and checking one checkpoint
    barrier: Seconds  # waiting for the other processes
    peer: Seconds  # without a sign of life from another process
    grace: Seconds  # from being asked to stop to having saved


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """A whole run."""

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
    objectives: str = ""  # "mlm,nsp"; "" = all that the data have labels for

    def __post_init__(self) -> None:
        if not self.phases:
            raise UserError("config.phases is empty; give at least one phase")
        for i, phase in enumerate(self.phases):
            self._check_phase(f"config.phases[{i}]", phase)
        if self.total_steps > _INT32:
            raise UserError(
                f"config.phases: {self.total_steps} steps in all; the most are {_INT32}"
            )
        if self.data.pairing in PAIRS and self.model.type_vocab_size < 2:
            raise UserError(
                f'config.data.pairing="{self.data.pairing}" needs two token types; '
                "set config.model.type_vocab_size=2"
            )
        kernel = self.compute.attention in ("pallas", "cudnn")
        if kernel and self.model.attention_probs_dropout_prob > 0:
            raise UserError(
                f'config.compute.attention="{self.compute.attention}" cannot drop probabilities; '
                'set config.model.attention_probs_dropout_prob=0 or config.compute.attention="auto"'
            )

    def _check_phase(self, where: str, phase: PhaseConfig) -> None:
        if phase.seq_length > self.model.max_position_embeddings:
            raise UserError(
                f"{where}.seq_length={phase.seq_length} is beyond "
                f"config.model.max_position_embeddings={self.model.max_position_embeddings}"
            )
        if phase.max_predictions > phase.seq_length:
            raise UserError(
                f"{where}.max_predictions={phase.max_predictions} is more than an example has "
                f"tokens (seq_length={phase.seq_length}); give at most as many"
            )
        if phase.batch_size * phase.row_tokens > _BATCH_TOKENS:
            raise UserError(
                f"{where}: {phase.batch_size} rows of {phase.row_tokens} tokens are more than the "
                f"{_BATCH_TOKENS} that a batch may have; lower batch_size or the length of a row"
            )
        if phase.row_tokens < phase.seq_length:
            raise UserError(
                f"{where}.row_length={phase.row_length} is shorter than an example may be "
                f"(seq_length={phase.seq_length}); set it to 0 for the same length"
            )
        if phase.row_tokens > phase.seq_length and phase.examples_per_row == 1:
            raise UserError(
                f"{where}.row_length={phase.row_length} is longer than an example, but "
                "examples_per_row=1 puts a single one into a row; raise examples_per_row"
            )
        if phase.batch_size % phase.micro_batches:
            raise UserError(
                f"{where}.batch_size={phase.batch_size} does not divide into "
                f"micro_batches={phase.micro_batches}; change one of them"
            )
        own = [n for n in ("learning_rate", "warmup_steps") if getattr(phase, n) is not None]
        if own and self.optimizer.schedule_over == "run":
            raise UserError(
                f"{where}.{own[0]} has no use with one schedule over the whole run; set "
                'config.optimizer.schedule_over="phase" or leave it None'
            )

    @property
    def total_steps(self) -> int:
        return sum(phase.steps for phase in self.phases)

    @property
    def phase_ends(self) -> tuple[int, ...]:
        """Updates done at the end of each phase."""
        return tuple(itertools.accumulate(phase.steps for phase in self.phases))

    def phase_at(self, step: int) -> tuple[int, int]:
        """The index of the phase that update `step` (from 0) belongs to, and its number there.

        Raises:
            UserError: the run has no such step.
        """
        if not 0 <= step < self.total_steps:
            raise UserError(
                f"step {step} is none of this run's {self.total_steps}: "
                f"give one from 0 to {self.total_steps - 1}"
            )
        index = bisect.bisect_right(self.phase_ends, step)
        return index, step - (self.phase_ends[index] - self.phases[index].steps)
