"""Reads the weights in a folder of transformers: one file or several with an index.

The weights are those of model.safetensors, or else those of pytorch_model.bin, which needs PyTorch;
and those of heads.safetensors, which an export has for heads that no class of transformers has.
"""

import zipfile
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from bert_jax.convert.model_files import Sums, checked_file, read_json
from bert_jax.convert.safetensors_file import read_tensors
from bert_jax.data_pipeline.settings import shown, shown_name
from bert_jax.errors import UserError, count
from bert_jax.runtime.log import logger
from bert_jax.storage.reader_errors import ANY_ERRORS, reader_errors
from bert_jax.storage.regular_file import check_regular
from bert_jax.storage.remote import storage_errors

SAFETENSORS, PYTORCH = "model.safetensors", "pytorch_model.bin"
HEADS, OPTIMIZER_FILE = "heads.safetensors", "optimizer.safetensors"
INDEX = ".index.json"  # after the name of the only file
# The files of a folder of transformers that are read, as patterns of `fnmatch`.
SETTINGS_FILES = (
    "*.json", "vocab.txt", "merges.txt", "sentencepiece.bpe.model", "bpe.codes", "SHA256SUMS",
)  # fmt: skip
SAFETENSORS_FILES = ("model*.safetensors", HEADS)
PYTORCH_FILES = ("pytorch_model*.bin",)
# Folders with the parts of a sentence encoder, of which the first may be the encoder.
PART = "[0-9]*_*"
# What a wrapper of PyTorch puts before the names of tensors, and what to save instead of it.
_WRAPPERS = {
    "module.": ("DataParallel", "its model.module"),
    "_orig_mod.": ("torch.compile", "the model that is not compiled"),
}
_AGAIN = "export or download the model again"


def read_weights(folder: Path, sums: Sums) -> dict[str, np.ndarray]:
    """Returns the tensors of a folder by name, with their stored dtypes; logs it if some are of
    float64, which our models round.

    Raises:
        UserError: there are none, a file is missing or damaged or differs from SHA256SUMS, PyTorch
            is needed and not installed, or the model was saved in a wrapper that trains it.
    """
    tensors = _read_model(folder, sums)
    for prefix, (wrapper, model) in _WRAPPERS.items():
        if tensors and all(name.startswith(prefix) for name in tensors):
            raise UserError(
                f"{folder}: all names of tensors begin with {prefix}, as {wrapper} names them; "
                f"save {model}"
            )
    if wide := sum(tensor.dtype == np.float64 for tensor in tensors.values()):
        logger.info("%s: rounded from float64 to float32: %s", folder, count(wide, "tensor"))
    if not (folder / HEADS).exists() and HEADS not in (sums or ()):
        return tensors
    with checked_file(folder, HEADS, sums):
        heads = _load_safetensors(folder / HEADS)
    if twice := sorted(heads.keys() & tensors.keys()):
        raise UserError(
            f"{folder / HEADS}: {shown_name(twice[0])} is also in another file; {_AGAIN}"
        )
    return tensors | heads


def _read_model(folder: Path, sums: Sums) -> dict[str, np.ndarray]:
    """Returns the tensors of the class in transformers; UserError as `read_weights`."""
    for name, load in ((SAFETENSORS, _load_safetensors), (PYTORCH, _load_pytorch)):
        if (folder / name).exists():
            with checked_file(folder, name, sums):
                return load(folder / name)
        if (folder / f"{name}{INDEX}").exists():
            return _read_shards(folder, f"{name}{INDEX}", load, sums)
    problem = "missing; give a folder with an exported model"
    if any(folder.rglob("*.incomplete")):  # as huggingface_hub names a file until it has it all
        problem = "missing, and a download there is not finished; download the model again"
    raise UserError(f"{folder / SAFETENSORS}: {problem}")


def _read_shards(
    folder: Path, index: str, load: Callable[[Path], dict[str, np.ndarray]], sums: Sums
) -> dict[str, np.ndarray]:
    """Returns the tensors that an index lists, from several files."""
    tensors: dict[str, np.ndarray] = {}
    for name, listed in _files(folder / index, read_json(folder / index, sums)).items():
        if not (folder / name).exists():
            raise UserError(f"{folder / name}: missing, but {index} lists it; {_AGAIN}")
        with checked_file(folder, name, sums):
            shard = load(folder / name)
        if missing := sorted(listed - shard.keys()):
            raise UserError(
                f"{folder / name}: has no {shown_name(missing[0])}, but {index} lists it; {_AGAIN}"
            )
        if extra := sorted(shard.keys() - listed):
            raise UserError(
                f"{folder / name}: has {shown_name(extra[0])}, which {index} does not list; "
                f"{_AGAIN}"
            )
        tensors |= shard
    return tensors


def _files(index: Path, values: Mapping[str, Any]) -> dict[str, set[str]]:
    """Returns the names of the tensors in each file."""
    where = values.get("weight_map")
    if not isinstance(where, dict) or not where:
        raise UserError(f"{index}: no weight_map; {_AGAIN}")
    files = defaultdict(set)
    for tensor, name in where.items():
        named = isinstance(name, str) and name.isprintable() and Path(name).name == name
        if not named or name in (".", ".."):
            raise UserError(f"{index}: {shown(name)} is not the name of a file beside it")
        files[name].add(tensor)
    return files


def _load_safetensors(file: Path) -> dict[str, np.ndarray]:
    return read_tensors(file, _AGAIN)


def _load_pytorch(file: Path) -> dict[str, np.ndarray]:
    """Reads pytorch_model.bin without running the code that a pickle may contain."""
    try:
        import torch
    except ImportError:
        raise UserError(
            f"{file}: needs PyTorch, which is not installed; pip install 'bert-jax[torch]', or "
            f"save the model as {SAFETENSORS}"
        ) from None
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 10):
        raise UserError(f"{file}: PyTorch {torch.__version__} is not safe to read it; install 2.10")
    with storage_errors(file):
        check_regular(file)
    with reader_errors(file, ANY_ERRORS, "cannot be read", _AGAIN):
        state = torch.load(file, map_location="cpu", weights_only=True, mmap=_is_zip(file))
        if not (isinstance(state, dict) and all(isinstance(name, str) for name in state)):
            raise UserError(f"{file}: not a dictionary of tensors; {_AGAIN}")
        return {name: _to_numpy(tensor) for name, tensor in state.items()}


def _is_zip(file: Path) -> bool:
    return zipfile.is_zipfile(file)  # PyTorch's format since 1.6


def _to_numpy(tensor: Any) -> np.ndarray:
    import torch

    tensor = tensor.detach().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()
