"""Exports of the forms other than BERT's: what is written, read back, left out and refused."""

import dataclasses
import json

import numpy as np
import pytest
import safetensors.numpy
from exported import leaves, make_run, random_params
from small import model_config, run_config

import bert_jax
from bert_jax import cli
from bert_jax.config.schema import ModelConfig
from bert_jax.convert import weights
from bert_jax.convert.exportable import not_exportable
from bert_jax.convert.hf_config import from_config_json, to_config_json
from bert_jax.errors import UserError
from bert_jax.publish.export import export, run_export
from bert_jax.publish.model_card import Card

ROTARY, PRE = {"position": "rotary"}, {"norm_position": "pre"}
CLASSES = {"RoFormerForMaskedLM": ROTARY, "RobertaPreLayerNormForMaskedLM": PRE}
FORMS = pytest.mark.parametrize("form", CLASSES.values(), ids=CLASSES)
NO_CLASS = pytest.mark.parametrize("form", [ROTARY | PRE, PRE | {"hidden_act": "gelu_tanh"}])


def model(form: dict, **changes: object) -> ModelConfig:
    return dataclasses.replace(model_config(), pad_vocab_to_multiple_of=1, **form, **changes)


@FORMS
@pytest.mark.parametrize("pad", [0, 7])
def test_there_and_back_gives_the_same_model(form, pad):
    config = model(form)
    values = json.loads(json.dumps(to_config_json(config, pad_token_id=pad)))
    assert from_config_json(values, "config.json") == config
    params = random_params(config, ("mlm",))
    tensors = weights.to_transformers(params, config, pad)
    assert weights.present(tensors, config) == {"encoder", "mlm"}
    back = leaves(weights.from_transformers(tensors, config, pad))
    assert back.keys() == leaves(params).keys()
    for path, leaf in leaves(params).items():
        np.testing.assert_array_equal(back[path], leaf)


@pytest.mark.parametrize("pad", [0, 1])
def test_positions_start_after_the_padding_id(pad):
    """RobertaPreLayerNorm counts from the row after that of its padding."""
    config = model(PRE)
    table = random_params(config, ("mlm",))["encoder"]["embeddings"]["position"]
    tensors = weights.to_transformers(random_params(config, ("mlm",)), config, pad)
    theirs = tensors["roberta_prelayernorm.embeddings.position_embeddings.weight"]
    np.testing.assert_array_equal(theirs[pad + 1 :], table)
    assert not theirs[: pad + 1].any()
    rows = to_config_json(config, pad_token_id=pad)["max_position_embeddings"]
    assert len(theirs) == rows == config.max_position_embeddings + pad + 1
    with pytest.raises(UserError, match=r"position_embeddings\.weight has shape"):
        weights.from_transformers(tensors, config, pad + 1)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "form"), CLASSES.items(), ids=CLASSES)
def test_a_run_with_pairs_has_their_head_in_another_file(name, form, tokenizer, tmp_path, capsys):
    workdir, params = make_run(tokenizer, tmp_path, model=form)
    assert "pair" in params
    out = tmp_path / "out"
    run_export(workdir, out)
    line, _ = capsys.readouterr().out.splitlines()
    assert line == (
        f"in heads.safetensors, since {name} has no place for them: next-sentence or "
        "sentence-order head, pooler"
    )
    assert json.loads((out / "config.json").read_text())["architectures"] == [name]
    card = (out / "README.md").read_text(encoding="utf-8")
    assert f"{name}.from_pretrained" in card
    assert f"{name} has no place for the next-sentence head: the weights are in" in card
    assert "predicts 0 if" in card
    tensors = safetensors.numpy.load_file(out / "model.safetensors")
    assert not [n for n in tensors if "pooler" in n or "seq_relationship" in n or "bert." in n]
    heads = safetensors.numpy.load_file(out / "heads.safetensors")
    assert len(heads) == 4
    np.testing.assert_array_equal(
        heads["cls.seq_relationship.weight"], 4 * params["pair"]["kernel"].T
    )
    loaded = bert_jax.load(out)
    position, norm = loaded.config.position, loaded.config.norm_position
    assert {"position": position, "norm_position": norm} == (
        {"position": "learned", "norm_position": "post"} | form
    )
    assert loaded.encode("hello", pooling="pooled").shape == (1, loaded.config.hidden_size)
    assert cli.main(["fill", f"--model={out}", "hello [MASK]"]) == 0
    assert "%" in capsys.readouterr().out


@NO_CLASS
def test_a_form_that_no_class_has_is_refused_and_reported(form, tokenizer, tmp_path):
    config = model(form, vocab_size=tokenizer.vocab_size)
    with pytest.raises(UserError, match="transformers has no class with layout=") as error:
        export({"encoder": {}}, config, tokenizer, tmp_path / "out", card=Card())
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())
    assert not_exportable(run_config()) == ""
    assert not_exportable(run_config().with_model(config)) == str(error.value)


def test_the_model_of_each_phase_is_looked_at() -> None:
    config = run_config().with_model(model(ROTARY))
    assert not_exportable(config) == ""
    assert "RoFormerModel has 10000.0" in not_exportable(
        config.replace("phases[0].global_rope_theta", 160_000.0)
    )
    other = config.replace("model.global_rope_theta", 160_000.0)
    assert not_exportable(other.replace("phases[0].global_rope_theta", 10_000.0)) == ""


@pytest.mark.parametrize(
    ("form", "change", "message"),
    [
        (ROTARY, {"rotary_value": True}, "rotary_value=True is not supported"),
        (ROTARY, {"embedding_size": 16}, "embedding_size differs from hidden_size"),
        (ROTARY, {"num_attention_heads": 32}, "rotates pairs of dimensions, but a head has 1"),
        (PRE, {"hidden_act": "gelu_new"}, "hidden_act='gelu_new', but the head"),
        (PRE, {"pad_token_id": None}, "pad_token_id=None should be an id"),
        (PRE, {"pad_token_id": 40}, "has no row after that of pad_token_id=40"),
    ],
)
def test_what_the_forms_do_not_compute_is_refused(form, change, message):
    values = to_config_json(model(form), pad_token_id=0) | change
    with pytest.raises(UserError, match=f"^config.json: .*{message}"):
        from_config_json(values, "config.json")


def test_the_padding_id_of_config_json_counts(tokenizer, tmp_path):
    """The tokenizer may have another one: positions are rows of the weights."""
    config = model(PRE, vocab_size=tokenizer.vocab_size)
    out = tmp_path / "out"
    export(random_params(config, ("mlm",)), config, tokenizer, out, card=Card(objectives=("mlm",)))
    expected = bert_jax.load(out).encode("hello there")
    tensors = weights.to_transformers(random_params(config, ("mlm",)), config, 7)
    safetensors.numpy.save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    values = json.loads((out / "config.json").read_text())
    values |= {"pad_token_id": 7, "max_position_embeddings": config.max_position_embeddings + 8}
    (out / "config.json").write_text(json.dumps(values))
    (out / "SHA256SUMS").unlink()
    np.testing.assert_array_equal(bert_jax.load(out).encode("hello there"), expected)
