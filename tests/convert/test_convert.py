"""Names and shapes both ways, the exported folder, and what transformers makes of it."""

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import resource
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest
import safetensors
from etils import epath
from exported import (
    PAIRS,
    TEXTS,
    base_config,
    blocks,
    large_config,
    leaves,
    make_run,
    random_params,
)
from golden_case import CASES
from small import COMPUTE, model_config

import bert_jax
from bert_jax import cli
from bert_jax.commands import fill
from bert_jax.convert import weights
from bert_jax.convert.hf_config import from_config_json, to_config_json
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import StorageError, UserError
from bert_jax.exit_codes import STORAGE
from bert_jax.objectives.pretraining_model import init_params
from bert_jax.publish.export import export, run_export
from bert_jax.publish.model_card import Card
from bert_jax.runtime.console import console
from bert_jax.storage import atomic


@pytest.mark.parametrize("learned", [PAIRS, ("mlm",)])
def test_there_and_back_gives_the_same_parameters(learned):
    config = model_config()
    params = random_params(config, learned)
    noise = np.random.default_rng(0)
    params = jax.tree.map(lambda x: noise.normal(size=x.shape).astype(np.float32), params)
    back = weights.from_transformers(weights.to_transformers(params, config), config)
    before, after = leaves(params), leaves(back)
    assert before.keys() == after.keys()
    for path, leaf in before.items():
        padded = path in {("encoder", "embeddings", "word"), ("mlm", "bias")}
        rows = config.vocab_size if padded else len(leaf)
        np.testing.assert_array_equal(after[path][:rows], leaf[:rows])
        assert not after[path][rows:].any()


def test_the_table_covers_every_parameter_once():
    config = model_config()
    params = random_params(config)
    counts = jax.tree.map(lambda x: np.zeros(x.shape, np.int32), params)
    for slot in weights.slots(config, weights.groups_in(params)):
        leaf = counts
        for key in slot.ours:
            leaf = leaf[key]
        leaf[slot.index] += 1
    for path, count in leaves(counts).items():
        rows = config.vocab_size if count.shape[0] == config.padded_vocab_size else None
        assert (count[:rows] == 1).all(), path


@pytest.mark.parametrize(
    ("config", "wanted"),
    [(base_config(), 110_106_428), (large_config(), 336_226_108)],
    ids=["base", "large"],
)
def test_as_many_parameters_as_the_original(config, wanted):
    shapes = jax.eval_shape(lambda: init_params(config, COMPUTE, PAIRS, jax.random.key(0)))
    # Of the vocabulary's leaves, only the real rows count.
    added = (config.padded_vocab_size - config.vocab_size) * (config.hidden_size + 1)
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) - added == wanted


def test_older_names_and_other_heads_are_understood():
    config = model_config()
    tensors = weights.to_transformers(random_params(config), config)
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("Norm.bias", "Norm.beta"): t
        for name, t in tensors.items()
    }
    old["bert.embeddings.position_ids"] = np.arange(config.max_position_embeddings)[None]
    old["cls.predictions.decoder.weight"] = old["bert.embeddings.word_embeddings.weight"]
    old["classifier.weight"] = np.zeros((3, config.hidden_size))
    same = weights.to_transformers(weights.from_transformers(old, config), config)
    assert all((same[name] == tensor).all() for name, tensor in tensors.items())


def test_a_bare_encoder_is_read_without_heads():
    config = model_config()
    tensors = weights.to_transformers(random_params(config), config)
    bare = {
        name.removeprefix("bert."): tensor
        for name, tensor in tensors.items()
        if name.startswith("bert.") and "pooler" not in name
    }
    params = weights.from_transformers(bare, config)
    assert weights.present(bare, config) == {"encoder"}
    got = weights.to_transformers(params, config)
    assert {name.removeprefix("bert.") for name in got} == bare.keys()
    name = "bert.encoder.layer.2.attention.self.key.weight"
    np.testing.assert_array_equal(got[name], tensors[name])
    with pytest.raises(UserError, match=r"no cls\.predictions\.transform\.dense\.weight"):
        weights.from_transformers(bare, config, groups={"encoder", "mlm"})


@pytest.mark.parametrize("change", ["drop", "shape"])
def test_weights_that_do_not_fit_are_named(change):
    config = model_config()
    tensors = weights.to_transformers(random_params(config), config)
    name = "bert.encoder.layer.1.output.dense.weight"
    tensors[name] = tensors[name][:-1]
    if change == "drop":
        del tensors[name]
    wanted = {"drop": f"no {name}", "shape": rf"{name} has shape \[31, 64\]"}[change]
    with pytest.raises(UserError, match=wanted):
        weights.from_transformers(tensors, config)


def test_config_json_there_and_back():
    config = dataclasses.replace(model_config(CASES["tiny_tanh"]), pad_vocab_to_multiple_of=1)
    values = to_config_json(config, pad_token_id=3)
    assert values["hidden_act"] == "gelu_pytorch_tanh"
    assert values["pad_token_id"] == 3
    assert from_config_json(json.loads(json.dumps(values)), "config.json") == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *(
            ({"model_type": kind}, f"model_type='{kind}'; only 'bert', 'roberta', .* can be loaded")
            for kind in ("deberta-v2", "gpt2")
        ),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key'"),
        ({"hidden_act": "gelu_10"}, "hidden_act='gelu_10' is not supported; valid: gelu, gelu_py"),
        ({"is_decoder": True}, "a decoder"),
        ({"hidden_size": None}, "no hidden_size"),
    ],
)
def test_config_json_of_another_model_is_refused(change, message):
    values = to_config_json(model_config(), pad_token_id=0) | change
    with pytest.raises(UserError, match=message):
        from_config_json(values, "config.json")


def test_the_folder_holds_what_is_promised(exported, tokenizer):
    out, config, params = exported
    assert sorted(p.name for p in out.iterdir()) == [
        "README.md", "SHA256SUMS", "config.json", "model.safetensors", "special_tokens_map.json",
        "tokenizer.json", "tokenizer_config.json", "vocab.txt",
    ]  # fmt: skip
    assert (out / "tokenizer.json").read_bytes() == tokenizer.json
    lines = (out / "vocab.txt").read_text(encoding="utf-8").split("\n")
    assert lines[:-1] == [tokenizer.token(i) for i in range(tokenizer.vocab_size)]
    with safetensors.safe_open(out / "model.safetensors", framework="numpy") as file:
        assert file.metadata()["format"] == "pt"
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    assert not [name for name in tensors if "decoder" in name]
    expected = weights.to_transformers(params, config)
    assert tensors.keys() == expected.keys()
    assert all((tensors[name] == expected[name]).all() for name in tensors)
    count = sum(tensor.size for tensor in tensors.values())
    assert f"{count:,} parameters" in (out / "README.md").read_text(encoding="utf-8")
    modes = {oct(path.stat().st_mode) for path in out.iterdir()}
    assert len(modes) == 1


@pytest.mark.parametrize("lowercase", [True, False])
def test_tokenizer_config_says_what_tokenizer_json_does(lowercase, tmp_path):
    made = Tokenizer.train(TEXTS[:7], 400, lowercase=lowercase)
    config = dataclasses.replace(model_config(), vocab_size=made.vocab_size)
    export(random_params(config), config, made, tmp_path / "out", card=Card())
    settings = json.loads((tmp_path / "out/tokenizer_config.json").read_text())
    assert settings["do_lower_case"] is lowercase
    assert settings["tokenizer_class"] == "BertTokenizer"
    assert settings["model_max_length"] == config.max_position_embeddings


def test_an_unusual_tokenizer_is_exported_as_a_general_one(tokenizer, tmp_path):
    spec = json.loads(tokenizer.json)
    spec["normalizer"] = {"type": "NFC"}
    other = Tokenizer(json.dumps(spec).encode())
    config = dataclasses.replace(model_config(), vocab_size=other.vocab_size)
    export(random_params(config), config, other, tmp_path / "out", card=Card())
    settings = json.loads((tmp_path / "out/tokenizer_config.json").read_text())
    assert settings["tokenizer_class"] == "PreTrainedTokenizerFast"


@pytest.mark.parametrize("algorithm", ["unigram", "bpe"])
def test_sentencepiece_is_exported_as_it_is_and_fills_masks(algorithm, tmp_path):
    made = Tokenizer.train(TEXTS[:7] * 3, 88, model=algorithm)
    config = dataclasses.replace(model_config(), vocab_size=made.vocab_size)
    out = tmp_path / "out"
    export(random_params(config), config, made, out, card=Card())
    assert (out / "tokenizer.json").read_bytes() == made.json
    assert not (out / "vocab.txt").exists()  # from which transformers would make a WordPiece
    settings = json.loads((out / "tokenizer_config.json").read_text())
    assert settings["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert "lower-case" in (out / "README.md").read_text(encoding="utf-8")
    model = bert_jax.load(out)
    (fills,) = model.fill_mask("hello [MASK] café", top_k=made.vocab_size)
    assert {fill.token for fill in fills} >= {"▁", "[UNK]"}
    assert sum(fill.probability for fill in fills) == pytest.approx(1, abs=1e-3)
    console.print(fill.table([fills]))  # every entry can be printed
    ids = model.tokenizer.encode_batch(["Hello World! мир"])[0]
    assert model.tokenizer.decode(ids) == "hello world! мир"
    assert model.encode("Hello World! мир").shape == (1, config.hidden_size)


def test_only_an_export_is_replaced(exported, tokenizer):
    out, config, params = exported
    export(params, config, tokenizer, out, card=Card(step=8))
    assert "8 steps" in (out / "README.md").read_text()
    (out / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"notes\.txt: does not belong to the export"):
        export(params, config, tokenizer, out, card=Card())
    assert (out / "notes.txt").read_text() == "mine"
    assert os.listdir(out.parent) == [out.name]


def test_a_folder_that_transformers_wrote_is_not_replaced(exported, tokenizer):
    out, config, params = exported
    tensors = weights.to_transformers(params, config)
    safetensors.numpy.save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match="not an export"):
        export(params, config, tokenizer, out, card=Card())


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@contextlib.contextmanager
def full_disk(free: int) -> Iterator[None]:
    """No file can grow beyond `free` bytes; to a program the error looks like a full disk's."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    kept, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # else it is cut off, and stays
    resource.setrlimit(resource.RLIMIT_FSIZE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        sys.dont_write_bytecode = kept


@pytest.mark.parametrize("free", [0, 1000, 50_000], ids=["nothing", "small files", "half"])
def test_a_full_disk_is_one_line_and_leaves_what_was_there(free, exported, tokenizer):
    out, config, params = exported
    before = content(out)
    for target in (out, out.with_name("new")):
        with full_disk(free), pytest.raises(StorageError, match="cannot be written") as error:
            export(params, config, tokenizer, target, card=Card(step=9))
        assert "\n" not in str(error.value)
    assert content(out) == before
    assert os.listdir(out.parent) == [out.name]


def test_a_full_disk_ends_the_verb_with_45(run, tmp_path, capsys):
    words = ["convert", "export", f"--workdir={run[0]}", f"--out={tmp_path / 'out'}"]
    with full_disk(50_000):
        assert cli.main(words) == STORAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {tmp_path / 'out'}: cannot be written")
    assert not (tmp_path / "out").exists()


def test_a_link_to_a_folder_stays_and_its_folder_is_written(exported, tokenizer, tmp_path):
    out, config, params = exported
    link = tmp_path / "link"
    link.symlink_to(out)
    export(params, config, tokenizer, link, card=Card(step=8))
    assert link.is_symlink()
    assert "8 steps" in (out / "README.md").read_text()
    assert sorted(os.listdir(tmp_path)) == ["link", out.name]


@pytest.mark.parametrize("moved", [False, True], ids=["before the old moved", "after"])
def test_after_an_export_was_killed_the_next_one_works(moved, exported, tokenizer, monkeypatch):
    """Killed while it moved folders: the old one is there under one name or the other."""
    out, config, params = exported
    before = content(out)
    monkeypatch.setattr(os, "getpid", lambda: 123)
    unfinished, old = (out.with_name(f".{out.name}.123.{kind}") for kind in ("tmp", "old"))
    unfinished.mkdir()
    (unfinished / "config.json").write_text("{")
    if moved:
        out.rename(old)
    with full_disk(1000), pytest.raises(StorageError):
        export(params, config, tokenizer, out, card=Card(step=8))
    assert content(out) == before  # moved back
    monkeypatch.setattr(os, "getpid", lambda: 124)
    export(params, config, tokenizer, out, card=Card(step=8))
    assert "8 steps" in (out / "README.md").read_text()
    assert os.listdir(out.parent) == [out.name]


def test_a_failure_while_folders_move_puts_the_old_one_back(exported, tokenizer, monkeypatch):
    out, config, params = exported
    before = content(out)

    def refuse(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(atomic, "publish", refuse)
    with pytest.raises(StorageError, match="Input/output error"):
        export(params, config, tokenizer, out, card=Card(step=8))
    assert content(out) == before
    assert os.listdir(out.parent) == [out.name]


def test_an_edited_card_is_not_lost(exported, tokenizer):
    out, config, params = exported
    with (out / "README.md").open("a") as card:
        card.write("license: mit\n")
    with pytest.raises(UserError, match=r"README\.md: was edited"):
        export(params, config, tokenizer, out, card=Card())
    assert bert_jax.load(out).config.vocab_size == config.vocab_size  # for reading it is all right
    (out / "README.md").unlink()
    export(params, config, tokenizer, out, card=Card())


def test_sums_are_those_of_coreutils(exported):
    out, _, _ = exported
    lines = (out / "SHA256SUMS").read_text().splitlines()
    assert lines == [
        f"{hashlib.sha256(data).hexdigest()}  {name}"
        for name, data in sorted(content(out).items())
        if name != "SHA256SUMS"
    ]


def test_what_cannot_be_used_is_not_exported(tokenizer, tmp_path):
    config = dataclasses.replace(model_config(), vocab_size=tokenizer.vocab_size)
    params = random_params(config)
    other = dataclasses.replace(config, vocab_size=tokenizer.vocab_size - 1)
    with pytest.raises(UserError, match="the tokenizer has"):
        export(random_params(other), other, tokenizer, tmp_path / "out", card=Card())
    params["mlm"]["dense"]["bias"][3] = np.nan
    with pytest.raises(UserError, match=r"transform\.dense\.bias contains NaN"):
        export(params, config, tokenizer, tmp_path / "out", card=Card())
    with pytest.raises(UserError, match="write to a local path"):
        export(params, config, tokenizer, "gs://bucket/out", card=Card())
    assert not list(tmp_path.iterdir())


@pytest.fixture
def run(tokenizer, tmp_path) -> tuple[epath.Path, dict]:
    return make_run(tokenizer, tmp_path)


def test_a_checkpoint_is_exported_with_its_facts(run, tmp_path, capsys):
    workdir, params = run
    run_export(workdir, tmp_path / "newest")
    run_export(workdir, tmp_path / "first", 2)
    assert "step 4 of" in capsys.readouterr().out
    bias = "cls.seq_relationship.bias"
    for folder, step in (("newest", 4), ("first", 2)):
        card = (tmp_path / folder / "README.md").read_text(encoding="utf-8")
        for fact in (
            f"trained for {step} steps",
            "| tales |",
            f"| Masked tokens (MLM) | {10 + step}.000 |",
            "| when | 1970-01-01 00:00 to 00:00 (UTC) |",
            "| devices | 4 devices (TPU v5 lite) |",
            "| software | bert-jax 0.1.0, jax 0.10.2 |",
            f"| tokens seen | about {step * 72}, padding not counted |",
            "sequences of at most 24 tokens",
            "the other 16 of its 40 positions are not trained",
            "optimizer.name = adamw",
            "- en\n",
            "fill in the `license` field",
        ):
            assert fact in card
        for scalar in ("layer_0", "| padding", "| phase"):
            assert scalar not in card.partition("<details>")[0]
        assert "[" not in card.partition("```")[0], "a link that leads nowhere"
        assert str(tmp_path) not in card
        with safetensors.safe_open(
            tmp_path / folder / "model.safetensors", framework="numpy"
        ) as file:
            np.testing.assert_allclose(file.get_tensor(bias), params["pair"]["bias"] * step)


def test_a_run_without_pairs_is_exported_without_a_pooler(tokenizer, tmp_path, capsys):
    choices = {"pairing": "single", "masking": "span", "span_boundary": True}
    workdir, params = make_run(tokenizer, tmp_path, **choices)
    assert params.keys() == {"encoder", "mlm", "sbo"}
    out = tmp_path / "out"
    run_export(workdir, out)
    line, _ = capsys.readouterr().out.splitlines()
    wanted = "BertForMaskedLM has no place for them: span-boundary head"
    assert line == f"in heads.safetensors, since {wanted}"
    assert json.loads((out / "config.json").read_text())["architectures"] == ["BertForMaskedLM"]
    card = (out / "README.md").read_text(encoding="utf-8")
    for fact in (
        "BertForMaskedLM.from_pretrained",
        "no pooler",
        "its masked-language-model and span-boundary heads",
        "The span boundary head predicts",
        "BertForMaskedLM has no place for the span-boundary head",
    ):
        assert fact in card
    assert "next-sentence" not in card
    with safetensors.safe_open(out / "model.safetensors", framework="numpy") as file:
        kept = set(file.keys())
        table = file.get_tensor("bert.embeddings.word_embeddings.weight")
    of_class = weights.to_transformers(params, model_config(), groups={"encoder", "mlm"})
    assert kept == of_class.keys()
    assert not [name for name in kept if "pooler" in name or "seq_relationship" in name]
    assert len(table) == tokenizer.vocab_size


def test_another_tokenizer_than_the_checkpoints_is_refused(run, tmp_path):
    workdir, _ = run
    Tokenizer.train(TEXTS[:3], 300).save(workdir / "tokenizer.json", overwrite=True)
    with pytest.raises(UserError, match="not the one the checkpoint was trained with"):
        run_export(workdir, tmp_path / "out")
    (workdir / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"tokenizer\.json: missing"):
        run_export(workdir, tmp_path / "out")


def test_what_the_page_on_export_says_works(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for line in "".join(blocks("bash")).splitlines():
        if "--push=" in line:  # tests/publish/test_push.py has a hub
            continue
        assert cli.main(shlex.split(line)[1:]) == 0, line
    (code,) = (block for block in blocks("python") if "bert_jax" in block)
    names_made: dict = {}
    exec(code, names_made)
    assert names_made["vectors"].shape == (2, 32)
    assert "%" in capsys.readouterr().out
