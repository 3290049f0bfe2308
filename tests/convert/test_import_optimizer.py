"""`convert import --optimizer_state`: the moments and the step of google-research/bert."""

import os
import random
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from exported import random_params, tree_below
from small import model_config
from tensorflow_bundle import google_tensors, write_bundle, write_google_folder

from bert_jax import cli
from bert_jax.config.schema import ModelConfig
from bert_jax.convert import checksums, weights
from bert_jax.convert.google_bert import read_google_bert
from bert_jax.convert.tensorflow.checkpoint import TensorFlowCheckpoint
from bert_jax.errors import UserError
from bert_jax.exit_codes import DONE, FAILED
from bert_jax.training import optimizer_state

CONFIG = model_config()
ENTRIES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(94))]
STATE, PREFIX = "optimizer.safetensors", "bert_model.ckpt"
Tensors = Mapping[str, np.ndarray]


@pytest.fixture
def google(tmp_path: Path) -> Path:
    folder = tmp_path / "google"
    state = weights.to_transformers(random_params(CONFIG), CONFIG)
    write_google_folder(folder, CONFIG, state, ENTRIES, step=1_000_000)
    return folder


def run(source: Path, out: Path, *words: str) -> int:
    return cli.main(["convert", "import", f"--from={source}", f"--out={out}", *words])


def read_all(prefix: Path) -> Tensors:
    checkpoint = TensorFlowCheckpoint(prefix)
    return {name: checkpoint.read(name) for name in checkpoint.entries}


def as_google_has_it(out: Path, config: ModelConfig) -> Tensors:
    """The weights, moments and step of an imported folder."""
    state = safetensors.numpy.load_file(out / STATE)
    tensors = google_tensors(safetensors.numpy.load_file(out / "model.safetensors"))
    for moment, end in (("mu", "adam_m"), ("nu", "adam_v")):
        tree = tree_below(state, f"opt/1/{moment}")
        moments = google_tensors(weights.to_transformers(tree, config))
        tensors |= {f"{name}/{end}": tensor for name, tensor in moments.items()}
    return tensors | {"global_step": state["step"]}


def assert_same(found: Tensors, wanted: Tensors) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        np.testing.assert_array_equal(found[name], tensor, err_msg=name)


def test_moments_and_step_keep_every_bit(
    google: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert run(google, tmp_path / "out", "--optimizer_state") == DONE
    assert "the optimizer's moments and step 1,000,000" in capsys.readouterr().out
    assert_same(as_google_has_it(tmp_path / "out", CONFIG), read_all(google / PREFIX))
    with safetensors.safe_open(tmp_path / "out" / STATE, framework="numpy") as stream:
        assert stream.metadata()["optimizer"] == "bert_adamw"
    assert STATE in checksums.read_checksums(tmp_path / "out")


@pytest.mark.skipif("BERT_JAX_REAL_DATA" not in os.environ, reason="needs BERT_JAX_REAL_DATA")
def test_a_checkpoint_of_tensorflow_keeps_every_bit(tmp_path: Path) -> None:
    folder = Path(os.environ["BERT_JAX_REAL_DATA"]) / "checkpoints/tf1-tiny-bert"
    assert run(folder, tmp_path / "out", "--optimizer_state") == DONE
    wanted = read_all(folder / PREFIX)
    assert (len(wanted), int(wanted["global_step"])) == (139, 20)
    assert_same(as_google_has_it(tmp_path / "out", read_google_bert(folder).config), wanted)


def test_without_the_flag_they_are_left_out(google: Path, tmp_path: Path) -> None:
    assert run(google, tmp_path / "out", "--optimizer_state") == DONE
    assert run(google, tmp_path / "out") == DONE  # replaces it
    assert not (tmp_path / "out" / STATE).exists()


def test_a_flipped_bit_of_the_state_is_refused(google: Path, tmp_path: Path) -> None:
    """Without digests it may be another number, but is never a traceback."""
    assert run(google, tmp_path / "out", "--optimizer_state") == DONE
    file, draw = tmp_path / "out" / STATE, random.Random(0)
    whole = file.read_bytes()
    for digests in (True, False):
        refused = []
        for _ in range(50):
            damaged = bytearray(whole)
            # The header is read as JSON, so half of the bits are in it.
            end = len(whole) if draw.random() < 0.5 else 2000
            damaged[draw.randrange(end)] ^= 1 << draw.randrange(8)
            file.write_bytes(damaged[: draw.randrange(end)] if draw.random() < 0.3 else damaged)
            try:
                optimizer_state.read_state(tmp_path / "out")
            except UserError as error:
                refused.append(str(error))
        assert all(str(file) in line and "\n" not in line for line in refused)
        assert len(refused) == 50 if digests else len(refused) > 10
        (tmp_path / "out/SHA256SUMS").unlink(missing_ok=True)


def changed(change: Callable[[dict], dict]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        write_bundle(folder / PREFIX, change(dict(read_all(folder / PREFIX))))

    return damage


def as_released(tensors: dict) -> dict:
    return {name: tensor for name, tensor in tensors.items() if "/adam_" not in name}


BIAS = "bert/pooler/dense/bias/adam_v"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (changed(as_released), "/adam_m; released checkpoints have no moments"),
        (changed(lambda t: {k: v for k, v in t.items() if k != BIAS}), f"has no {BIAS}; released"),
        (changed(lambda t: t | {BIAS: t[BIAS][1:]}), f"the shape of {BIAS} is not its"),
        (
            changed(lambda t: {k: v for k, v in t.items() if k != "global_step"}),
            "the checkpoint has no global_step",
        ),
        (changed(lambda t: t | {"global_step": np.array(2**40)}), "global_step is 1099511627776"),
        (changed(lambda t: t | {"global_step": np.array(-1)}), "global_step is -1"),
        (lambda folder: run(folder, folder.parent / "model"), ""),
    ],
)
def test_a_checkpoint_without_a_part_of_them_is_one_line(
    damage: Callable, message: str, google: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    damage(google)
    source = google if message else google.parent / "model"  # a folder of transformers
    capsys.readouterr()
    assert run(source, tmp_path / "out", "--optimizer_state") == FAILED
    line = capsys.readouterr().err
    assert (message or "--optimizer_state takes the moments of a TensorFlow checkpoint") in line
    assert line.count("\n") == 1
    assert not (tmp_path / "out").exists()


def place_of(module: object, name: str) -> object:
    """The parameter of a PyTorch model that a tensor of TensorFlow is for.

    The rule of `load_tf_weights_in_bert` in transformers 4.57, which 5 no longer has: a part of the
    name is an attribute, `layer_3` the fourth of a list, and five parts have names of their own.
    """
    own = {"kernel": "weight", "gamma": "weight", "beta": "bias"}
    own |= {"output_weights": "weight", "output_bias": "bias"}
    for part in name.split("/"):
        stem, _, number = part.rpartition("_")
        if number.isdigit():
            module = getattr(module, stem)[int(number)]
        else:
            module = getattr(module, own.get(part, part))
    return module.weight if name.endswith("_embeddings") else module


@pytest.mark.torch
@pytest.mark.parametrize("real", [False, True])
def test_transformers_loads_the_weights_that_it_would_convert_itself(
    real: bool, google: Path, tmp_path: Path
) -> None:
    import torch
    from transformers import BertConfig, BertForPreTraining

    if real and "BERT_JAX_REAL_DATA" not in os.environ:
        pytest.skip("needs BERT_JAX_REAL_DATA")
    if real:
        google = Path(os.environ["BERT_JAX_REAL_DATA"]) / "checkpoints/tf1-tiny-bert"
    assert run(google, tmp_path / "out", "--optimizer_state") == DONE
    converted = BertForPreTraining(BertConfig.from_json_file(google / "bert_config.json"))
    for name, tensor in read_all(google / PREFIX).items():
        if not re.search("adam_[mv]$|global_step", name):
            tensor = tensor.T if name.endswith("/kernel") else tensor
            place_of(converted, name).data = torch.tensor(tensor)
    loaded, about = BertForPreTraining.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(about.values())
    state, wanted = loaded.state_dict(), converted.state_dict()
    assert state.keys() == wanted.keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in wanted.items())
