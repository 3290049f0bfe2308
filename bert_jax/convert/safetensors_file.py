"""Reads and writes .safetensors files: tensors by name, and text about them."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
import safetensors
import safetensors.numpy

from bert_jax.storage.reader_errors import reader_errors, safetensors_errors
from bert_jax.storage.regular_file import check_regular
from bert_jax.storage.remote import storage_errors

_LENGTH: Final = struct.Struct("<Q")  # of the header, which it follows
_ABOUT: Final = "__metadata__"


def read_tensors(file: Path, remedy: str) -> dict[str, np.ndarray]:
    """Returns the tensors of a file by name, with their stored dtypes.

    remedy: what to do about a damaged file, for the message.

    Raises:
        UserError: it cannot be read, or is damaged.
    """
    import safetensors.flax  # imports JAX

    with storage_errors(file), reader_errors(file, safetensors_errors(), "cannot be read", remedy):
        check_regular(file)
        # Loaded with the Flax reader: plain NumPy has no bfloat16. It rounds float64.
        tensors = {name: np.asarray(x) for name, x in safetensors.flax.load_file(file).items()}
        with safetensors.safe_open(file, framework="numpy") as stream:
            for name in tensors:
                if stream.get_slice(name).get_dtype() == "F64":
                    tensors[name] = stream.get_tensor(name)
    return tensors


def read_metadata(file: Path, remedy: str) -> dict[str, str]:
    """Returns the text about the tensors of a file by its keys; remedy and errors as
    `read_tensors`."""
    with storage_errors(file), reader_errors(file, safetensors_errors(), "cannot be read", remedy):
        check_regular(file)
        with safetensors.safe_open(file, framework="numpy") as stream:
            return stream.metadata() or {}


def write_tensors(file: Path, tensors: Mapping[str, np.ndarray], about: Mapping[str, str]) -> None:
    """Writes a file; the same content gives the same bytes.

    Raises:
        OSError, SafetensorError: it cannot be written.
    """
    safetensors.numpy.save_file(dict(tensors), file, metadata=dict(about))
    with file.open("r+b") as stream:
        (length,) = _LENGTH.unpack(stream.read(_LENGTH.size))
        header = stream.read(length)
        stream.seek(_LENGTH.size)
        stream.write(_sorted(header))


def _sorted(header: bytes) -> bytes:
    """Returns a header of the same length with its text sorted by key: the library writes it in the
    order of a hash table, another one in each process."""
    values = json.loads(header)
    values[_ABOUT] = dict(sorted(values[_ABOUT].items()))
    return json.dumps(values, separators=(",", ":"), ensure_ascii=False).encode().ljust(len(header))
