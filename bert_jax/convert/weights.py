"""Converts between our parameters and transformers' BERT state dicts, by one table.

With a pair head the state dict is that of `BertForPreTraining`, without it (and the pooler) that of
`BertForMaskedLM`. Ours are stacked over layers [L, ...], query, key and value are one kernel, and
kernels are [in, out] (`y = x · kernel`). Theirs have one tensor per layer and torch's [out, in].
Padding rows of the vocabulary are dropped on export and are zero on import. The decoder's weight
and bias are the word embeddings and `cls.predictions.bias`: `transformers` ties them, so they are
not written, and are ignored when read. The span boundary head has no counterpart in transformers
and is not exported.
"""

import functools
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from flax import nnx

from bert_jax.config.schema import ComputeConfig, ModelConfig
from bert_jax.data_pipeline.errors import UserError
from bert_jax.objectives.objective import Tensor
from bert_jax.objectives.pretraining_model import declare
from bert_jax.objectives.registry import BERT_FOR_PRETRAINING, OBJECTIVES, find, with_heads

_LAYER = "bert.encoder.layer.{layer}"
_ENCODER = (
    Tensor("encoder.embeddings.word", "bert.embeddings.word_embeddings.weight", of_vocabulary=True),
    Tensor("encoder.embeddings.position", "bert.embeddings.position_embeddings.weight"),
    Tensor("encoder.embeddings.type", "bert.embeddings.token_type_embeddings.weight"),
    Tensor("encoder.embeddings.norm.scale", "bert.embeddings.LayerNorm.weight"),
    Tensor("encoder.embeddings.norm.bias", "bert.embeddings.LayerNorm.bias"),
    Tensor("encoder.layers.attention.qkv.kernel", _LAYER + ".attention.self.{part}.weight", 1),
    Tensor("encoder.layers.attention.qkv.bias", _LAYER + ".attention.self.{part}.bias", 0),
    Tensor("encoder.layers.attention.output.kernel", _LAYER + ".attention.output.dense.weight", 2),
    Tensor("encoder.layers.attention.output.bias", _LAYER + ".attention.output.dense.bias"),
    Tensor("encoder.layers.attention.norm.scale", _LAYER + ".attention.output.LayerNorm.weight"),
    Tensor("encoder.layers.attention.norm.bias", _LAYER + ".attention.output.LayerNorm.bias"),
    Tensor("encoder.layers.mlp.up.kernel", _LAYER + ".intermediate.dense.weight", 1),
    Tensor("encoder.layers.mlp.up.bias", _LAYER + ".intermediate.dense.bias"),
    Tensor("encoder.layers.mlp.down.kernel", _LAYER + ".output.dense.weight", 1),
    Tensor("encoder.layers.mlp.down.bias", _LAYER + ".output.dense.bias"),
    Tensor("encoder.layers.mlp.norm.scale", _LAYER + ".output.LayerNorm.weight"),
    Tensor("encoder.layers.mlp.norm.bias", _LAYER + ".output.LayerNorm.bias"),
    Tensor("encoder.pooler.kernel", "bert.pooler.dense.weight", 1),
    Tensor("encoder.pooler.bias", "bert.pooler.dense.bias"),
)
_PARTS = ("query", "key", "value")


@dataclass(frozen=True)
class Slot:
    """The part of our parameters that corresponds to one of their tensors."""

    theirs: str
    ours: tuple[str, ...]
    index: tuple[int | slice, ...]  # the part of our leaf
    inputs: int | None  # leading input dimensions of a kernel; None: same layout

    @property
    def group(self) -> str:
        """ "encoder", "pooler" or a head."""
        return "pooler" if self.ours[:2] == ("encoder", "pooler") else self.ours[0]

    def to_theirs(self, leaf: np.ndarray) -> np.ndarray:
        """Extracts their tensor from our leaf."""
        part = np.asarray(leaf)[self.index]
        if self.inputs is None:
            return part
        if self.inputs == 0:
            return part.reshape(-1)
        return part.reshape(int(np.prod(part.shape[: self.inputs])), -1).T

    def to_ours(self, tensor: np.ndarray, leaf: np.ndarray) -> None:
        """Writes their tensor into its part of our leaf."""
        leaf[self.index] = (tensor.T if self.inputs else tensor).reshape(leaf[self.index].shape)


def groups_of(objectives: Iterable[str]) -> set[str]:
    """The groups of parameters of a model for these objectives: "encoder", "pooler", heads."""
    learned = find(objectives)
    pooler = {"pooler"} if any(objective.needs_pooler for objective in learned) else set()
    return {"encoder", *pooler, *(objective.head for objective in learned)}


def slots(
    config: ModelConfig, groups: Collection[str] = frozenset(groups_of(BERT_FOR_PRETRAINING))
) -> Iterator[Slot]:
    """Every tensor of their state dict once, without the tied decoder."""
    heads = {objective.head: objective.tensors for objective in OBJECTIVES.values()}
    for tensor in (*_ENCODER, *itertools.chain.from_iterable(heads.values())):
        yield from (slot for slot in _slots_of(tensor, config) if slot.group in groups)


def _slots_of(tensor: Tensor, config: ModelConfig) -> Iterator[Slot]:
    """A tensor over layers and parts."""
    path, theirs, inputs = tuple(tensor.ours.split(".")), tensor.theirs, tensor.inputs
    index: tuple[int | slice, ...]
    if "{layer}" not in theirs:
        index = (slice(config.vocab_size),) if tensor.of_vocabulary else ()
        yield Slot(theirs, path, index, inputs)
        return
    for layer in range(config.num_hidden_layers):
        if "{part}" not in theirs:
            yield Slot(theirs.format(layer=layer), path, (layer,), inputs)
            continue
        for i, part in enumerate(_PARTS):
            # kernel [L, H, 3, A, D], bias [L, 3, A, D]
            index = (layer, slice(None), i) if inputs else (layer, i)
            yield Slot(theirs.format(layer=layer, part=part), path, index, inputs)


def to_transformers(params: Mapping[str, Any], config: ModelConfig) -> dict[str, np.ndarray]:
    """Our parameters -> the state dict of `registry.transformers_class(params)`: C-contiguous
    float32 arrays, without the tied decoder."""
    result = {}
    pooler = {"pooler"} if "pooler" in params["encoder"] else set()
    for slot in slots(config, params.keys() | pooler):
        leaf = _leaf(params, slot)
        # Copy even if the layout is the same: the caller may write into the result.
        result[slot.theirs] = np.array(slot.to_theirs(leaf), np.float32, order="C")
    return result


def from_transformers(
    tensors: Mapping[str, np.ndarray], config: ModelConfig, *, require: Sequence[str] | None = None
) -> dict[str, Any]:
    """Their state dict -> our parameters, a nested dict of float32 NumPy arrays.

    The tree is that of the objectives `registry.with_heads(present(tensors))`: a pooler and a pair
    head exist where the tensors contain one of them.

    Names of older files are supported: `LayerNorm.gamma` and `.beta`, no `bert.` prefix (a bare
    `BertModel`), `embeddings.position_ids`. Tensors of other heads are ignored.

    Args:
        tensors: name -> array of any float dtype.
        require: the groups that must be present, by default all of the tree. Other absent groups
            are zero.

    Raises:
        UserError: a tensor of a required group is missing, has another shape than in the config,
            is not floating-point, or contains NaN or infinite values.
    """
    by_name = {_current_name(name): tensor for name, tensor in tensors.items()}
    available = present(tensors)
    learned = with_heads(available)
    groups = groups_of(learned)
    needed = available | (groups if require is None else set(require))
    shapes = nnx.to_pure_dict(declare(config, ComputeConfig.plain(), learned)[1])
    # Broadcast zeros take no memory: a config.json may ask for any size, so nothing is allocated
    # before the weights are known to have that size.
    empty = jax.tree.map(lambda x: np.broadcast_to(np.float32(0), x.shape), shapes)
    used = [slot for slot in slots(config, groups) if slot.group in needed]
    for slot in used:
        _check_tensor(slot, by_name, empty)
    params: dict[str, Any] = jax.tree.map(lambda x: np.zeros(x.shape, np.float32), shapes)
    for slot in used:
        tensor = np.asarray(by_name[slot.theirs]).astype(np.float32)
        if not np.isfinite(tensor).all():
            problem = "contains NaN or infinite values"
            raise UserError(f"{slot.theirs} {problem}; export an earlier step")
        slot.to_ours(tensor, _leaf(params, slot))
    return params


def _leaf(params: Mapping[str, Any], slot: Slot) -> Any:
    return functools.reduce(lambda tree, key: tree[key], slot.ours, params)


def _check_tensor(slot: Slot, tensors: Mapping[str, Any], empty: Mapping[str, Any]) -> None:
    """Raises UserError for a missing or invalid tensor; empty: zeros in our parameters' shapes."""
    if slot.theirs not in tensors:
        raise UserError(f"the weights have no {slot.theirs}; is this a BERT checkpoint?")
    tensor, wanted = tensors[slot.theirs], slot.to_theirs(_leaf(empty, slot)).shape
    if tuple(tensor.shape) != wanted:
        raise UserError(
            f"{slot.theirs} has shape {list(tensor.shape)}, config.json requires "
            f"{list(wanted)}; use the config.json of these weights"
        )
    if not jax.dtypes.issubdtype(tensor.dtype, np.floating):
        problem = f"has dtype {tensor.dtype}, not a floating-point one"
        raise UserError(f"{slot.theirs} {problem}; export the model again")


def present(tensors: Mapping[str, Any]) -> set[str]:
    """The groups with at least one tensor in a state dict."""
    prefixes = {"encoder": "bert.encoder.", "pooler": "bert.pooler."}
    heads = (objective for objective in OBJECTIVES.values() if objective.tensors)
    prefixes |= {objective.head: objective.tensor_prefix for objective in heads}
    names = [_current_name(name) for name in tensors]
    return {g for g, prefix in prefixes.items() if any(n.startswith(prefix) for n in names)}


def _current_name(name: str) -> str:
    name = name.replace("LayerNorm.gamma", "LayerNorm.weight")
    name = name.replace("LayerNorm.beta", "LayerNorm.bias")
    bare = name.startswith(("embeddings.", "encoder.", "pooler."))
    return f"bert.{name}" if bare else name
