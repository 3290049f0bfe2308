"""Writes TensorFlow checkpoints, from the description of the format: the reverse of
bert_jax/convert/tensorflow."""

import json
import re
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import google_crc32c
import numpy as np

from bert_jax.config.schema import ModelConfig
from bert_jax.convert.hf_config import to_config_json

_DTYPES = {"float32": 1, "float64": 2, "int32": 3, "int64": 9, "bfloat16": 14, "float16": 19}


def write_bundle(prefix: Path, tensors: Mapping[str, np.ndarray], shards: int = 1) -> None:
    """Writes PREFIX.index and its data files, the tensors in turns."""
    data = [bytearray() for _ in range(shards)]
    entries = {b"": _field(1, shards) + _field(3, _field(1, 1))}
    for i, (name, tensor) in enumerate(sorted(tensors.items())):
        shard, raw = i % shards, np.ascontiguousarray(tensor).tobytes()
        shape = b"".join(_field(2, _field(1, size)) for size in tensor.shape)
        entries[name.encode()] = (
            _field(1, _DTYPES[str(tensor.dtype)]) + _field(2, shape) + _field(3, shard)
            + _field(4, len(data[shard])) + _field(5, len(raw))
            + _varint(6 << 3 | 5) + struct.pack("<I", _masked(raw))
        )  # fmt: skip
        data[shard] += raw
    prefix.with_name(f"{prefix.name}.index").write_bytes(_table(entries))
    for shard, content in enumerate(data):
        prefix.with_name(f"{prefix.name}.data-{shard:05}-of-{shards:05}").write_bytes(content)


def write_google_folder(
    folder: Path,
    config: ModelConfig,
    state: Mapping[str, np.ndarray],
    entries: Sequence[str],
    step: int = 7,
) -> dict[str, np.ndarray]:
    """Writes a folder as run_pretraining.py of google-research/bert does; returns its tensors.

    state: the tensors of BertForPreTraining; the optimizer's moments are these, and their squares.
    entries: of the vocabulary.
    """
    folder.mkdir()
    settings = to_config_json(config, pad_token_id=0)
    released = ("hidden_act", "type_vocab_size", "initializer_range")
    kept = {k: v for k, v in settings.items() if k in released or k.endswith(("size", "_prob"))}
    kept |= {k: v for k, v in settings.items() if k.startswith(("num_", "max_"))}
    (folder / "bert_config.json").write_text(json.dumps(kept | {"directionality": "bidi"}))
    (folder / "vocab.txt").write_text("".join(f"{entry}\n" for entry in entries))
    tensors = google_tensors(state)
    moments = {f"{name}/adam_m": tensor for name, tensor in tensors.items()}
    moments |= {f"{name}/adam_v": np.square(tensor) for name, tensor in tensors.items()}
    written = tensors | moments | {"global_step": np.array(step)}
    write_bundle(folder / "bert_model.ckpt", written)
    return written


def google_name(name: str) -> str:
    """Returns the name in google-research/bert of a tensor of BertForPreTraining."""
    if name.startswith(("cls.predictions.bias", "cls.seq_relationship.")):
        return (
            re.sub(r"\.(?=\w+$)", "/output_", name).replace(".", "/").replace("weight", "weights")
        )
    stem, kind = name.rsplit(".", 1)
    stem = re.sub(r"layer\.(\d+)", r"layer_\1", stem).replace(".", "/")
    if stem.endswith("_embeddings"):
        return stem
    if stem.endswith(("LayerNorm", "LayerNorm_1")):
        return f"{stem}/{'gamma' if kind == 'weight' else 'beta'}"
    return f"{stem}/{'kernel' if kind == 'weight' else 'bias'}"


def google_tensors(state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the tensors of BertForPreTraining as google-research/bert stores them."""
    named = {google_name(name): tensor for name, tensor in state.items()}
    return {name: t.T if name.endswith("/kernel") else t for name, t in named.items()}


def albert_tensors(state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the tensors of AlbertForPreTraining as google-research/albert stores them."""
    inner = "inner_group_0"
    parts = (
        ("albert.", "bert."),
        ("sop_classifier.classifier.", "cls.seq_relationship."),
        ("encoder.albert_layer_groups.", "encoder.transformer.group_"),
        (".albert_layers.0", f".{inner}"),
        ("full_layer_layer_norm", "LayerNorm_1"),
        (f"{inner}.attention.LayerNorm", f"{inner}.LayerNorm"),
        (".attention.dense", ".attention_1.output.dense"),
        (".attention.", ".attention_1.self."),
        (".ffn_output", ".ffn_1.intermediate.output.dense"),
        (".ffn.", ".ffn_1.intermediate.dense."),
        (".pooler.", ".pooler.dense."),
    )
    named = {}
    for name, tensor in state.items():
        for theirs, own in parts:
            name = name.replace(theirs, own)
        if name.startswith("predictions."):
            name = f"cls.{name}".replace("predictions.dense", "predictions.transform.dense")
            name = name.replace("predictions.LayerNorm", "predictions.transform.LayerNorm")
        named[name] = tensor
    return google_tensors(named)


def _table(entries: Mapping[bytes, bytes]) -> bytes:
    """A LevelDB table with two data blocks."""
    out, index, names = bytearray(), {}, sorted(entries)
    half = (len(names) + 1) // 2
    for part in (names[:half], names[half:]):
        if part:
            index[part[-1]] = _append(out, _block({name: entries[name] for name in part}))
    metaindex, found = _append(out, _block({})), _append(out, _block(index))
    footer = (metaindex + found).ljust(40, b"\0")
    return bytes(out + footer + (0xDB4775248B80FB57).to_bytes(8, "little"))


def _append(out: bytearray, block: bytes) -> bytes:
    """Appends an uncompressed block; returns its handle."""
    handle = _varint(len(out)) + _varint(len(block))
    out += block + b"\0" + struct.pack("<I", _masked(block + b"\0"))
    return handle


def _block(entries: Mapping[bytes, bytes]) -> bytes:
    out, previous = bytearray(), b""
    for key, value in entries.items():
        same = next(
            (i for i, (a, b) in enumerate(zip(key, previous, strict=False)) if a != b), None
        )
        shared = min(len(key), len(previous)) if same is None else same
        out += _varint(shared) + _varint(len(key) - shared) + _varint(len(value))
        out += key[shared:] + value
        previous = key
    return bytes(out + struct.pack("<II", 0, 1))


def _field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _masked(data: bytes) -> int:
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
