"""heads.safetensors: the heads for which a model's class in transformers has no place."""

import dataclasses
import json
import re
from pathlib import Path

import jax
import numpy as np
import pytest
import safetensors.numpy
from corpus import small_config, small_store
from exported import random_params
from layout_models import PREFIXES, layout_config
from small import COMPUTE

import bert_jax
from bert_jax import cli
from bert_jax.checkpoint.fingerprint import by_path
from bert_jax.config.schema import ModelConfig
from bert_jax.convert.sources import read_model
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.exit_codes import DONE, FAILED
from bert_jax.objectives.known_objectives import OBJECTIVES, chosen
from bert_jax.objectives.pretraining_model import declare
from bert_jax.publish.export import export
from bert_jax.publish.model_card import Card
from bert_jax.training.initial import find_initial
from bert_jax.training.store_data import StoreData
from bert_jax.workdir.layout import Workdir

# The heads that end there: the class has the others.
KEPT = {
    "bert": (("mlm", "sbo"), "span-boundary"),
    "bert with pairs": (("mlm", "nsp", "sbo"), "span-boundary"),
    "roberta": (("mlm", "sbo"), "span-boundary"),
    "distilbert": (("mlm", "sop", "sbo"), "sentence-order and span-boundary"),
    "roformer": (("mlm", "nsp"), "next-sentence"),
    "roberta-prelayernorm": (("mlm", "sop", "sbo"), "sentence-order and span-boundary"),
    "albert": (("mlm", "sop", "sbo"), "span-boundary"),
    "albert with a pooler": (("sop",), "sentence-order"),
    "modernbert": (("mlm", "nsp", "sbo"), "next-sentence and span-boundary"),
    "electra": (("mlm", "sop", "sbo"), "sentence-order and span-boundary"),
    "bert with replaced tokens": (("rtd",), "replaced-token"),
    "roberta-prelayernorm with a pooler": (("nsp",), "next-sentence"),
}


def write(out: Path, name: str, tokenizer) -> tuple[ModelConfig, dict]:
    """Exports a model with these heads."""
    learned, _ = KEPT[name]
    config = layout_config(name.partition(" ")[0], vocab_size=tokenizer.vocab_size)
    params = random_params(config, learned)
    export(params, config, tokenizer, out, card=Card(objectives=learned))
    return config, params


@pytest.mark.parametrize("name", KEPT)
def test_every_head_is_read_back(name, tokenizer, tmp_path):
    _, params = write(tmp_path / "out", name, tokenizer)
    files = {p.name: safetensors.numpy.load_file(p) for p in tmp_path.glob("out/*.safetensors")}
    endings = {
        "bert with pairs": "ForPreTraining", "albert": "ForPreTraining",
        "roberta-prelayernorm with a pooler": "Model", "albert with a pooler": "Model",
        "bert with replaced tokens": "Model",
    }  # fmt: skip
    ending = endings.get(name, "ForMaskedLM")
    values = json.loads((tmp_path / "out/config.json").read_text())
    assert values["architectures"] == [f"{PREFIXES[name.partition(' ')[0]]}{ending}"]
    in_side_file = " ".join(files["heads.safetensors"])
    pair = "sop_classifier" if name.startswith("albert") else "seq_relationship"
    assert (pair in in_side_file) == ("sentence" in KEPT[name][1])
    assert ("pooler" in in_side_file) == ("sentence" in KEPT[name][1] and ending != "Model")
    assert "heads.safetensors" in (tmp_path / "out/SHA256SUMS").read_text()
    command = ["convert", "import", f"--from={tmp_path / 'out'}", f"--out={tmp_path / 'again'}"]
    assert cli.main(command) == DONE
    for file, tensors in files.items():
        again = safetensors.numpy.load_file(tmp_path / "again" / file)
        assert again.keys() == tensors.keys()
        for tensor, values in tensors.items():
            np.testing.assert_array_equal(again[tensor], values, err_msg=tensor)
    read = read_model(str(tmp_path / "again"))
    assert jax.tree.structure(read.params) == jax.tree.structure(params)
    jax.tree.map(np.testing.assert_array_equal, read.params, params)


def test_verify_compares_them(tokenizer, tmp_path, capsys):
    for folder in ("one", "other"):
        write(tmp_path / folder, "distilbert", tokenizer)
    words = ["convert", "verify", *(str(tmp_path / folder) for folder in ("one", "other"))]
    assert cli.main(words) == DONE
    said = capsys.readouterr().out
    for part in ("pooler", "next-sentence or sentence-order head", "span-boundary head"):
        assert f" 0  {part}\n" in said
    heads = tmp_path / "other/heads.safetensors"
    tensors = safetensors.numpy.load_file(heads)
    safetensors.numpy.save_file(
        tensors | {"cls.span_boundary.bias": tensors["cls.span_boundary.bias"] + 1}, heads
    )
    (tmp_path / "other/SHA256SUMS").unlink()
    assert cli.main(words) == FAILED
    assert "differs in the span-boundary head: " in capsys.readouterr().out


def test_a_run_starts_from_them(tmp_path):
    store = small_store(tmp_path / "store")
    data = {"data.masking": "span", "data.span_boundary": True}
    changes = {**data, "model.norm_position": "pre", "init": str(tmp_path / "out")}
    config = small_config(store).replace(changes)
    learned = chosen(config.data)
    assert learned == ("mlm", "nsp", "sbo")
    model = dataclasses.replace(config.model, pad_vocab_to_multiple_of=1)
    params, tokenizer = random_params(model, learned), Tokenizer.load(store.tokenizer_path)
    export(params, model, tokenizer, tmp_path / "out", card=Card(objectives=learned))
    initial = find_initial(config, Workdir.open(tmp_path / "run"), StoreData(store))
    found, expected = initial.read().leaves, by_path({"params": params})
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def add(file: Path) -> None:
    tensors = safetensors.numpy.load_file(file)
    word = "distilbert.embeddings.word_embeddings.weight"
    safetensors.numpy.save_file(tensors | {word: np.zeros((2, 2), np.float32)}, file)
    (file.parent / "SHA256SUMS").unlink()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (flip, "heads.safetensors: checksum differs from SHA256SUMS"),
        (lambda file: file.unlink(), "heads.safetensors: cannot be read"),
        (add, r"heads.safetensors: distilbert\.embeddings\.word_embeddings\.weight is also in"),
    ],
)
def test_a_damaged_file_is_one_line(damage, message, tokenizer, tmp_path):
    write(tmp_path / "out", "distilbert", tokenizer)
    damage(tmp_path / "out/heads.safetensors")
    with pytest.raises(UserError, match=message) as error:
        bert_jax.load(tmp_path / "out")
    assert "\n" not in str(error.value)


def test_a_later_export_without_such_heads_leaves_none(tokenizer, tmp_path):
    write(tmp_path / "out", "bert", tokenizer)
    config = layout_config("bert", vocab_size=tokenizer.vocab_size)
    params = random_params(config)
    export(params, config, tokenizer, tmp_path / "out", card=Card())
    assert not (tmp_path / "out/heads.safetensors").exists()
    assert "Other heads" not in (tmp_path / "out/README.md").read_text()


@pytest.mark.torch
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", KEPT)
def test_the_lines_in_the_card_compute_our_logits(name, tokenizer, tmp_path, monkeypatch):
    """They are executed as they are, in the folder that they name."""
    config, params = write(tmp_path / "path/to/this/folder", name, tokenizer)
    card = (tmp_path / "path/to/this/folder/README.md").read_text(encoding="utf-8")
    (title,) = re.findall(r"has no place for the (.*?) heads?:", card)
    learned, titles = KEPT[name]
    assert title == titles
    monkeypatch.chdir(tmp_path)
    made: dict = {}
    for code in re.findall(r"```python\n(.*?)```", card, re.DOTALL):
        exec(code, made)
    inputs = {key: value.numpy() for key, value in made["inputs"].items()}
    with jax.default_matmul_precision("highest"):
        ours = model_of(config, learned, params)(batch_of(inputs))
    variables = {
        "sbo": "span_logits", "nsp": "logits", "sop": "logits", "rtd": "replaced_logits",
    }  # fmt: skip
    compared = [o for o in learned if OBJECTIVES[o].head_title in titles.split(" and ")]
    assert len(compared) == len(titles.split(" and "))
    for objective in compared:
        wanted = made[variables[objective]].numpy()
        logits = np.asarray(ours[objective])[0]
        tolerance = 1e-5 * max(1.0, float(np.abs(wanted).max()))
        np.testing.assert_allclose(logits, wanted, rtol=0, atol=tolerance)


def model_of(config: ModelConfig, learned: tuple[str, ...], params: dict):
    from flax import nnx

    graph, _ = declare(config, COMPUTE, learned)
    return nnx.merge(graph, jax.tree.map(jax.numpy.asarray, params))


def batch_of(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """One row of ours, with the span of the card's lines: between tokens 2 and 5."""
    ids = inputs["input_ids"].astype(np.int32)
    offsets = np.arange(2, dtype=np.int32)[None]
    return {
        "input_ids": ids,
        "token_type_ids": inputs.get("token_type_ids", np.zeros_like(ids)).astype(np.int32),
        "example_ids": np.ones_like(ids),
        "position_ids": np.arange(ids.shape[1], dtype=np.int32)[None],
        "masked_positions": 3 + offsets,
        "cls_positions": np.zeros((1, 1), np.int32),
        "span_left": np.full_like(offsets, 2),
        "span_right": np.full_like(offsets, 5),
        "span_offsets": offsets,
    }
