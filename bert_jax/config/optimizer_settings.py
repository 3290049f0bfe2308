"""`config.optimizer`: the optimizer and its learning rate over the steps."""

import dataclasses
from dataclasses import field
from typing import Annotated, Final, Literal

from bert_jax.config.on_resume import FIXED
from bert_jax.config.optimizers import OPTIMIZERS
from bert_jax.config.ranges import Amount, BelowOne, Count, Positive
from bert_jax.data_pipeline.settings import Share, Whole, Within

Weights = Literal["last", "ema"]  # of a checkpoint: those of its step, or their average
ScheduleName = Literal["bert", "fairseq", "wsd", "trapezoid"]
STABLE: Final = ("wsd", "trapezoid")  # those with a stable rate, and a decay at the end


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """`bert_adamw` is original BERT's (no bias correction); `adamw` is Loshchilov and Hutter's.

    `stable_adamw` is `adamw` whose rate is lower for tensors with sudden large gradients; `muon` is
    Muon for the matrices of the layers and `adamw` for everything else.
    """

    name: Annotated[str, OPTIMIZERS] = field(default="bert_adamw", metadata=FIXED)
    learning_rate: Amount = 1e-4
    # The width of the model that the rate is for; others have it times this / their width. 0 = any.
    base_width: Whole = 0
    warmup_steps: Whole = 10_000
    # decays from step 0; fairseq: after the warmup; wsd and trapezoid: at the end, after a stable
    # rate, as a power and as 1 - the root.
    schedule: ScheduleName = "bert"
    decay_power: Amount = 1.0  # exponent of the remaining fraction of steps; 1 = linear
    decay_share: Share = 0.1  # of the steps in which the rate of wsd and trapezoid decays
    # phase: each phase has its own warmup and decay.
    schedule_over: Literal["run", "phase"] = "run"
    phase_moments: Literal["carry", "reset"] = "carry"  # or reset, at the start of each later phase
    phase_count: Literal["carry", "reset"] = "carry"  # of updates, for the bias correction
    b1: BelowOne = 0.9
    b2: BelowOne = 0.999
    eps: Positive = 1e-6  # 0 would divide 0 by 0 for parameters without a gradient yet
    muon_scale: Positive = 10.0  # Muon's rate is learning_rate times this
    muon_momentum: BelowOne = 0.95
    # bfloat16: half the memory.
    moment_dtype: Literal["float32", "bfloat16"] = field(default="float32", metadata=FIXED)
    weight_decay: Amount = 0.01
    # all: biases and LayerNorm too (fairseq).
    weight_decay_on: Literal["weights", "all"] = "weights"
    # Parameters that stay as they start: "encoder/embeddings/position,mlm", each with all below it.
    frozen: str = field(default="", metadata=FIXED)
    # Rate of each layer relative to the one above it.
    layer_decay: Annotated[float, Within(0, 1, without=(0,))] = 1.0
    # Of an exponential moving average of the weights, which checkpoints have too; 0 = none.
    ema_decay: BelowOne = field(default=0.0, metadata=FIXED)
    clip_norm: Amount = 1.0  # of all gradients together; 0 = none
    max_nonfinite_steps: Count = 10  # in a row, all skipped; then the run stops

    def peak(self, width: int, learning_rate: float | None = None) -> float:
        """Returns the rate of a model of this width; None: of the optimizer's."""
        rate = self.learning_rate if learning_rate is None else learning_rate
        return rate * self.base_width / width if self.base_width else rate

    def span(
        self,
        steps: int,
        width: int,
        learning_rate: float | None = None,
        warmup_steps: int | None = None,
        decay_share: float | None = None,
    ) -> "ScheduleSpan":
        """Returns a span of `steps` steps; None: the value of the optimizer."""
        share = self.decay_share if decay_share is None else decay_share
        return ScheduleSpan(
            steps=steps,
            learning_rate=self.peak(width, learning_rate),
            warmup_steps=self.warmup_steps if warmup_steps is None else warmup_steps,
            decay_power=self.decay_power,
            decay_steps=round(share * steps),
        )


@dataclasses.dataclass(frozen=True)
class ScheduleSpan:
    """The steps that one learning-rate schedule spans: those of the run, or of a phase."""

    steps: int
    learning_rate: float  # the peak
    warmup_steps: int
    decay_power: float = 1.0
    decay_steps: int = 0  # at the end, only of wsd and trapezoid
