"""Writes the weights of a folder: in float32 or half as many bytes, in one file or in several; and
the state of their optimizer."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

import ml_dtypes
import numpy as np

from bert_jax.convert.safetensors_file import read_metadata, write_tensors
from bert_jax.convert.weight_files import INDEX, OPTIMIZER_FILE, SAFETENSORS
from bert_jax.errors import UserError
from bert_jax.training.optimizer_state import OPTIMIZER, OptimizerState

DTYPES: Final = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
WEIGHT_FILE: Final = re.compile(
    r"model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?|" + re.escape(OPTIMIZER_FILE)
)
_PRODUCER = "bert-jax"
_SIZE = re.compile(r"(\d{1,9}(\.\d{1,9})?)[KMG]B", re.ASCII)


@dataclass(frozen=True)
class WeightFormat:
    """Storage format of weights.

    Attributes:
        dtype: "float32", "bfloat16" or "float16".
        max_shard_size: such as "2GB": they are in several files of at most this size.

    Raises:
        UserError: another dtype, or `max_shard_size` is not the size of a file.
    """

    dtype: str = "float32"
    max_shard_size: str | None = None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise UserError(f"dtype={self.dtype}: give {', '.join(DTYPES)}")
        if self.max_shard_size is None:
            return
        size = _SIZE.fullmatch(self.max_shard_size)
        if size is None or float(size[1]) == 0:
            raise UserError(
                f"max_shard_size={self.max_shard_size}: give a size such as 500MB or 2GB"
            )


DEFAULT_FORMAT: Final = WeightFormat()


def as_dtype(tensors: Mapping[str, np.ndarray], dtype: str) -> dict[str, np.ndarray]:
    """Returns the tensors in another dtype, rounded to nearest.

    Raises:
        UserError: a tensor is not finite, or has a value that the dtype cannot hold.
    """
    result = {}
    for name, tensor in tensors.items():
        if not np.isfinite(tensor).all():
            raise UserError(f"{name} contains NaN or infinite values; export an earlier step")
        with np.errstate(over="ignore"):  # reported below
            result[name] = tensor.astype(DTYPES[dtype], copy=False)
        if dtype != "float32" and not np.isfinite(result[name].astype(np.float32)).all():
            largest = float(np.abs(tensor).max())
            raise UserError(f"{name} has a value of {largest:g}, which {dtype} cannot hold")
    return result


def write_weights(
    folder: Path, tensors: Mapping[str, np.ndarray], max_shard_size: str | None
) -> list[str]:
    """Writes model.safetensors, or parts of at most this size and their index as transformers does;
    returns the names of the files. A tensor that is larger has a part of its own.

    Raises:
        OSError, SafetensorError: a file cannot be written.
    """
    if max_shard_size is None:
        _save(folder / SAFETENSORS, tensors)
        return [SAFETENSORS]
    from huggingface_hub import split_state_dict_into_shards_factory

    split = split_state_dict_into_shards_factory(
        dict(tensors),
        get_storage_size=lambda tensor: tensor.nbytes,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=max_shard_size,
    )
    for file, names in split.filename_to_tensors.items():
        _save(folder / file, {name: tensors[name] for name in names})
    files = [*split.filename_to_tensors]
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        text = json.dumps(index, indent=2, sort_keys=True) + "\n"
        (folder / f"{SAFETENSORS}{INDEX}").write_text(text, encoding="utf-8")
        files.append(f"{SAFETENSORS}{INDEX}")
    return files


def write_files(folder: Path, files: Mapping[str, Mapping[str, np.ndarray]]) -> list[str]:
    """Writes files of tensors, which may be in a folder of the folder; returns their names. Errors
    as `write_weights`."""
    for name, tensors in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        _save(folder / name, tensors)
    return [*files]


def write_optimizer(folder: Path, state: OptimizerState) -> str:
    """Writes the state of an optimizer beside the weights; returns the name of the file.

    Raises:
        OSError, SafetensorError: it cannot be written.
    """
    name = {OPTIMIZER: state.optimizer}
    _save(folder / OPTIMIZER_FILE, state.leaves, **name)
    return OPTIMIZER_FILE


def is_export(folder: Path) -> bool:
    """Returns whether the weights in a folder were written by bert-jax."""
    files = [path for path in folder.glob("model*.safetensors") if WEIGHT_FILE.fullmatch(path.name)]
    try:
        for file in files:
            if not read_metadata(file, "").get("producer", "").startswith(_PRODUCER):
                return False
    except UserError:
        return False
    return bool(files)


def _save(file: Path, tensors: Mapping[str, np.ndarray], **about: str) -> None:
    # transformers rejects files whose metadata has no "format".
    about |= {"format": "pt", "producer": f"{_PRODUCER} {version('bert-jax')}"}
    write_tensors(file, tensors, about)
