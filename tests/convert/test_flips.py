"""Damaged models: a thousand flipped bits and cut files, of which none is read as another model."""

import dataclasses
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest
from exported import random_params
from small import model_config
from tensorflow_bundle import write_google_folder

from bert_jax.convert import weights
from bert_jax.convert.publish.export import export
from bert_jax.convert.publish.model_card import Card
from bert_jax.convert.sources import ReadModel, read_model
from bert_jax.errors import UserError

GROUPS, PER_GROUP = 10, 34  # of each of three kinds: 1,020 in all


def export_folder(tokenizer, folder: Path) -> None:
    config = dataclasses.replace(
        model_config(), vocab_size=tokenizer.vocab_size, pad_vocab_to_multiple_of=1
    )
    learned = ("mlm", "nsp", "sbo")
    card = Card(objectives=learned)
    export(random_params(config, learned), config, tokenizer, folder, card=card)


def foreign_folder(tokenizer, folder: Path) -> None:
    """As transformers writes it: without digests."""
    export_folder(tokenizer, folder)
    (folder / "SHA256SUMS").unlink()
    (folder / "README.md").unlink()


def google_folder(tokenizer, folder: Path) -> None:
    config = dataclasses.replace(
        model_config(), vocab_size=tokenizer.vocab_size, pad_vocab_to_multiple_of=1
    )
    entries = [tokenizer.token(i) for i in range(tokenizer.vocab_size)]
    state = weights.to_transformers(random_params(config), config)
    write_google_folder(folder, config, state, entries)


def is_checkpoint(path: Path) -> bool:
    return ".ckpt" in path.name


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
    ("write", "with_digests"),
    [
        (export_folder, lambda path: True),
        (google_folder, is_checkpoint),
        (foreign_folder, lambda path: False),
    ],
    ids=["export", "google", "foreign"],
)
def test_no_damage_gives_another_model(
    group: int, write: Callable, with_digests: Callable[[Path], bool], tokenizer, tmp_path
):
    """A file without a digest may hold other values after a flip; it is refused in one line, or is
    a model."""
    write(tokenizer, tmp_path / "whole")
    whole, draw = read_model(str(tmp_path / "whole")), random.Random(group)
    files = sorted(path.name for path in (tmp_path / "whole").iterdir())
    refused = 0
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
