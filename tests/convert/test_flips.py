"""Damaged models: a thousand flipped bits and cut files, of which none is read as another model."""

import dataclasses
import random
import resource
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest
import safetensors.numpy
from exported import random_params
from pytorch_files import write_pytorch
from small import model_config
from tensorflow_bundle import write_google_folder

from bert_jax.convert import weights
from bert_jax.convert.sources import ReadModel, read_model
from bert_jax.errors import UserError
from bert_jax.publish.export import export
from bert_jax.publish.model_card import Card
from bert_jax.publish.weight_writer import WeightFormat

SHARDS = {"max_shard_size": "20KB"}
GROUPS, PER_GROUP = 10, 34  # of each of seven kinds: 2,380 in all
MOST_MEMORY = 256  # MiB; a flipped size asks for gigabytes

Choice = Callable[[Path], bool]


def export_folder(tokenizer, folder: Path, max_shard_size: str | None = None) -> None:
    config = dataclasses.replace(
        model_config(), vocab_size=tokenizer.vocab_size, pad_vocab_to_multiple_of=1
    )
    learned = ("mlm", "nsp", "sbo")
    card, form = Card(objectives=learned), WeightFormat(max_shard_size=max_shard_size)
    export(random_params(config, learned), config, tokenizer, folder, card=card, form=form)


def foreign_folder(tokenizer, folder: Path, max_shard_size: str | None = None) -> None:
    """As transformers writes it: without digests."""
    export_folder(tokenizer, folder, max_shard_size)
    (folder / "SHA256SUMS").unlink()
    (folder / "README.md").unlink()


def pytorch_folder(tokenizer, folder: Path, *, legacy: bool) -> None:
    """As older releases of transformers wrote it."""
    foreign_folder(tokenizer, folder)
    state = safetensors.numpy.load_file(folder / "model.safetensors")
    write_pytorch(folder, state, legacy=legacy, shards=1 + legacy)


def google_folder(tokenizer, folder: Path) -> None:
    config = dataclasses.replace(
        model_config(), vocab_size=tokenizer.vocab_size, pad_vocab_to_multiple_of=1
    )
    entries = [tokenizer.token(i) for i in range(tokenizer.vocab_size)]
    state = weights.to_transformers(random_params(config), config)
    write_google_folder(folder, config, state, entries)


def always(path: Path) -> bool:
    return True


def never(path: Path) -> bool:
    return False


def is_checkpoint(path: Path) -> bool:
    return ".ckpt" in path.name


def is_weights(path: Path) -> bool:
    return path.name.endswith((".bin", ".safetensors", ".index.json"))


def peak_memory() -> float:
    """Of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def damage(path: Path, draw: random.Random) -> str:
    """Flips a bit of a file or cuts it short; returns what was done."""
    content = bytearray(path.read_bytes())
    at = draw.randrange(len(content))
    if draw.random() < 0.3:
        path.write_bytes(content[:at])
        return f"{path.name} cut to {at} bytes"
    bit = draw.randrange(8)
    content[at] ^= 1 << bit
    path.write_bytes(content)
    return f"bit {bit} of byte {at} of {path.name}"


def read(folder: Path) -> ReadModel | str:
    """The model in a folder, or the error."""
    try:
        return read_model(str(folder))
    except UserError as error:
        return str(error)


def same(one: ReadModel, other: ReadModel) -> bool:
    equal = jax.tree.structure(one.params) == jax.tree.structure(other.params)
    equal = equal and all(jax.tree.leaves(jax.tree.map(np.array_equal, one.params, other.params)))
    return equal and one.config == other.config and one.tokenizer.json == other.tokenizer.json


@pytest.mark.slow
@pytest.mark.parametrize("group", range(GROUPS))
@pytest.mark.parametrize(
    ("write", "with_digests", "damaged"),
    [
        pytest.param(export_folder, always, always, id="export"),
        pytest.param(google_folder, is_checkpoint, always, id="google"),
        pytest.param(foreign_folder, never, always, id="foreign"),
        pytest.param(partial(export_folder, **SHARDS), always, is_weights, id="export-sharded"),
        pytest.param(partial(foreign_folder, **SHARDS), never, is_weights, id="foreign-sharded"),
        *(
            pytest.param(
                partial(pytorch_folder, legacy=legacy), never, is_weights, id=name,
                marks=pytest.mark.torch,
            )
            for name, legacy in (("pytorch", False), ("pytorch-legacy-sharded", True))
        ),
    ],
)  # fmt: skip
def test_no_damage_gives_another_model(
    group: int, write: Callable, with_digests: Choice, damaged: Choice, tokenizer, tmp_path
):
    """A file without a digest may hold other values after a flip; it is refused in one line, or is
    a model. Nothing is allocated because a file says that it has more than it has."""
    write(tokenizer, tmp_path / "whole")
    whole, draw = read_model(str(tmp_path / "whole")), random.Random(group)
    files = sorted(path.name for path in (tmp_path / "whole").iterdir() if damaged(path))
    refused, memory = 0, peak_memory()
    for _ in range(PER_GROUP):
        shutil.copytree(tmp_path / "whole", tmp_path / "copy", dirs_exist_ok=True)
        file = tmp_path / "copy" / draw.choice(files)
        done = damage(file, draw)
        found = read(tmp_path / "copy")
        if isinstance(found, str):
            refused += 1
            assert "\n" not in found, done
        else:
            assert not with_digests(file) or same(found, whole), done
    assert refused > PER_GROUP // 10
    assert peak_memory() < memory + MOST_MEMORY
