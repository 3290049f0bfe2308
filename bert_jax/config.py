"""The configuration inside: frozen dataclasses, made at the border from a `configs/*.py` file.

A config file returns an `ml_collections.ConfigDict`. `from_dict` turns it into a `Config`: a
missing or unknown key, a value of the wrong type or a choice that does not exist is one clear line
with the nearest valid name. Below this border nothing asks whether a key exists.
"""

import dataclasses
import difflib
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from bert_jax.errors import UserError

T = TypeVar("T")
Count = Annotated[int, "1 or more"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The encoder's architecture, in the names of transformers' `BertConfig`."""

    vocab_size: Count
    hidden_size: Count
    num_hidden_layers: Count
    num_attention_heads: Count
    intermediate_size: Count
    hidden_act: Literal["gelu", "gelu_tanh"]  # erf (the 2018 release), or its tanh approximation
    hidden_dropout_prob: float
    attention_probs_dropout_prob: float
    max_position_embeddings: Count
    type_vocab_size: Count
    initializer_range: float
    layer_norm_eps: float
    pad_vocab_to_multiple_of: Count  # rows added for the hardware: zero, never predicted

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_attention_heads:
            raise UserError(
                f"model.hidden_size={self.hidden_size} is not a multiple of "
                f"model.num_attention_heads={self.num_attention_heads}; change one of them"
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
    pairing: Literal["nsp"]
    negative_pool: Literal["source", "corpus"]  # where a random second sentence comes from
    short_seq_prob: float
    masking: Literal["token"]
    mask_rate: float
    mask_share: float  # of the chosen tokens: replaced by [MASK]
    random_share: float  # replaced by a random token; the rest stay as they are


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhaseConfig:
    """One stage of a run: a shape of the batch and how many steps it lasts."""

    steps: Count
    batch_size: Count  # sequences in the global batch
    seq_length: Count  # tokens in a sequence
    max_predictions: Count  # prediction slots in a sequence


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """`bert_adamw` is the original's (no bias correction); `adamw` is Loshchilov and Hutter's."""

    name: Literal["bert_adamw", "adamw"]
    learning_rate: float
    warmup_steps: int
    b1: float
    b2: float
    eps: float
    weight_decay: float
    clip_norm: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """Devices along each axis; one of them may be -1: whatever is left."""

    slice: int
    data: int
    fsdp: int
    tensor: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComputeConfig:
    """How the same model is computed; changes speed and rounding, not meaning."""

    dtype: Literal["float32", "bfloat16"]  # of activations; parameters are always float32
    unroll_layers: int  # layers per iteration of the scan over layers; 0 = all of them


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    every_steps: Count
    keep: Count  # the newest so many


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    every_steps: Count
    batches: int  # at most so many batches of held-out rows; 0 = all of them


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """A whole run."""

    seed: int
    log_every_steps: Count
    model: ModelConfig
    data: DataConfig
    phases: tuple[PhaseConfig, ...]
    optimizer: OptimizerConfig
    mesh: MeshConfig
    compute: ComputeConfig
    checkpoint: CheckpointConfig
    evaluation: EvaluationConfig

    def __post_init__(self) -> None:
        if len(self.phases) != 1:
            raise UserError(f"config.phases has {len(self.phases)} entries; give exactly one")
        for i, phase in enumerate(self.phases):
            if phase.seq_length > self.model.max_position_embeddings:
                raise UserError(
                    f"config.phases[{i}].seq_length={phase.seq_length} is beyond "
                    f"config.model.max_position_embeddings={self.model.max_position_embeddings}"
                )
        if self.data.mask_share + self.data.random_share > 1:
            raise UserError("config.data.mask_share + config.data.random_share is over 1")

    @property
    def total_steps(self) -> int:
        return sum(phase.steps for phase in self.phases)


def from_dict(values: Mapping[str, Any], cls: type[T] = Config, where: str = "config") -> T:  # type: ignore[assignment]
    """A frozen dataclass from nested mappings, checked key by key.

    Raises:
        UserError: an unknown or missing key, a wrong type or an unknown choice; names the key with
            its path and the nearest valid name.
    """
    hints = typing.get_type_hints(cls, include_extras=True)
    unknown = sorted(set(values) - set(hints))
    if unknown:
        raise UserError(f"unknown key {where}.{unknown[0]}{nearest(unknown[0], hints)}")
    missing = [name for name in hints if name not in values]
    if missing:
        raise UserError(f"missing key {where}.{missing[0]}; start from configs/base.py")
    return cls(**{k: _convert(values[k], hint, f"{where}.{k}") for k, hint in hints.items()})


def nearest(name: str, valid: typing.Iterable[str]) -> str:
    """The end of an error line: the nearest valid name, or all of them."""
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else f"; valid: {', '.join(names)}"


def _convert(value: Any, hint: Any, where: str) -> Any:
    origin = typing.get_origin(hint)
    if origin is Annotated:
        base, wanted = typing.get_args(hint)
        number = _convert(value, base, where)
        return number if number >= 1 else _wrong(value, wanted, where)
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            value = dict(value.items()) if hasattr(value, "items") else _wrong(value, "keys", where)
        return from_dict(value, hint, where)  # type: ignore[arg-type]
    if origin is tuple:
        item = typing.get_args(hint)[0]
        if not isinstance(value, tuple | list):
            _wrong(value, "a tuple", where)
        return tuple(_convert(v, item, f"{where}[{i}]") for i, v in enumerate(value))
    if origin is Literal:
        choices = typing.get_args(hint)
        if value not in choices:
            raise UserError(f"{where}={value!r}{nearest(str(value), choices)}")
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        _wrong(value, hint.__name__, where)
    return value


def _wrong(value: Any, wanted: str, where: str) -> typing.NoReturn:
    raise UserError(f"{where}={value!r} should be {wanted}")


def to_dict(config: Any) -> dict[str, Any]:
    """Nested plain dicts and lists, as they are written to `config.json`."""
    return typing.cast(dict[str, Any], _plain(dataclasses.asdict(config)))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, tuple | list) else value


def flatten(values: Any, where: str = "") -> dict[str, Any]:
    """`{"phases[0].steps": 10, ...}`: one line per value, for diffs and golden texts."""
    if isinstance(values, dict):
        items = [(f"{where}.{k}" if where else k, v) for k, v in values.items()]
    elif isinstance(values, list):
        items = [(f"{where}[{i}]", v) for i, v in enumerate(values)]
    else:
        return {where: values}
    return {path: v for key, value in items for path, v in flatten(value, key).items()}
