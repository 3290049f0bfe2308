"""`bert_jax.load` and what it gives: vectors, hidden states, filled masks."""

import dataclasses
import json
import shutil
from pathlib import Path

import golden_case as cases
import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import tokenizers
from flax import nnx
from small import COMPUTE, model_config

import bert_jax
from bert_jax import cli
from bert_jax.api.model import Fill, Model
from bert_jax.commands.fill import print_fills
from bert_jax.convert import weights
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.objectives.pretraining_model import declare, init_params
from bert_jax.publish.export import export
from bert_jax.publish.model_card import Card

TEXT = "the quick brown fox jumps over the lazy dog while seven wizards quietly brew a potion"
WORDS = TEXT.split()
TEXTS = [" ".join((WORDS * 3)[i : i + 1 + 5 * i % 37]) for i in range(12)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train([TEXT] * 5, 120)


@pytest.fixture(scope="module")
def folder(tokenizer, tmp_path_factory) -> Path:
    config = dataclasses.replace(model_config(), vocab_size=tokenizer.vocab_size)
    shapes = jax.eval_shape(lambda: init_params(config, COMPUTE, ("mlm", "nsp"), jax.random.key(0)))
    zeros = jax.tree.map(lambda x: np.zeros(x.shape, np.float32), shapes)
    tensors = weights.to_transformers(zeros, config)
    named = {name: cases.weight(name, tensor.shape) for name, tensor in tensors.items()}
    out = tmp_path_factory.mktemp("model") / "exported"
    export(weights.from_transformers(named, config), config, tokenizer, out, card=Card())
    return out


@pytest.fixture(scope="module")
def model(folder) -> Model:
    return bert_jax.load(folder)


@pytest.fixture
def copy(folder, tmp_path) -> Path:
    """The exported folder as another program would have written it, to be damaged."""
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "SHA256SUMS").unlink()
    return tmp_path


def ids_of(folder: Path, text: str) -> list[int]:
    """What the exported tokenizer.json says by itself, [CLS] and [SEP] included."""
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids


def reference(folder: Path, ids: list[int]) -> tuple[np.ndarray, nnx.Module]:
    """Hidden states [S, H] of one unpadded row, straight from the exported weights."""
    config = dataclasses.replace(
        model_config(), vocab_size=json.loads((folder / "config.json").read_text())["vocab_size"]
    )
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    params = jax.tree.map(jax.numpy.asarray, weights.from_transformers(tensors, config))
    module = nnx.merge(declare(config, COMPUTE, ("mlm", "nsp"))[0], params)
    row = np.array([ids], np.int32)
    positions = np.arange(len(ids), dtype=np.int32)[None]
    zeros = np.zeros_like(row)
    return np.asarray(module.encoder(row, zeros, zeros + 1, positions))[0], module


def test_hidden_states_are_those_of_each_text_alone(model, folder):
    got = model.hidden_states(TEXTS, batch_size=5)
    for text, hidden in zip(TEXTS, got, strict=True):
        ids = ids_of(folder, text)
        assert hidden.dtype == np.float32
        assert hidden.shape == (len(ids), model.config.hidden_size)
        if text in TEXTS[::5]:
            np.testing.assert_allclose(hidden, reference(folder, ids)[0], atol=1e-5)


def test_vectors_come_from_the_hidden_states(model, folder):
    hidden = model.hidden_states(TEXTS, batch_size=5)
    mean = model.encode(TEXTS, batch_size=7)
    cls = model.encode(TEXTS, pooling="cls")
    pooled = model.encode(TEXTS, pooling="pooled")
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    weight, bias = (tensors[f"bert.pooler.dense.{name}"] for name in ("weight", "bias"))
    for i, x in enumerate(hidden):
        np.testing.assert_allclose(mean[i], x.mean(0), atol=1e-5)
        np.testing.assert_allclose(cls[i], x[0], atol=1e-5)
        np.testing.assert_allclose(pooled[i], np.tanh(weight @ x[0] + bias), atol=1e-5)
    assert mean.dtype == np.float32


def test_shapes_of_no_text_one_text_and_an_empty_text(model):
    size = model.config.hidden_size
    assert model.encode([]).shape == (0, size)
    assert model.encode(TEXT).shape == (1, size)
    assert model.hidden_states([]) == []
    assert model.hidden_states("")[0].shape == (2, size)  # [CLS] [SEP]


def test_the_end_of_a_long_text_is_cut_off(model, folder):
    limit = model.config.max_position_embeddings
    long = " ".join(WORDS * 20)
    (hidden,) = model.hidden_states(long)
    ids = ids_of(folder, long)
    cut = [*ids[: limit - 1], ids[-1]]
    assert hidden.shape[0] == limit
    np.testing.assert_allclose(hidden, reference(folder, cut)[0], atol=1e-5)


def test_few_shapes_are_compiled(folder):
    model = bert_jax.load(folder)
    for n in range(1, 38):
        model.encode(" ".join((WORDS * 3)[:n]))
    assert model._vectors._cache_size() <= 3  # 16, 32 and the model's 40 positions


def test_masks_are_filled_as_the_head_says(model, folder):
    text = "the quick [MASK] fox jumps over the [MASK] dog"
    fills = model.fill_mask(text, top_k=4)
    ids = ids_of(folder, text)
    masks = [i for i, token in enumerate(ids) if token == model.tokenizer.special.mask]
    assert len(fills) == len(masks) == 2
    hidden, module = reference(folder, ids)
    table = module.encoder.embeddings.word[...]
    logits = np.asarray(module.mlm(hidden[None, masks], table))[0, :, : model.config.vocab_size]
    exponents = np.exp(logits.astype(np.float64))
    probabilities = exponents / exponents.sum(-1, keepdims=True)
    for row, fill in zip(probabilities, fills, strict=True):
        best = np.argsort(-row)[:4]
        assert [f.token for f in fill] == [model.tokenizer.token(i) for i in best]
        np.testing.assert_allclose([f.probability for f in fill], row[best], rtol=1e-4)


def test_what_fill_mask_cannot_do_is_said(model):
    with pytest.raises(UserError, match=r"no \[MASK\] in 'plain text'"):
        model.fill_mask("plain text")
    with pytest.raises(UserError, match="takes one text, not a list; call it for each"):
        model.fill_mask(["a [MASK]"])
    limit = model.config.max_position_embeddings
    long = "dog " * (limit - 3)
    assert len(model.fill_mask(f"{long}[MASK]")) == 1  # the last place there is
    assert len(model.fill_mask(f"a [MASK] {long * 2}")) == 1  # only what follows is cut off
    with pytest.raises(UserError, match=r"a \[MASK\] after the model's limit of 40"):
        model.fill_mask(f"{long} dog [MASK]")
    with pytest.raises(UserError, match="top_k=0"):
        model.fill_mask("[MASK]", top_k=0)


def test_arguments_that_mean_nothing_are_refused(model):
    with pytest.raises(UserError, match="pooling='sum'"):
        model.encode(TEXT, pooling="sum")
    for use in (model.encode, model.predict):
        with pytest.raises(UserError, match="batch_size=0; give 1 or more"):
            use(TEXT, batch_size=0)
    with pytest.raises(UserError, match="'bc': give the choices of a text as a list"):
        model.choose([("a", "bc")])
    with pytest.raises(UserError, match=r"^1 choice; give all texts the same number of them, 2 or"):
        model.choose([("a", ["b"])])
    with pytest.raises(UserError, match="not NoneType"):
        model.encode(["a", None])


def test_a_vocab_txt_is_enough(copy, model):
    (copy / "tokenizer.json").unlink()
    loaded = bert_jax.load(copy)
    texts = [TEXT.upper(), "seven [MASK]"]
    np.testing.assert_array_equal(loaded.encode(texts), model.encode(texts))


def test_bfloat16_weights_and_a_bare_encoder_are_read(copy, model):
    tensors = safetensors.numpy.load_file(copy / "model.safetensors")
    bare = {
        name.removeprefix("bert."): tensor.astype(ml_dtypes.bfloat16)
        for name, tensor in tensors.items()
        if name.startswith("bert.") and "pooler" not in name
    }
    safetensors.numpy.save_file(bare, copy / "model.safetensors", metadata={"format": "pt"})
    loaded = bert_jax.load(copy)
    np.testing.assert_allclose(loaded.encode(TEXT), model.encode(TEXT), atol=0.05)
    with pytest.raises(UserError, match="without its pooler"):
        loaded.encode(TEXT, pooling="pooled")
    with pytest.raises(UserError, match="without its masked-language-model head"):
        loaded.fill_mask("[MASK]")


def test_a_model_without_pooler_is_used_as_far_as_it_goes(folder, tokenizer, tmp_path, model):
    """What a run without sentence pairs exports, and transformers' BertForMaskedLM."""
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    kept = {n: t for n, t in tensors.items() if "pooler" not in n and "seq_relationship" not in n}
    config = dataclasses.replace(model_config(), vocab_size=tokenizer.vocab_size)
    params = weights.from_transformers(kept, config)
    assert params.keys() == {"encoder", "mlm"}
    card = Card(objectives=("mlm",))
    export(params, config, tokenizer, tmp_path / "out", card=card)
    loaded = bert_jax.load(tmp_path / "out")
    np.testing.assert_array_equal(loaded.encode(TEXT), model.encode(TEXT))
    assert loaded.fill_mask("the [MASK] fox") == model.fill_mask("the [MASK] fox")
    with pytest.raises(UserError, match="without its pooler"):
        loaded.encode(TEXT, pooling="pooled")


def drop(name):
    return lambda folder: (folder / name).unlink()


def write(name, text):
    return lambda folder: (folder / name).write_text(text)


def rename(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def shrink(folder):
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | {"vocab_size": 50}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (drop("config.json"), "config.json: missing"),
        (write("config.json", "{"), "config.json: not JSON"),
        (write("config.json", "[]"), "config.json: not a JSON object"),
        (drop("model.safetensors"), "model.safetensors: missing; give a folder"),
        (rename, "pytorch_model.bin: (needs PyTorch|cannot be read)"),
        (write("model.safetensors", "not weights at all"), "cannot be read"),
        (lambda f: (drop("tokenizer.json")(f), drop("vocab.txt")(f)), "neither tokenizer.json nor"),
        (shrink, "the tokenizer has"),
    ],
)
def test_a_damaged_folder_is_one_clear_line(copy, damage, message):
    damage(copy)
    with pytest.raises(UserError, match=message) as caught:
        bert_jax.load(copy)
    assert "\n" not in str(caught.value)


def set_config(**changes):
    def damage(folder):
        values = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(values | changes))

    return damage


def set_tensor(change, name="bert.encoder.layer.1.output.dense.weight"):
    def damage(folder):
        tensors = safetensors.numpy.load_file(folder / "model.safetensors")
        tensors[name] = change(tensors[name])
        safetensors.numpy.save_file(tensors, folder / "model.safetensors")

    return damage


def a_folder(name):
    def damage(folder):
        (folder / name).unlink()
        (folder / name).mkdir()

    return damage


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (set_config(hidden_dropout_prob="abc"), "config.json: hidden_dropout_prob='abc' should be"),
        (set_config(layer_norm_eps=None), "config.json: layer_norm_eps=None should be float"),
        (set_config(layer_norm_eps=float("nan")), "layer_norm_eps=nan should be above 0"),
        (set_config(hidden_act=["gelu"]), "hidden_act=.'gelu'. is not supported; valid: gelu"),
        (set_config(hidden_act={}), "hidden_act={} is not supported"),
        (set_config(num_attention_heads=0), "num_attention_heads=0 should be from 1 to 4096"),
        (set_config(num_attention_heads=5), "hidden_size=32 is not a multiple of num_attention"),
        (set_config(vocab_size=-1), "vocab_size=-1 should be from 1 to"),
        (set_config(num_hidden_layers=0), "num_hidden_layers=0 should be from 1 to 1000"),
        (set_config(num_hidden_layers=-1), "num_hidden_layers=-1 should be from 1 to 1000"),
        (set_config(num_hidden_layers=True), "num_hidden_layers=True should be int"),
        (set_config(hidden_size=10**9), "hidden_size=1000000000 should be from 1 to 131072"),
        (set_config(hidden_size=131072), "has shape .105, 32., config.json requires .105, 131072."),
        (set_config(hidden_size=[1] * 10**5), "hidden_size=.1, 1, .* should be int"),
        (set_config(model_type=["x" * 10**5]), "model_type=.* only 'bert'"),
        (set_config(position_embedding_type={"a": "\n"}), "position_embedding_type={'a': "),
        (write("config.json", "[" * 100_000), "config.json: nested too deeply"),
        (write("config.json", '{"vocab_size": ' + "9" * 5000 + "}"), "config.json: not JSON"),
        (write("config.json", "\ufeff{}"), "config.json: not JSON"),
        (lambda f: (f / "config.json").write_bytes(b"\xff{}"), "config.json: not JSON"),
        (a_folder("config.json"), "config.json: cannot be read .Is a directory"),
        (a_folder("model.safetensors"), "model.safetensors: cannot be read"),
        (set_tensor(lambda t: t.astype(np.int32)), "output.dense.weight has dtype int32"),
        (set_tensor(lambda t: t > 0), "output.dense.weight has dtype bool"),
        (set_tensor(lambda t: t * np.nan), "output.dense.weight contains NaN or infinite values"),
        (set_tensor(lambda t: t + np.inf), "output.dense.weight contains NaN or infinite values"),
    ],
)
def test_what_no_export_holds_is_one_clear_line(copy, damage, message):
    damage(copy)
    with pytest.raises(UserError, match=message) as caught:
        bert_jax.load(copy)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("value", ["maybe", 1, [], {}])
def test_a_strange_do_lower_case_is_one_clear_line(copy, value):
    (copy / "tokenizer.json").unlink()
    (copy / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": value}))
    with pytest.raises(UserError, match=r"do_lower_case=.* should be true or false"):
        bert_jax.load(copy)


def flip(name, place=-9):
    def damage(folder):
        data = bytearray((folder / name).read_bytes())
        data[place] ^= 1
        (folder / name).write_bytes(data)

    return damage


def add_tensor(folder):
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    tensors["classifier.weight"] = np.zeros((2, 2), np.float32)
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (flip("model.safetensors"), "model.safetensors: checksum differs from SHA256SUMS"),
        (add_tensor, "model.safetensors: checksum differs from SHA256SUMS"),
        (set_tensor(lambda t: t * np.float32(1.001)), "checksum differs from SHA256SUMS"),
        (set_config(initializer_range=0.01), "config.json: checksum differs from SHA256SUMS"),
        (flip("tokenizer.json", -1), "tokenizer.json: checksum differs from SHA256SUMS"),
        (
            lambda f: (drop("tokenizer.json")(f), flip("vocab.txt")(f)),
            "vocab.txt: checksum",
        ),
        (flip("SHA256SUMS", 80), "checksum differs from SHA256SUMS|SHA256SUMS: damaged"),
        (flip("SHA256SUMS", 76 + 68), "SHA256SUMS: does not list|SHA256SUMS: damaged"),
        (write("SHA256SUMS", ""), "SHA256SUMS: damaged"),
        (write("SHA256SUMS", f"{'0' * 64}  ../config.json\n"), "SHA256SUMS: damaged"),
        (a_folder("SHA256SUMS"), "SHA256SUMS: cannot be read"),
    ],
)
def test_what_changed_since_the_export_is_refused(folder, tmp_path, damage, message):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    bert_jax.load(tmp_path)
    damage(tmp_path)
    with pytest.raises(UserError, match=message) as caught:
        bert_jax.load(tmp_path)
    assert "\n" not in str(caught.value)


def test_numbers_too_large_to_compute_with_are_said(copy):
    set_tensor(lambda t: t + np.float32(3e38), "bert.embeddings.word_embeddings.weight")(copy)
    model = bert_jax.load(copy)
    for use in (model.encode, model.hidden_states, model.fill_mask):
        with pytest.raises(UserError, match="outputs NaN or infinite values"):
            use("the [MASK] fox")


def test_text_that_is_not_unicode_is_one_line(model):
    for use in (model.encode, model.hidden_states, model.fill_mask):
        with pytest.raises(UserError, match=r"udcff.*character 3 is not Unicode") as caught:
            use("a \udcff [MASK]")
        str(caught.value).encode()


def test_a_name_is_not_a_folder():
    with pytest.raises(UserError, match="bert-base-uncased: no such folder"):
        bert_jax.load("bert-base-uncased")


def test_fills_are_printed_in_a_table(folder, capsys):
    print_fills(folder, ["the [MASK] fox", "[MASK] and [MASK]"], top_k=2)
    printed = capsys.readouterr().out
    lines = [line.split() for line in printed.splitlines() if line.strip()]
    assert lines[0] == ["the", "[MASK]", "fox"]
    assert [len(line) for line in lines[1:3]] == [2, 2]
    assert lines[1][0].endswith("%")
    assert [line[:2] for line in lines[4:]] == [["mask", "1"], ["mask", "2"]]
    assert [len(line) for line in lines[4:]] == [6, 6]


@pytest.mark.parametrize(("masks", "top_k"), [(36, 5), (2, 100)])
def test_all_fills_are_printed_however_many(masks, top_k, folder, capsys):
    print_fills(folder, ["[MASK] " * masks], top_k)
    _, *lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [["mask", f"{i + 1}"] for i in range(masks)]
    assert all(line.count("%") == top_k for line in lines)


def test_a_model_that_is_no_numbers_fills_nothing(folder, tmp_path, capsys):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "SHA256SUMS").unlink()
    set_tensor(lambda t: t * np.nan)(tmp_path)
    assert cli.main(["fill", f"--model={tmp_path}", "the [MASK] fox"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert "contains NaN or infinite values" in line


def test_words_of_a_command_line_that_are_no_text_are_one_line(folder, capsys):
    assert cli.main(["fill", f"--model={folder}", "a \udcff [MASK]"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "is not Unicode text; give UTF-8" in line


def test_a_fill_is_a_plain_value():
    assert Fill("dog", 0.5) == Fill(token="dog", probability=0.5)
