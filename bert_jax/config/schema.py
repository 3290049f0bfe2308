"""The configuration as frozen dataclasses, validated when a `configs/*.py` file is loaded.

A config file returns an `ml_collections.ConfigDict`; `serialization.from_dict` turns it into a
`Config`. Code that receives a `Config` never checks whether a key exists.

Each setting is declared once, with its type, its range, its default and whether it may change when
a run resumes (`on_resume.py`): those that decide examples and masks by the data pipeline
(`plan/plan_settings.py`, `masking/masking_settings.py`), those of the model, the optimizer, tasks
and what a phase has of its own in files beside this one, all others here. A config file starts from
the defaults (`configs/base.py`) and writes what it changes. A run that was started before a setting
existed resumes with the default of that setting, so a default never changes.
"""

# Over 300 lines: every setting with its range is found in one place.

import bisect
import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any, Literal

from bert_jax.config.distillation_settings import DistillationConfig
from bert_jax.config.layer_settings import Theta
from bert_jax.config.model_settings import ModelConfig
from bert_jax.config.on_resume import FREE, ROUNDS
from bert_jax.config.optimizer_settings import STABLE, OptimizerConfig, ScheduleSpan, Weights
from bert_jax.config.phase_data import PhaseDataConfig
from bert_jax.config.ranges import (
    BATCH_TOKENS,
    INT32,
    Amount,
    Attempts,
    Axis,
    Count,
    Positions,
    Rows,
    Seconds,
)
from bert_jax.config.serialization import from_dict, to_dict, updated
from bert_jax.config.starts import check_start
from bert_jax.config.task_settings import TaskConfig
from bert_jax.config.words_seen import parse_words
from bert_jax.data_pipeline.masking.masking_settings import MaskingSettings
from bert_jax.data_pipeline.pairing.modes import PAIRS
from bert_jax.data_pipeline.plan.plan_settings import PlanSettings
from bert_jax.data_pipeline.settings import Inside, Settings, Share, Whole, Within, checked
from bert_jax.errors import UserError, count


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoreConfig(Settings):
    """The location of the token store."""

    store: str = field(default="", metadata=FREE)  # folder written by `bert-jax data build`


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig(MaskingSettings, PlanSettings, StoreConfig):
    """The token store, how examples are made from it, and how they are masked."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhaseConfig(PhaseDataConfig):
    """One phase of a run: a shape of the batch, how many steps it lasts, and how it reads text."""

    steps: Count = field(default=1_000_000, metadata=FREE)
    batch_size: Rows = 256  # rows in the global batch
    # Gradient accumulation steps per update.
    micro_batches: Rows = field(default=1, metadata=ROUNDS)
    seq_length: Positions = 128  # maximum tokens per example
    # Maximum masked tokens per sequence (BERT's max_predictions_per_seq), at the data's mask rate.
    max_predictions: Positions = 20
    examples_per_row: Positions = 1  # above 1: sequence packing
    row_length: Annotated[int, Within(0, 2**17)] = 0  # tokens per packed row; 0 = seq_length
    global_rope_theta: Theta | None = None  # None: the model's
    # Only with schedule_over = "phase".
    learning_rate: Amount | None = field(default=None, metadata=FREE)
    warmup_steps: Whole | None = field(default=None, metadata=FREE)  # the same
    decay_share: Share | None = field(default=None, metadata=FREE)  # the same

    def model(self, model: ModelConfig) -> ModelConfig:
        """Returns the model of a run as it is in this phase."""
        if self.global_rope_theta is None:
            return model
        return dataclasses.replace(model, global_rope_theta=self.global_rope_theta)

    @property
    def row_tokens(self) -> int:
        """Tokens of a row, padding included."""
        return self.row_length or self.seq_length

    @property
    def predictions(self) -> int:
        """Prediction slots of an example."""
        own = self.own_predictions(self.seq_length)
        return self.max_predictions if own is None else own

    @property
    def row_predictions(self) -> int:
        """Prediction slots of a row: `predictions` scaled from an example to the row length."""
        return -(-self.predictions * self.row_tokens // self.seq_length)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """Devices along each mesh axis; one of them may be -1: the remaining devices."""

    slice: Axis = 1
    data: Axis = -1  # -1 = all remaining devices
    fsdp: Axis = 1
    tensor: Axis = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComputeConfig:
    """Numerics and memory of the computation; affects speed, memory and rounding only."""

    dtype: Literal["float32", "bfloat16"] = "bfloat16"  # of activations; parameters stay float32
    unroll_layers: Whole = 0  # layers per scan iteration; 0 = all (no scan)
    # "auto" is the fastest that the devices have; with attention dropout always "xla".
    attention: Literal["auto", "xla", "pallas", "splash", "cudnn"] = "auto"
    # Activations stored for the backward pass: all, none, or a policy of jax.checkpoint_policies.
    remat: Literal["none", "full", "dots_saveable", "dots_with_no_batch_dims_saveable"] = "none"
    # Shard parameters and moments over the data axis too; parameters are gathered for a step,
    # gradients reduce-scattered after it.
    shard_optimizer: bool = True

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
    every_steps: Count = 1000
    keep: Count = 3  # number of newest checkpoints to retain
    keep_every_steps: Whole = 0  # keep multiples of this permanently; 0 = none
    keep_start: bool = False  # also save step 0, the initial values, and keep it
    keep_at_words: str = ""  # save and keep at the first step after these numbers of words: 1M,10M
    keep_best: bool = True  # of each phase, by held-out loss
    write_attempts: Attempts = 6  # 1, 2, 4, … s apart; then the run stops

    def __post_init__(self) -> None:
        parse_words(self.keep_at_words)

    @property
    def words(self) -> tuple[int, ...]:
        """The numbers in `keep_at_words`, ascending."""
        return parse_words(self.keep_at_words)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    every_steps: Count = 1000
    batches: Whole = 64  # limit on held-out batches; 0 = all
    attention: bool = False  # also measure how much heads attend to neighbouring tokens
    # Held-out sentences in which a word is guessed; 0, for the records then hold no text.
    fills: Annotated[int, Within(0, 100)] = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeadlineConfig:
    """Seconds a process may spend on one activity before it counts as hung."""

    start: Seconds = 600.0  # until all processes have found one another
    compile: Seconds = 1800.0  # one program
    data: Seconds = 600.0  # waiting for a batch
    step: Seconds = 600.0  # one step
    evaluate: Seconds = 600.0  # one batch
    save: Seconds = 500.0  # below `step`: the other processes wait for process 0 in one
    restore: Seconds = 1800.0  # reading and checking one checkpoint
    barrier: Seconds = 2000.0  # above compile and restore: waits for the slowest process
    peer: Seconds = 60.0  # without a heartbeat from another process
    grace: Seconds = 25.0  # from the stop signal to the saved checkpoint


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """The configuration of a run; `replace` returns one with other values."""

    seed: Annotated[int, Within(0, 2**32 - 1)] = 0
    log_every_steps: Count = field(default=100, metadata=FREE)
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = DataConfig()
    task: TaskConfig = field(default_factory=TaskConfig)
    phases: tuple[PhaseConfig, ...] = (PhaseConfig(),)
    optimizer: OptimizerConfig = field(default=OptimizerConfig(), metadata=FREE)
    mesh: MeshConfig = field(default=MeshConfig(), metadata=ROUNDS)
    compute: ComputeConfig = field(default=ComputeConfig(), metadata=ROUNDS)
    checkpoint: CheckpointConfig = field(default=CheckpointConfig(), metadata=FREE)
    evaluation: EvaluationConfig = field(default=EvaluationConfig(), metadata=FREE)
    deadlines: DeadlineConfig = field(default=DeadlineConfig(), metadata=FREE)
    objectives: str = ""  # "mlm,nsp"; "" = all that the data have labels for
    rtd_weight: Amount = 50.0  # of replaced-token detection in the loss, as ELECTRA's
    # A model with the same vocabulary to learn from: "run@STEP", an import, an export, or one on
    # the hub, hf:OWNER/NAME.
    teacher: str = field(default="", metadata=FREE)
    distillation: DistillationConfig = field(default_factory=DistillationConfig)
    # A model's folder, a workdir, "run" or "run@STEP", or hf:OWNER/NAME, to start from.
    init: str = field(default="", metadata=FREE)
    # Of a run that init names; see optimizer.ema_decay.
    init_weights: Weights = field(default="last", metadata=FREE)
    # How the store's vocabulary relates to that model's: the same; all of it, then new entries; or
    # any other. See training/initial_vocabulary.py.
    init_vocabulary: Literal["same", "extend", "replace"] = "same"
    # What entries that the model lacks start with: the mean of their pieces, or what the store's
    # text has near them. See training/new_entries.py.
    init_entries: Literal["pieces", "cooccurrence"] = "pieces"
    # Positions that the model's table lacks: refused, or the table again from its start, as in
    # Longformer (Beltagy et al. 2020, section 5).
    init_positions: Literal["same", "repeat"] = "same"
    # The moments and the step of that model's optimizer: zero, or as they are. See
    # training/initial.py.
    init_optimizer: Literal["reset", "carry"] = "reset"

    _unset = (tuple[str, ...](), lambda values, previous: from_dict(values, Config))  # no setting

    def __post_init__(self) -> None:
        if not self.phases:
            raise UserError("config.phases is empty; give at least one phase")
        for i, phase in enumerate(self.phases):
            self._check_phase(f"config.phases[{i}]", phase)
        if self.total_steps > INT32:
            raise UserError(
                f"config.phases: {self.total_steps} steps in total; the maximum is {INT32}"
            )
        if self.distillation.layers:
            self._check_student()
        checked(self.data.mask_rate, Inside, "config.data.mask_rate")  # no batch at 0 or 1 teaches
        if self.optimizer.schedule in STABLE:
            self._check_wsd()
        if not self.task.name and self.data.pairing in PAIRS and self.model.type_vocab_size < 2:
            raise UserError(
                f'config.data.pairing="{self.data.pairing}" needs two token types; '
                'set config.model.type_vocab_size=2, or config.data.pairing="full_sentences"'
            )
        if self.data.replaced_tokens and self.data.pairing in PAIRS:
            raise UserError(
                f'config.data.replaced_tokens with config.data.pairing="{self.data.pairing}": '
                "replaced-token detection has no sentence pairs; set "
                'config.data.pairing="full_sentences", or replaced_tokens=False'
            )
        if self.data.replaced_tokens:
            self.model.check_generator()
        if self.data.replaced_tokens and not self.rtd_weight:
            raise UserError(
                "config.rtd_weight=0 with config.data.replaced_tokens: the model learns nothing; "
                "raise it, or set replaced_tokens=False"
            )
        kernel = self.compute.attention not in ("auto", "xla")
        if kernel and self.model.attention_probs_dropout_prob > 0:
            raise UserError(
                f'config.compute.attention="{self.compute.attention}" has no attention dropout; '
                'set config.model.attention_probs_dropout_prob=0 or config.compute.attention="auto"'
            )

    def _check_phase(self, where: str, phase: PhaseConfig) -> None:
        if phase.global_rope_theta is not None and self.model.position != "rotary":
            raise UserError(
                f"{where}.global_rope_theta={phase.global_rope_theta:g} has no effect without "
                'rotary positions; set config.model.position="rotary", or leave it None'
            )
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
        if phase.batch_size * phase.row_tokens > BATCH_TOKENS:
            raise UserError(
                f"{where}: {phase.batch_size} rows of {phase.row_tokens} tokens exceed the limit "
                f"of {BATCH_TOKENS} tokens per batch; lower batch_size or the row length"
            )
        if phase.row_tokens < phase.seq_length:
            raise UserError(
                f"{where}.row_length={phase.row_length} is shorter than "
                f"seq_length={phase.seq_length}; set it to 0 for the same length"
            )
        if phase.row_tokens > phase.seq_length and phase.examples_per_row == 1:
            raise UserError(
                f"{where}.row_length={phase.row_length} exceeds seq_length={phase.seq_length}, but "
                "examples_per_row=1 allows one example per row; raise examples_per_row"
            )
        if phase.batch_size % phase.micro_batches:
            raise UserError(
                f"{where}.batch_size={phase.batch_size} is not a multiple of "
                f"micro_batches={phase.micro_batches}; change one of them"
            )
        self._check_data(where, phase)
        names = ("learning_rate", "warmup_steps", "decay_share")
        own = [name for name in names if getattr(phase, name) is not None]
        if own and self.optimizer.schedule_over == "run":
            raise UserError(
                f"{where}.{own[0]} has no effect with one schedule over the entire run; set "
                'config.optimizer.schedule_over="phase" or leave it None'
            )

    def _check_student(self) -> None:
        named, layers = len(self.distillation.layers), self.model.layers_of_parameters
        if named != layers:
            kind = "groups" if self.model.num_hidden_groups else "layers"
            raise UserError(
                f'config.distillation.teacher_layers="{self.distillation.teacher_layers}" names '
                f"{named}, but config.model.num_hidden_{kind}={layers}; give one for each"
            )
        if self.init:
            raise UserError(
                f"config.init={self.init}: config.distillation.teacher_layers copies the layers of "
                'config.teacher; set it to "", or config.init to ""'
            )

    def _check_data(self, where: str, phase: PhaseConfig) -> None:
        if phase.mask_rate_end is not None and phase.mask_rate is None:
            raise UserError(
                f"{where}.mask_rate_end={phase.mask_rate_end} is where the rate of the phase ends; "
                f"set {where}.mask_rate, where it begins"
            )
        pairings = {self.data.pairing, self.data_of(phase, where).pairing}
        if len(pairings) > 1 and pairings & set(PAIRS):
            raise UserError(
                f'{where}.pairing="{phase.pairing}" has other labels than config.data.pairing='
                f'"{self.data.pairing}", but all phases train the same heads; change one of them'
            )

    def _check_wsd(self) -> None:
        for span in self.schedule_spans:
            if span.warmup_steps + span.decay_steps > span.steps:
                raise UserError(
                    f'config.optimizer.schedule="{self.optimizer.schedule}": '
                    f"{span.warmup_steps} steps of warmup and {span.decay_steps} of decay are "
                    f"more than the {span.steps} steps of the {self.optimizer.schedule_over}; "
                    "lower warmup_steps or decay_share, or raise the steps"
                )

    @property
    def schedule_spans(self) -> tuple[ScheduleSpan, ...]:
        """The span of each learning-rate schedule: the run, or each phase (`schedule_over`)."""
        width = self.model.hidden_size
        if self.optimizer.schedule_over == "run":
            return (self.optimizer.span(self.total_steps, width),)
        return tuple(
            self.optimizer.span(
                phase.steps, width, phase.learning_rate, phase.warmup_steps, phase.decay_share
            )
            for phase in self.phases
        )

    def replace(self, changes: str | Mapping[str, Any], value: Any = None) -> "Config":
        """Returns the configuration with other values, validated like those of the command line.

            config.replace("data.store", "store")
            config.replace({"data.store": "store", "phases[0].steps": 10})

        What the config file leaves to the store (the vocabulary size) or to the model to start from
        (in `continue_domain` its architecture) follows a new store or model.

        Args:
            changes: a key, or new values by key.
            value: of the key; a path becomes its text.

        Raises:
            UserError: an unknown key, a value that its key does not allow, or values that do not
                go together.
        """
        by_key = {changes: value} if isinstance(changes, str) else changes
        keys, complete = self._unset
        values = updated(to_dict(self), {**dict.fromkeys(keys), **by_key})
        config = complete(values, previous=self.model)
        check_start(config, by_key)
        return config

    def with_unset(self, keys: tuple[str, ...], complete: Callable[..., "Config"]) -> "Config":
        """Returns the configuration, with the keys that its file does not set, for `replace`.

        complete: (values, previous=ModelConfig) -> the configuration in which they are found.
        """
        copy = dataclasses.replace(self)
        object.__setattr__(copy, "_unset", (keys, complete))
        return copy

    def __repr__(self) -> str:
        model, phases = self.model, self.phases
        shapes = " then ".join(f"{p.steps:,} x {p.batch_size} x {p.row_tokens}" for p in phases)
        return (
            f"<Config: {count(model.num_hidden_layers, 'layer')} of {model.hidden_size}, "
            f"{model.vocab_size:,} entries; steps x rows x tokens: {shapes}; "
            f"{self.data.pairing}, {self.data.masking}, {self.optimizer.name}; "
            f"store={self.data.store!r}>"
        )

    def with_steps(self, steps: Sequence[int]) -> "Config":
        """Returns the configuration with these steps, one number for each phase."""
        pairs = zip(self.phases, steps, strict=True)
        phases = tuple(dataclasses.replace(phase, steps=number) for phase, number in pairs)
        return dataclasses.replace(self, phases=phases)

    def index_of(self, phase: PhaseConfig) -> int:
        """Returns the index of a phase; phases with equal settings still get different text."""
        same = [i for i, other in enumerate(self.phases) if other is phase]
        return same[0] if same else self.phases.index(phase)

    def data_of(self, phase: PhaseConfig, where: str = "") -> DataConfig:
        """Returns `data` with the values that a phase has of its own: how it reads training text.

        where: the phase, for messages.
        """
        with phase.named(where):
            return dataclasses.replace(self.data, **phase.own)

    def with_model(self, model: ModelConfig) -> "Config":
        """Returns the configuration with another model."""
        return dataclasses.replace(self, model=model)

    def with_model_of(self, phase: PhaseConfig) -> "Config":
        """Returns the configuration with the model as a phase trains it."""
        return self.with_model(phase.model(self.model))

    def with_only(self, phase: PhaseConfig) -> "Config":
        """Returns the configuration with one phase, its model, and without a schedule whose warmup
        and decay need not fit into the steps of that phase."""
        optimizer = dataclasses.replace(self.optimizer, schedule="bert")
        config = self.with_model_of(phase)
        return dataclasses.replace(config, phases=(phase,), optimizer=optimizer)

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
