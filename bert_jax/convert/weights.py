"""Converts between our parameters and transformers' state dicts, by one table.

The table has the names of BERT: the encoder's are in `layouts/bert.py`, those of a head with its
objective. Those of other layouts are made from them (`layouts/`). A class has some of the heads
(`Layout.class_of`); the others are written to a file of their own (`weight_files.HEADS`).

Ours are stacked over layers [L, ...], query, key and value are one kernel, and kernels are
[in, out] (`y = x · kernel`). Theirs have one tensor per layer and torch's [out, in]. Padding rows
of the vocabulary are dropped on export and are zero on import. The decoder's weight and bias are
the word embeddings and `cls.predictions.bias`: `transformers` ties them, so they are not written,
and must be equal when read.
"""

import functools
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from flax import nnx

from bert_jax.config.schema import ComputeConfig, ModelConfig
from bert_jax.config.task_model import TaskModelConfig
from bert_jax.convert.layouts.bert import ENCODER
from bert_jax.convert.layouts.known_layouts import find_layout
from bert_jax.convert.layouts.layout import Layout
from bert_jax.convert.slot import POOLER, Slot
from bert_jax.convert.weight_names import by_current_name, current_names, tied_names
from bert_jax.errors import UserError
from bert_jax.objectives.known_objectives import (
    OBJECTIVES,
    all_heads,
    find,
    head_title,
    heads_of,
    with_heads,
)
from bert_jax.objectives.objective import Tensor
from bert_jax.objectives.pretraining_model import declare

_PARTS = ("query", "key", "value")
_POSITIONS = "encoder.embeddings.position"
_SINUSOIDS_WITHIN = 1e-2  # bfloat16 rounds to 2 ** -9
_QKV, _ATTENTION_NORM = "encoder.layers.attention.qkv.", "encoder.layers.attention.norm."


def groups_in(params: Mapping[str, Any]) -> set[str]:
    """The groups of our parameters: "encoder", heads, and "pooler" if there is one. A generator is
    a model of its own, and what serves training alone is in none."""
    return {*({"encoder", *all_heads()} & params.keys()), *({POOLER} & params["encoder"].keys())}


def groups_by_file(params: Mapping[str, Any], layout: Layout) -> tuple[set[str], set[str]]:
    """The groups of our parameters that the class of transformers has, and the others."""
    groups, of_class = groups_in(params), layout.class_of(params).groups
    return groups & of_class, groups - of_class


def title(group: str) -> str:
    """Returns the name of a group, or of other parameters, in messages."""
    return head_title(group) if group in all_heads() else group.replace("_", " ")


def slots(config: ModelConfig, groups: Collection[str], pad_token_id: int = 0) -> Iterator[Slot]:
    """Every tensor of these groups that we have, once, without the tied decoder.

    Raises:
        UserError: transformers has no class for this form of model.
    """
    layout = find_layout(config)
    heads = {objective.head: objective.tensors for objective in OBJECTIVES.values()}
    for tensor in (*(layout.encoder or ENCODER), *itertools.chain.from_iterable(heads.values())):
        before = layout.rows_before(pad_token_id) if tensor.ours == _POSITIONS else 0
        halves = layout.rotates_halves and tensor.ours.startswith(_QKV)
        for slot in _slots_of(tensor, config, groups):
            theirs = layout.tensor_name(slot.theirs)
            yield replace(slot, theirs=theirs, before=before, halves=halves)


def _slots_of(tensor: Tensor, config: ModelConfig, groups: Collection[str]) -> Iterator[Slot]:
    """A tensor over layers and parts; nothing if the model or the groups do not have it."""
    path, theirs, inputs = tuple(tensor.ours.split(".")), tensor.theirs, tensor.inputs
    index: tuple[int | slice, ...] = (slice(config.vocab_size),) if tensor.of_vocabulary else ()
    whole = Slot(theirs, path, index, inputs)
    if whole.group not in groups or not tensor.exists(config):
        return
    if "{layer}" not in theirs:
        yield whole
        return
    unread = 0 if config.first_attention_norm else 1  # LayerNorms of the first layers' attention
    first = unread if tensor.ours.startswith(_ATTENTION_NORM) else 0
    for layer in range(first, config.layers_of_parameters):
        if "{part}" not in theirs:
            yield Slot(theirs.format(layer=layer), path, (layer,), inputs)
            continue
        for i, part in enumerate(_PARTS):
            # kernel [L, H, 3, A, D], bias [L, 3, A, D]
            index = (layer, slice(None), i) if inputs else (layer, i)
            yield Slot(theirs.format(layer=layer, part=part), path, index, inputs)


def to_transformers(
    params: Mapping[str, Any],
    config: ModelConfig,
    pad_token_id: int = 0,
    groups: Collection[str] | None = None,
    *,
    rows_before: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Our parameters -> a state dict: C-contiguous float32 arrays, without the tied decoder. Raises
    UserError as `slots`.

    Args:
        groups: those to convert, all by default.
        rows_before: of the position table, before that of position 0, where the layout has such
            rows; zero by default.
    """
    result, groups = {}, groups_in(params) if groups is None else groups
    for slot in slots(config, groups, pad_token_id):
        part = slot.to_theirs(_leaf(params, slot))
        if slot.before:
            before = np.zeros((slot.before, part.shape[1]), np.float32)
            part = np.concatenate([before if rows_before is None else rows_before, part])
        # Copy even if the layout is the same: the caller may write into the result.
        result[slot.theirs] = np.array(part, np.float32, order="C")
    if "encoder" in groups and (layout := find_layout(config)).has_sinusoids:
        result[_sinusoids_name(layout)] = _sinusoids(config)
    return result


def _sinusoids_name(layout: Layout) -> str:
    return layout.tensor_name("bert.encoder.embed_positions.weight")


def _sinusoids(config: ModelConfig) -> np.ndarray:
    """RoFormer's fixed table [positions, D] of the angles' sines, then their cosines."""
    positions, dims = np.arange(config.max_position_embeddings), np.arange(0, config.head_dim, 2)
    angles = positions[:, None] / config.global_rope_theta ** (dims / config.head_dim)
    return np.concatenate([np.sin(angles), np.cos(angles)], 1).astype(np.float32)


def _check_sinusoids(
    tensors: Mapping[str, np.ndarray], config: ModelConfig, layout: Layout
) -> None:
    """Raises UserError for a table of angles that is not RoFormer's, which transformers reads."""
    if not layout.has_sinusoids or (name := _sinusoids_name(layout)) not in tensors:
        return
    given, ours = np.asarray(tensors[name]).astype(np.float32), _sinusoids(config)
    if given.shape != ours.shape or not np.allclose(given, ours, atol=_SINUSOIDS_WITHIN):
        raise UserError(
            f"{name} is not the table of sines and cosines that RoFormer computes for "
            f"{config.max_position_embeddings} positions; only that one is supported"
        )


def copies(tensors: Mapping[str, np.ndarray], config: ModelConfig) -> dict[str, np.ndarray]:
    """Returns what a file of a state dict has twice, for older releases of transformers."""
    layout = find_layout(config)
    bias = layout.tensor_name("cls.predictions.bias")
    if not layout.reads_decoder_bias or bias not in tensors:
        return {}
    return {layout.tensor_name("cls.predictions.decoder.bias"): tensors[bias].copy()}


def from_transformers(
    tensors: Mapping[str, np.ndarray],
    config: ModelConfig,
    pad_token_id: int = 0,
    groups: Collection[str] | None = None,
) -> dict[str, Any]:
    """Their state dict -> our parameters, a nested dict of float32 NumPy arrays.

    Names of older files are supported: `LayerNorm.gamma` and `.beta`, no `bert.` prefix (a bare
    `BertModel`), `embeddings.position_ids`; and tied tensors that only the decoder has. Tensors of
    other groups are ignored.

    Args:
        tensors: name -> array of any float dtype.
        groups: those to read, by default `present`.

    Raises:
        UserError: a tensor of a group is missing, has another shape than in the config, is not
            floating-point, or contains NaN or infinite values; or a decoder that is not tied to the
            word embeddings.
    """
    layout = find_layout(config)
    by_name = by_current_name(tensors, layout)
    groups = present(tensors, config) if groups is None else groups
    heads, pooler = with_heads(groups), POOLER in groups
    _, abstract = declare(config, ComputeConfig.plain(), heads, pooler=pooler)
    shapes = nnx.to_pure_dict(abstract)
    # Broadcast zeros take no memory: a config.json may ask for any size, so nothing is allocated
    # before the weights are known to have that size.
    empty = jax.tree.map(lambda x: np.broadcast_to(np.float32(0), x.shape), shapes)
    used = [*slots(config, groups, pad_token_id)]
    for slot in used:
        _check_tensor(slot, by_name, empty)
    params: dict[str, Any] = jax.tree.map(lambda x: np.zeros(x.shape, np.float32), shapes)
    for slot in used:
        tensor = np.asarray(by_name[slot.theirs]).astype(np.float32)
        if not np.isfinite(tensor).all():
            problem = "contains NaN or infinite values"
            raise UserError(f"{slot.theirs} {problem}; export an earlier step")
        slot.to_ours(tensor, _leaf(params, slot))
    if not config.first_attention_norm:  # which nothing reads
        params["encoder"]["layers"]["attention"]["norm"]["scale"][0] = 1
    _check_sinusoids(by_name, config, layout)
    for decoder, tied in tied_names(layout).items():
        if decoder in by_name and not np.array_equal(by_name[decoder], by_name[tied]):
            raise UserError(
                f"{decoder} differs from {tied}; only models that tie them are supported"
            )
    return params


def rows_before_positions(
    tensors: Mapping[str, Any], config: ModelConfig, pad_token_id: int
) -> np.ndarray | None:
    """Returns the rows of a state dict's position table before that of position 0, float32
    [rows, H], which no text uses; None if its layout has none."""
    layout = find_layout(config)
    if not (rows := layout.rows_before(pad_token_id)):
        return None
    (slot,) = (s for s in slots(config, {"encoder"}, pad_token_id) if s.before)
    return np.asarray(by_current_name(tensors, layout)[slot.theirs])[:rows].astype(np.float32)


def leftover(tensors: Mapping[str, Any], config: ModelConfig) -> list[str]:
    """Returns the names in a state dict of which our parameters have no counterpart, in order."""
    layout = find_layout(config)
    known = {slot.theirs for slot in _all_slots(config)} | tied_names(layout).keys()
    known.add(f"{layout.base}.embeddings.position_ids")
    if layout.has_sinusoids:
        known.add(_sinusoids_name(layout))
    return sorted(name for name, now in current_names(tensors, layout).items() if now not in known)


def unread(tensors: Mapping[str, Any], config: ModelConfig) -> list[str]:
    """Returns the names of a pooler's tensors that no head reads, as in RoBERTa's released files;
    in order."""
    layout, groups = find_layout(config), present(tensors, config)
    unused = {slot.theirs for slot in _all_slots(config) if slot.group not in groups}
    return sorted(name for name, now in current_names(tensors, layout).items() if now in unused)


def _leaf(params: Mapping[str, Any], slot: Slot) -> Any:
    return functools.reduce(lambda tree, key: tree[key], slot.ours, params)


def _check_tensor(slot: Slot, tensors: Mapping[str, Any], empty: Mapping[str, Any]) -> None:
    """Raises UserError for a missing or invalid tensor; empty: zeros in our parameters' shapes."""
    if slot.theirs not in tensors:
        raise UserError(f"the weights have no {slot.theirs}; is this a BERT checkpoint?")
    tensor, wanted = tensors[slot.theirs], slot.shape_of_theirs(_leaf(empty, slot))
    if tuple(tensor.shape) != wanted:
        raise UserError(
            f"{slot.theirs} has shape {list(tensor.shape)}, config.json requires "
            f"{list(wanted)}; use the config.json of these weights"
        )
    if not jax.dtypes.issubdtype(tensor.dtype, np.floating):
        problem = f"has dtype {tensor.dtype}, not a floating-point one"
        raise UserError(f"{slot.theirs} {problem}; export the model again")


def present(tensors: Mapping[str, Any], config: ModelConfig) -> set[str]:
    """The groups of a state dict: "encoder", the heads of which it has a tensor, the head of its
    task, and a pooler that a head reads; without any head, a pooler of which it has a tensor."""
    layout = find_layout(config)
    names = by_current_name(tensors, layout)
    found = {slot.group for slot in _all_slots(config) if slot.theirs in names}
    if isinstance(config, TaskModelConfig):
        found.add(config.head.name)
    if learned := find(with_heads(found)):
        found -= {POOLER}
        found |= {POOLER for objective in learned if objective.needs_pooler(config)}
    return {"encoder", *found}


def _all_slots(config: ModelConfig) -> Iterable[Slot]:
    return slots(config, {"encoder", POOLER, *heads_of(config)})
