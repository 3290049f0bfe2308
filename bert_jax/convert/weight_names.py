"""Names in a state dict: current and older ones, and those of tied tensors."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from bert_jax.convert.layouts.bert import ENCODER
from bert_jax.convert.layouts.layout import Layout
from bert_jax.errors import UserError

_WORDS: Final = "encoder.embeddings.word"
_PARTS_OF_ENCODER = (
    "embeddings.", "embeddings_project.", "encoder.layer.", "encoder.embed", "encoder.albert",
    "layers.", "pooler.", "LayerNorm.", "final_norm.",
)  # fmt: skip


def tied_names(layout: Layout) -> dict[str, str]:
    """The tensors of the decoder, with those that they must equal."""
    words = (tensor.theirs for tensor in layout.encoder or ENCODER if tensor.ours == _WORDS)
    tied = {
        "cls.predictions.decoder.weight": next(words),
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    }
    return {layout.tensor_name(name): layout.tensor_name(same) for name, same in tied.items()}


def by_current_name(tensors: Mapping[str, Any], layout: Layout) -> dict[str, Any]:
    """Returns a state dict by current names. A tied tensor that is stored once, under the name of
    the decoder, has both names, as `safetensors.torch.save_model` stores one."""
    by_name = {now: tensors[name] for name, now in current_names(tensors, layout).items()}
    for decoder, tied in tied_names(layout).items():
        if decoder in by_name:
            by_name.setdefault(tied, by_name[decoder])
    return by_name


def current_names(tensors: Iterable[str], layout: Layout) -> dict[str, str]:
    """Returns each name in a state dict with its current one. A tensor beside one that has its
    current name already is another one, which transformers does not read, and keeps its name.

    Raises:
        UserError: two older names are one tensor.
    """
    stored, found = {*tensors}, dict[str, str]()
    older: dict[str, str] = {}  # by current name
    for name in tensors:
        now = _current_name(name, layout)
        found[name] = name if now in stored else now
        if now not in stored and (other := older.setdefault(now, name)) != name:
            raise UserError(f"the weights have {other} and {name}, both {now}; remove one")
    return found


def _current_name(name: str, layout: Layout) -> str:
    """Returns the name in a class with a head, in which the encoder has a prefix."""
    name = name.replace("LayerNorm.gamma", "LayerNorm.weight")
    name = name.replace("LayerNorm.beta", "LayerNorm.bias")
    parts = (layout.tensor_name(f"bert.{part}") for part in _PARTS_OF_ENCODER)
    bare = name.startswith(tuple(part.removeprefix(f"{layout.base}.") for part in parts))
    return f"{layout.base}.{name}" if bare else name
