"""Paths that are no regular files, files that are too large, and arrays that say they are."""

import io
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bert_jax.config import config_files as config_files
from bert_jax.config import values_file
from bert_jax.convert.model_files import read_json
from bert_jax.convert.model_folders import local_folder
from bert_jax.convert.reader import read_folder
from bert_jax.convert.safetensors_file import read_metadata, read_tensors, write_tensors
from bert_jax.data_pipeline import sources
from bert_jax.data_pipeline.sources import parse_source
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.finetune.tasks import conll, splits, squad
from bert_jax.metrics import run_records
from bert_jax.storage.npz_file import read_npz
from bert_jax.storage.read_files import open_bytes, read_bytes
from bert_jax.training import per_example

READERS: dict[str, Callable[[Path], object]] = {
    "bytes": read_bytes,
    "stream": open_bytes,
    "record": read_json,
    "tokenizer": Tokenizer.load,
    "weights": lambda path: read_tensors(path, "copy it again"),
    "model": lambda path: local_folder(str(path)).__enter__(),
    "config": lambda path: values_file.get_config(str(path)),
    "config by name": lambda path: config_files.with_paths([f"--config={path}"]),
    "model of a command": lambda path: read_folder(path),
    **{
        f"source {kind}": lambda path, kind=kind: sources.find(parse_source(f"{kind}:{path}"))
        for kind in ("books", "wikiextractor", "dump", "csv", "parquet", "arrow", "python")
    },
    "files of a task": lambda path: splits.find_split("mnli", path, {"dev": (("d",),)}, "dev"),
    "metrics": lambda path: list(run_records.records(path)),
    "examples": per_example.read_losses,
    "questions": squad.read_questions,
    "tags": conll.read_sentences,
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_a_pipe_and_a_device_are_refused_at_once(read: Callable, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero")):
        with pytest.raises(UserError, match=f"{path}: .*not a regular file") as error:
            read(path)
        assert "\n" not in str(error.value)


def test_a_file_has_a_limit(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    with file.open("wb") as stream:
        stream.truncate(1 << 40)  # sparse
    with pytest.raises(UserError, match=r"config.json: has more than 67,108,864 bytes"):
        read_json(file)
    file.write_bytes(bytes(100))
    assert read_bytes(file, 100) == bytes(100)
    with pytest.raises(UserError, match="more than 99 bytes"):
        read_bytes(file, 99)


def npz(tmp_path: Path, name: str, array: bytes) -> Path:
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, array)
    return tmp_path / "a.npz"


def header(shape: str, kind: str = "<f4") -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        out, {"descr": kind, "fortran_order": False, "shape": (1,)}
    )
    return out.getvalue().replace(b"(1,)", shape.encode())


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("a.npy", header("(1000000000000000,)") + bytes(4)),
        ("a.npy", header("(-1, -1)") + bytes(4)),
        ("a.npy", header("(1,)", "|O") + bytes(8)),
        ("a.npy", b"\x93NUMPY\x01\x00"),
        ("a.txt", b"text"),
        ("a.npy", bytes(1 << 20)),
    ],
)
def test_an_array_is_no_larger_than_its_file(name: str, array: bytes, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        read_npz(npz(tmp_path, name, array))


def test_arrays_are_read_as_they_were_written(tmp_path: Path) -> None:
    arrays = {
        "a": np.arange(5, dtype=np.int64), "b": np.zeros((0, 3), np.float32),
        "c": np.asfortranarray(np.arange(6.0).reshape(2, 3)), "d": np.array("h\xe4llo"),
    }  # fmt: skip
    np.savez_compressed(tmp_path / "a.npz", **arrays)  # type: ignore[arg-type]
    found = read_npz(tmp_path / "a.npz")
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def test_text_about_tensors_is_in_one_order(tmp_path: Path) -> None:
    """The library writes it in the order of a hash table, which differs from write to write."""
    tensors, about = {"a": np.arange(4, dtype=np.float32)}, {c: c for c in "zyxwvutsr"}
    contents = set()
    for number in range(4):
        file = tmp_path / f"{number}"
        write_tensors(file, tensors, about)
        contents.add(file.read_bytes())
    assert len(contents) == 1
    assert read_metadata(file, "") == about
    np.testing.assert_array_equal(read_tensors(file, "")["a"], tensors["a"])
