"""Files and keys of folders of others: each has its entry in a table, or is named and refused."""

import json
import logging
import re
import runpy
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from exported import random_params
from framed import framed
from hub_server import Hub, serve, use_endpoint
from small import model_config
from tensorflow_bundle import google_tensors, write_bundle, write_google_folder

import bert_jax
from bert_jax import cli
from bert_jax.convert import weights
from bert_jax.convert.folders.file_names import FILES
from bert_jax.convert.folders.model_keys import CONFIG_KEYS
from bert_jax.convert.folders.tokenizer_keys import TOKENIZER_KEYS
from bert_jax.convert.hf_config import from_config_json, to_config_json
from bert_jax.convert.layouts.known_layouts import BY_TYPE
from bert_jax.convert.safetensors_file import read_tensors
from bert_jax.data_pipeline.folders.table import NO_EFFECT, REFUSED, find_entry
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.exit_codes import DONE, FAILED
from bert_jax.publish.export import export
from bert_jax.publish.model_card import Card

DOCS = Path(__file__).resolve().parents[2] / "docs"
CONFIG = model_config()
ENTRIES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(94))]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("model") / "plain"
    export(random_params(CONFIG), CONFIG, Tokenizer.from_vocab(ENTRIES), out, card=Card())
    (out / "SHA256SUMS").unlink()
    return out


@pytest.fixture
def folder(plain: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(plain, tmp_path / "saved"))


def test_the_page_is_that_of_the_tables():
    script = DOCS / "make_folders.py"
    made = runpy.run_path(str(script))["page"]()
    assert made == (DOCS / "folders.md").read_text("utf-8"), f"run: python {script}"


def test_a_name_has_one_entry_in_a_table():
    for entries in (FILES, CONFIG_KEYS, TOKENIZER_KEYS):
        names = [name for entry in entries for name in entry.names]
        assert sorted(names) == sorted(set(names))
        for entry in entries:
            for name in entry.names:
                if not re.search(r"[*?\[]", name):
                    assert find_entry(name, entries) in (entry, None) or "." in name, name


# What transformers 2.11 to 5 write with a model that was trained by their Trainer, and repositories
# on the hub besides.
WITHOUT_EFFECT = [
    "generation_config.json", "training_args.bin", "trainer_state.json", "all_results.json",
    "eval_results.json", "optimizer.pt", "scheduler.pt", "rng_state_0.pth", "tf_model.h5",
    "flax_model.msgpack", "rust_model.ot", "model.onnx", ".gitattributes", "LICENSE", "notes.txt",
    "modeling_own.py", "data_config.json", "onnx/config.json", "openvino/config.json",
    "checkpoint-500/config.json", "runs/events.out.tfevents.1", ".cache/x.json", "extra/readme.md",
]  # fmt: skip


def test_files_without_effect_change_nothing(folder, plain):
    for name in WITHOUT_EFFECT:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"{}")
    assert bert_jax.load(folder).config == bert_jax.load(plain).config


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("adapter_config.json", "an adapter changes the weights: merge it"),
        ("config_setfit.json", "a classifier of SetFit"),
        ("own_settings.json", "not a file that bert-jax knows; move it away"),
        ("2_Dense/config.json", "looks like a part of the model, but no modules.json"),
        ("own/config.json", "looks like a part of the model, but no modules.json"),
        ("quantize_config.json", "quantized weights"),
    ],
)
def test_a_file_whose_meaning_would_be_lost_is_one_line(name, message, folder, tmp_path, capsys):
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"{}")
    with pytest.raises(UserError, match=message):
        bert_jax.load(folder)
    assert cli.main(["convert", "import", f"--from={folder}", f"--out={tmp_path}/out"]) == FAILED
    line = capsys.readouterr().err
    assert message in line
    assert str(name).partition("/")[0] in line
    assert line.count("\n") == 1


REFUSED_KEYS = {
    "is_decoder": True, "add_cross_attention": True, "is_encoder_decoder": True,
    "pruned_heads": {"0": [1]}, "quantization_config": {"bits": 4}, "auto_map": {"AutoModel": "x"},
    "per_layer_config": {"0": {}}, "adapters": {"a": 1}, "num_key_value_heads": 1,
}  # fmt: skip


@pytest.mark.parametrize("key", REFUSED_KEYS)
def test_a_key_whose_meaning_would_be_lost_is_one_line(key):
    values = to_config_json(CONFIG, pad_token_id=0) | {key: REFUSED_KEYS[key]}
    with pytest.raises(UserError, match=rf"^config.json: {key}=[^\n]*$"):
        from_config_json(values, "config.json")


def test_as_many_key_heads_as_heads_share_nothing():
    values = to_config_json(CONFIG, pad_token_id=0)
    found = from_config_json(values | {"num_key_value_heads": values["num_attention_heads"]}, "c")
    assert found == from_config_json(values, "c")


def test_refused_keys_with_their_usual_values_and_keys_without_effect_are_silent(
    caplog, monkeypatch
):
    usual = {n: e.unless[0] for e in CONFIG_KEYS if e.use == REFUSED for n in e.names}
    without = {n: 1 for e in CONFIG_KEYS if e.use == NO_EFFECT for n in e.names}
    values = usual | without | to_config_json(CONFIG, pad_token_id=0)
    monkeypatch.setattr(logging.getLogger("bert_jax"), "propagate", True)
    with caplog.at_level(logging.INFO, "bert_jax"):
        found = from_config_json(values, "usual.json")
        assert not caplog.records
        from_config_json(values | {"own_scale": 2, "x\ny": 3}, "unusual.json")
    messages = {record.getMessage() for record in caplog.records}
    assert messages == {r"unusual.json: ignored unknown keys: own_scale, x\ny"}
    assert found == from_config_json(to_config_json(CONFIG, pad_token_id=0), "config.json")


@pytest.mark.torch
def test_keys_that_transformers_writes_are_in_the_table():
    from transformers import AutoConfig

    for kind in BY_TYPE:
        for key in AutoConfig.for_model(kind).to_dict():
            assert find_entry(key, CONFIG_KEYS), (kind, key)


@pytest.mark.torch
def test_activations_are_those_of_transformers():
    import torch
    from transformers.activations import ACT2FN

    from bert_jax.ops.gelu import gelu

    x = np.linspace(-6, 6, 1001, dtype=np.float32)
    named = [name for name in ACT2FN if "gelu" in name]
    refused = []
    for name in named:
        values = to_config_json(CONFIG, pad_token_id=0) | {"hidden_act": name}
        try:
            act = from_config_json(values, "config.json").hidden_act
        except UserError:
            refused.append(name)
            continue
        theirs = ACT2FN[name](torch.from_numpy(x)).numpy()
        np.testing.assert_allclose(
            np.asarray(gelu(x, act == "gelu_tanh")), theirs, atol=2e-6, rtol=0
        )
    assert sorted(refused) == ["gelu_10", "quick_gelu"]


# Checkpoints with the slots of other optimizers ---------------------------------------------------


@pytest.fixture(scope="module")
def state() -> dict[str, np.ndarray]:
    return weights.to_transformers(random_params(CONFIG), CONFIG)


SLOTS: dict[str, Callable[[str], tuple[str, ...]]] = {
    "Own": lambda n: (f"{n}/AdamWeightDecayOptimizer", f"{n}/AdamWeightDecayOptimizer_1"),
    "Adam": lambda n: (f"{n}/Adam", f"{n}/Adam_1"),
    "lamb": lambda n: (f"{n}/lamb_m", f"{n}/lamb_v"),
    "scope": lambda n: (f"training/LAMB/{n}/m",),
}  # fmt: skip


@pytest.mark.parametrize("kind", SLOTS)
def test_slots_of_another_optimizer_are_left_out_and_counted(kind, state, tmp_path, capsys):
    source = tmp_path / "google"
    write_google_folder(source, CONFIG, state, ENTRIES)
    tensors = google_tensors(state)
    numbers = {"beta1_power": 0.9, "loss_scale": 65536.0, "training/good_steps": 7}
    more = {name: np.array(value, np.float32) for name, value in numbers.items()}
    slots = {slot: x for name, x in tensors.items() for slot in SLOTS[kind](name)}
    for file in source.glob("bert_model.ckpt*"):
        file.unlink()
    write_bundle(source / "bert_model.ckpt", tensors | slots | more | {"global_step": np.array(3)})
    assert cli.main(["convert", "import", f"--from={source}", f"--out={tmp_path}/out"]) == DONE
    printed = capsys.readouterr().out
    assert f"left out: {len(slots) + 3:,} tensors of an optimizer (" in printed
    assert "no entry has a capital letter" in printed  # which casing was taken
    stored = safetensors.numpy.load_file(tmp_path / "out/model.safetensors")
    assert stored.keys() == state.keys()
    for name, tensor in state.items():
        np.testing.assert_array_equal(stored[name], tensor)
    again = ["convert", "import", f"--from={source}", f"--out={tmp_path}/x", "--optimizer_state"]
    assert cli.main(again) == FAILED
    assert "of another optimizer than google-research/bert's" in capsys.readouterr().err


def test_a_checkpoint_of_objects_is_one_line(state, tmp_path, capsys):
    source = tmp_path / "google"
    write_google_folder(source, CONFIG, state, ENTRIES)
    graph = {"_CHECKPOINTABLE_OBJECT_GRAPH": np.zeros(3, np.int32)}
    write_bundle(source / "bert_model.ckpt", graph)
    assert cli.main(["convert", "import", f"--from={source}", f"--out={tmp_path}/out"]) == FAILED
    line = capsys.readouterr().err
    assert "object-based checkpoint of TensorFlow 2" in line
    assert line.count("\n") == 1


# Names of the hub where a folder is expected ------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["fill", "--model=org/bert", "a [MASK]"],
        ["embed", "--model=org/bert", "--input=lines.txt", "--out=v.npy"],
        ["convert", "import", "--from=org/bert", "--out=out"],
        ["convert", "verify", "org/bert", "org/bert"],
        ["data", "build", "--source=lines:lines.txt", "--tokenizer=org/bert", "--out=store"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_the_name_in_the_message_works(words, folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("lines.txt").write_text("w1 w2\n" * 3)
    assert cli.main(words) == FAILED
    line = capsys.readouterr().err
    assert line.count("\n") == line.count("did you mean hf:org/bert, a model on the") == 1
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    with serve(Hub({"org/bert": {"main": files}})) as server:
        use_endpoint(monkeypatch, server.endpoint)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", f"{tmp_path}/cache")
        assert cli.main([word.replace("org/bert", "hf:org/bert") for word in words]) == DONE


def test_a_path_that_is_no_name_has_no_such_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    for path in ("runs/missing", str(tmp_path / "missing"), "a/b/c"):
        with pytest.raises(UserError, match="no such folder") as error:
            bert_jax.load(path)
        assert "hf:" not in str(error.value)


def test_a_file_in_place_of_a_folder_is_said_to_be_one(folder):
    for name in ("model.safetensors", "tokenizer.json"):
        with pytest.raises(UserError, match=rf"{name}: a file; give the folder of a model"):
            bert_jax.load(folder / name)
    (folder / "model.zip").write_bytes(b"")
    with pytest.raises(UserError, match=r"model.zip: a file; import it first: bert-jax convert"):
        bert_jax.load(folder / "model.zip")


def test_a_token_store_in_place_of_a_model_is_said_to_be_one(tmp_path, capsys):
    (tmp_path / "store/held_out").mkdir(parents=True)
    (tmp_path / "store/manifest.json").write_text("{}")
    words = ["convert", "import", f"--from={tmp_path}/store", f"--out={tmp_path}/out"]
    assert cli.main(words) == FAILED
    assert f"{tmp_path}/store: a token store, which has no model; train" in capsys.readouterr().err


def test_a_model_whose_tokenizer_frames_no_text_is_not_imported(folder, tmp_path, capsys):
    """`AutoTokenizer` would give the model other ids."""
    (folder / "tokenizer.json").write_bytes(framed(Tokenizer.from_vocab(ENTRIES)).json)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    command = ["convert", "import", f"--from={folder}", f"--out={tmp_path / 'out'}"]
    assert cli.main(command) == FAILED
    assert "its post_processor does not read a text as" in capsys.readouterr().err


def test_float64_is_said_to_be_rounded(folder, state, tmp_path, capsys):
    wide = {name: tensor.astype(np.float64) + 1e-12 for name, tensor in state.items()}
    safetensors.numpy.save_file(wide, folder / "model.safetensors")
    found = read_tensors(folder / "model.safetensors", "")
    for name, tensor in wide.items():
        np.testing.assert_array_equal(found[name], tensor)
    assert cli.main(["convert", "import", f"--from={folder}", f"--out={tmp_path}/out"]) == DONE
    lines = capsys.readouterr().out.splitlines()
    assert f"{folder}: rounded from float64 to float32: {len(wide)} tensors" in lines
    for name, tensor in safetensors.numpy.load_file(tmp_path / "out/model.safetensors").items():
        np.testing.assert_array_equal(tensor, wide[name].astype(np.float32))
