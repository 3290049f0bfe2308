"""Random corruptions of the files of a token store.

A corruption takes a folder and a generator, does its damage and returns what it did. Those of
`SIGNED` also rewrite the digests, as a wrong program or a person would: no hash can see them.
"""

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.data_pipeline.store.digests import entry_of
from bert_jax.data_pipeline.store.manifest import FILES, manifest_digest

Corruption = Callable[[Path, np.random.Generator], str]
ALL = [*FILES, "manifest.json"]


class Touch:
    """When unpickled, writes the file named by the environment, which must never happen."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ('touch "$BERT_JAX_TEST_UNPICKLED"',)


def _pick(rng: np.random.Generator, items: list[Any]) -> Any:
    return items[int(rng.integers(len(items)))]


def _file(store: Path, rng: np.random.Generator, names: list[str] = ALL) -> Path:
    return store / _pick(rng, names)


def flip(store: Path, rng: np.random.Generator) -> str:
    file = _file(store, rng)
    data = bytearray(file.read_bytes())
    at = int(rng.integers(len(data)))
    data[at] ^= 1 << int(rng.integers(8))
    file.write_bytes(data)
    return f"a bit of byte {at} of {file.name}"


def truncate(store: Path, rng: np.random.Generator) -> str:
    file = _file(store, rng)
    size = int(rng.integers(file.stat().st_size))
    os.truncate(file, size)
    return f"{file.name} cut to {size}"


def delete(store: Path, rng: np.random.Generator) -> str:
    file = _file(store, rng)
    file.unlink()
    return f"{file.name} deleted"


def empty(store: Path, rng: np.random.Generator) -> str:
    file = _file(store, rng)
    file.write_bytes(b"")
    return f"{file.name} emptied"


def append(store: Path, rng: np.random.Generator) -> str:
    file = _file(store, rng)
    more = _pick(rng, [b"\0", b"\n", b" ", b"}", rng.bytes(40)])
    with file.open("ab") as stream:
        stream.write(more)
    return f"{more!r} after {file.name}"


def swap(store: Path, rng: np.random.Generator) -> str:
    one, other = _file(store, rng), _file(store, rng)
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)
    return f"{one} and {other} swapped"


def of_the_other_split(store: Path, rng: np.random.Generator) -> str:
    name = _pick(rng, [name for name in FILES if "/" in name])
    split, array = name.split("/")
    other = "held_out" if split == "train" else "train"
    shutil.copy(store / other / array, store / name)
    return f"{name} from {other}"


def swap_splits(store: Path, rng: np.random.Generator) -> str:
    (store / "train").rename(store / "other")
    (store / "held_out").rename(store / "train")
    (store / "other").rename(store / "held_out")
    return "splits swapped"


def zero(store: Path, rng: np.random.Generator) -> str:
    file = _file(store, rng)
    data = bytearray(file.read_bytes())
    start = int(rng.integers(len(data)))
    end = min(len(data), start + int(rng.integers(1, 512)))
    data[start:end] = bytes(end - start)
    file.write_bytes(data)
    return f"bytes {start} to {end} of {file.name} zeroed"


def overwrite(store: Path, rng: np.random.Generator) -> str:
    file = _file(store, rng)
    data = bytearray(file.read_bytes())
    start = int(rng.integers(len(data)))
    end = min(len(data), start + int(rng.integers(1, 64)))
    data[start:end] = rng.bytes(end - start)
    file.write_bytes(data)
    return f"random bytes at {start} of {file.name}"


def shift(store: Path, rng: np.random.Generator) -> str:
    file = _file(store, rng)
    data = file.read_bytes()
    at = int(rng.integers(len(data)))
    file.write_bytes(data[:at] + data[at + 1 :] + b"\0")
    return f"byte {at} of {file.name} lost, the rest moved up"


def dangling(store: Path, rng: np.random.Generator) -> str:
    file = _file(store, rng)
    file.unlink()
    target = _pick(rng, ["nowhere", file.name])  # the second: a link to itself
    file.symlink_to(target)
    return f"{file.name} a link to {target}"


def linked_away(store: Path, rng: np.random.Generator) -> str:
    file = _file(store, rng)
    file.rename(file.with_name("moved"))
    file.symlink_to("moved")
    return f"{file.name} moved, with a link to it"


def folder_instead(store: Path, rng: np.random.Generator) -> str:
    file = _file(store, rng)
    file.unlink()
    file.mkdir()
    return f"{file.name} a folder"


def file_instead(store: Path, rng: np.random.Generator) -> str:
    folder = store / _pick(rng, ["train", "held_out"])
    shutil.rmtree(folder)
    if rng.integers(2):
        folder.write_bytes(b"x")
    return f"{folder.name} no folder"


def garbage_manifest(store: Path, rng: np.random.Generator) -> str:
    text = _pick(
        rng,
        [
            b"", b"null", b"[]", b"{}", b"2", b'"x"', b"{", b"\xff\xfe{", b"\0" * 100, b"NaN",
            b'{"format_version": 2}', b'{"format_version": [2]}', b'{"format_version": 1e999}',
            b"[" * 100_000, b'{"a":' * 100_000, b"9" * 5000, rng.bytes(200),
            b'{"format_version": 2, "digest": null}', b"\xef\xbb\xbf{}",
        ],
    )  # fmt: skip
    (store / "manifest.json").write_bytes(text)
    return f"manifest.json {text[:30]!r}"


def pickled(store: Path, rng: np.random.Generator) -> str:
    file = _file(store, rng, [name for name in FILES if name.endswith(".npy")])
    file.write_bytes(_pickled(rng))
    return f"{file.name} pickled"


def _pickled(rng: np.random.Generator) -> bytes:
    """A file that runs code if numpy unpickles it: an array of objects, or a plain pickle."""
    payload = pickle.dumps(np.array([Touch()], object), protocol=2)
    header = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"
    header += b" " * (127 - 10 - len(header)) + b"\n"
    whole = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + payload
    return payload if rng.integers(2) else whole


HEADERS = [
    b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
    b"{'descr': '<u2', 'fortran_order': False, 'shape': (99999999999999,), }",
    b"{'descr': '<u2', 'fortran_order': False, 'shape': (-1,), }",
    b"{'descr': '<u2', 'fortran_order': True, 'shape': (2, 2), }",
    b"{'descr': '>u2', 'fortran_order': False, 'shape': (4,), }",
    b"{'descr': '<u2', 'fortran_order': False, 'shape': (10**99,), }",
    b"{'descr': [('a', '<u2')], 'fortran_order': False, 'shape': (1,), }",
    b"{'descr': '<u2', 'shape': (4,), }",
    b"{'descr': '<u2', 'fortran_order': False, 'shape': ()}",
    b"{'descr': '', 'fortran_order': False, 'shape': (4,)}",
    b"__import__('os').system('touch \"$BERT_JAX_TEST_UNPICKLED\"')",
    b"{'descr': '<u2', 'fortran_order': False, 'shape': (4,",
    b"(" * 100,
    b"'''",
    b"\0",
    b"\xff\xff",
    b"",
]


def _with_header(data: bytes, header: bytes) -> bytes:
    """A .npy file with another header of the same size, so that its data does not move."""
    size = int.from_bytes(data[8:10], "little")
    return data[:10] + header.ljust(size - 1) + b"\n" + data[10 + size :]


def header(store: Path, rng: np.random.Generator) -> str:
    file = _file(store, rng, [name for name in FILES if name.endswith(".npy")])
    text = _pick(rng, HEADERS)
    file.write_bytes(_with_header(file.read_bytes(), text))
    return f"{file.name} with header {text!r}"


def retokenized(store: Path, rng: np.random.Generator) -> str:
    file = store / "tokenizer.json"
    spec = json.loads(file.read_bytes())
    change = _tokenizer_change(spec, rng)
    file.write_text(json.dumps(spec))
    return f"tokenizer.json: {change}"


def _tokenizer_change(spec: dict[str, Any], rng: np.random.Generator) -> str:
    vocab = spec["model"]["vocab"]
    word = _pick(rng, sorted(vocab))
    which = int(rng.integers(7))
    if which == 0:
        del vocab[word]
    elif which == 1:
        vocab[word] = _pick(rng, [0, 7, 10**9, -1, "x", None, 2.5])
    elif which == 2:
        del spec[_pick(rng, sorted(spec))]
    elif which == 3:
        spec[_pick(rng, sorted(spec))] = _pick(rng, [None, 1, [], {}, "x"])
    elif which == 4:
        spec["model"]["type"] = _pick(rng, ["BPE", "Unigram", "WordLevel", "None", 3])
    elif which == 5:
        vocab["new word"] = len(vocab)
    else:
        key = _pick(rng, sorted(spec["model"]))
        spec["model"][key] = _pick(rng, [None, -1, [], "", {}])
    return f"change {which} near {word!r}"


def unsigned_field(store: Path, rng: np.random.Generator) -> str:
    file = store / "manifest.json"
    manifest = json.loads(file.read_bytes())
    said = _change_field(manifest, rng)
    file.write_text(json.dumps(manifest))
    return said


WRONG = [
    None, True, -1, 0, 1, 2**31, 2**64, 10**30, 1.5, float("inf"), "", "x", "0" * 64, [], [1], {},
    {"a": 1}, [[]], [None], {"pad": "x"}, "../../etc/passwd",
]  # fmt: skip


def _change_field(manifest: dict[str, Any], rng: np.random.Generator) -> str:
    """Changes, removes or adds a value in a manifest, at any depth."""
    at: Any = manifest
    path = []
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        if not keys:
            return f"nothing at {path}"
        key = _pick(rng, keys)
        path.append(key)
        if not isinstance(at[key], dict | list) or rng.integers(3) == 0:
            break
        at = at[key]
    how = int(rng.integers(4))
    if how == 0:
        del at[key]
    elif how == 1 and isinstance(at, dict):
        new = _pick(rng, ["x", "../x", "/etc/passwd", "train/../../x", "\0", "train/tokens.npy/"])
        at[new] = at.pop(key)
        return f"{path} is called {new!r}"
    else:
        at[key] = _pick(rng, WRONG)
        return f"{path} is {at[key]!r}"
    return f"{path} removed"


def _sign(store: Path, manifest: dict[str, Any], *files: Path) -> None:
    for file in files:
        manifest["files"][str(file.relative_to(store))] = entry_of(file.read_bytes())
    manifest["digest"] = manifest_digest(manifest)
    (store / "manifest.json").write_text(json.dumps(manifest))


def signed_field(store: Path, rng: np.random.Generator) -> str:
    manifest = json.loads((store / "manifest.json").read_bytes())
    said = _change_field(manifest, rng)
    _sign(store, manifest)
    return said


def signed_file(store: Path, rng: np.random.Generator) -> str:
    """Damage to one file, with a manifest updated to match."""
    manifest = json.loads((store / "manifest.json").read_bytes())
    damage = _pick(rng, [header, pickled, retokenized, flip, truncate, append, zero, empty])
    before = {name: (store / name).read_bytes() for name in FILES}
    said = damage(store, rng)
    changed = [store / name for name in FILES if (store / name).read_bytes() != before[name]]
    if store / "tokenizer.json" in changed and rng.integers(2):
        entry = entry_of((store / "tokenizer.json").read_bytes())
        manifest["tokenizer_digest"] = entry["sha256"]
    _sign(store, manifest, *changed)
    return f"signed: {said}"


def signed_values(store: Path, rng: np.random.Generator) -> str:
    """Changes a number in an array."""
    manifest = json.loads((store / "manifest.json").read_bytes())
    file = _file(store, rng, [name for name in FILES if name.endswith(".npy")])
    values = np.load(file)
    values[int(rng.integers(len(values)))] = _pick(rng, [0, 1, 7, np.iinfo(values.dtype).max])
    np.save(file, values)
    _sign(store, manifest, file)
    return f"signed: another number in {file.name}"


UNSIGNED: list[Corruption] = [
    flip, truncate, delete, empty, append, swap, of_the_other_split, swap_splits, zero, overwrite,
    shift, dangling, linked_away, folder_instead, file_instead, garbage_manifest, pickled, header,
    retokenized, unsigned_field,
]  # fmt: skip
SIGNED: list[Corruption] = [signed_field, signed_field, signed_file, signed_values]


def corrupt(store: Path, number: int) -> tuple[str, bool]:
    """Applies corruption `number` to a folder: its description, and whether it is signed."""
    rng = np.random.default_rng(number)
    kinds = [*UNSIGNED, *SIGNED]
    kind = kinds[number % len(kinds)]  # all in turn
    return f"{kind.__name__}: {kind(store, rng)}", kind in SIGNED
