"""A new objective is one file: a row of `OBJECTIVES`, and nothing else knows of it."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from corpus import small_config, small_store
from runs import read_records

from bert_jax.api.model import load
from bert_jax.errors import UserError
from bert_jax.model.layers import Dense
from bert_jax.objectives.known_objectives import OBJECTIVES, chosen
from bert_jax.objectives.objective import Objective, Tensor
from bert_jax.ops.cross_entropy import log_loss
from bert_jax.publish.export import run_export
from bert_jax.reporting import status, status_page, status_text
from bert_jax.training.evaluate import evaluate_run
from bert_jax.training.loop import pretrain


def _sums(logits_BxPx2, batch, corpus):
    """Whether the masked token is one of the upper half of the vocabulary."""
    labels = (batch["masked_labels"] >= len(corpus.log_unigram) // 2).astype(jnp.int32)
    loss, correct = log_loss(logits_BxPx2, labels)
    weights = batch["masked_weights"]
    return {
        "loss": jnp.sum(loss * weights),
        "correct": jnp.sum(correct * weights),
        "upper": jnp.sum(labels * weights),
        "count": jnp.sum(weights),
    }


def _baselines(of, sources):
    share = float(of["upper"]) / max(float(of["count"]), 1.0)
    sizes = np.array([share, 1 - share])
    entropy = -float(sum(p * np.log(p) for p in sizes if p))
    return {"baseline_loss": entropy, "baseline_accuracy": float(sizes.max())}


HALF = Objective(
    name="half",
    title="Half of the vocabulary",
    head="half",
    weights="masked_weights",
    has_labels=lambda data: True,
    make_head=lambda config, keys: Dense(
        config, keys, (config.hidden_size,), (2,), ("embed", "classes")
    ),
    logits=lambda head, states, batch: head(states.at(batch["masked_positions"])).astype("f4"),
    sums=_sums,
    baselines=_baselines,
    flops=lambda model, phase: 4.0 * phase.batch_size * phase.row_predictions * model.hidden_size,
    tensors=(
        Tensor("half.kernel", "cls.half.weight", 1),
        Tensor("half.bias", "cls.half.bias"),
    ),
    head_title="half-of-the-vocabulary",
    card="It knows upper from lower.",
)


@pytest.fixture
def new(monkeypatch):
    monkeypatch.setitem(OBJECTIVES, "half", HALF)


@pytest.mark.slow
def test_it_is_trained_evaluated_reported_and_exported_alone(new, tmp_path, capsys):
    """Masked language modelling is not among a model's objectives where it is not asked for."""
    import dataclasses

    config = dataclasses.replace(small_config(small_store(tmp_path / "store")), objectives="half")
    run = tmp_path / "run"
    pretrain(config, run)
    losses = [record["half/loss"] for record in read_records(run, "train")]
    assert np.isfinite(losses).all()
    assert abs(losses[0] - np.log(2)) < 0.1
    said = capsys.readouterr().out
    assert "HALF loss" in said
    assert "mlm" not in said.lower()

    (evaluated,) = evaluate_run(run)
    assert evaluated["half/accuracy"] >= 0.5
    assert "HALF loss" in capsys.readouterr().out

    assert "HALF" in status_text.render(status.read_status(run))
    status_page.write_page([status.read_status(run)], tmp_path / "run.html")
    assert "Half of the vocabulary: loss" in (tmp_path / "run.html").read_text()

    run_export(run, tmp_path / "exported")
    heads = safetensors.numpy.load_file(tmp_path / "exported" / "heads.safetensors")
    assert heads.keys() == {"cls.half.weight", "cls.half.bias"}
    assert heads["cls.half.weight"].shape == (2, config.model.hidden_size)
    tensors = safetensors.numpy.load_file(tmp_path / "exported" / "model.safetensors")
    assert not [name for name in tensors if "cls." in name or "pooler" in name]
    about = json.loads((tmp_path / "exported" / "config.json").read_text())
    assert about["architectures"] == ["BertModel"]
    card = (tmp_path / "exported" / "README.md").read_text()
    assert "its half-of-the-vocabulary head" in card
    assert "It knows upper from lower." in card
    assert load(tmp_path / "exported").encode("A text.").shape == (1, config.model.hidden_size)


def test_objectives_are_chosen_by_name(new, tmp_path):
    data = small_config(small_store(tmp_path / "store")).data
    assert chosen(data) == ("mlm", data.pairing, "half")
    assert chosen(data, "half, mlm") == ("half", "mlm")
    with pytest.raises(UserError, match=r"^config\.objectives: unknown objective 'hlaf'; .*half"):
        chosen(data, "hlaf")
    with pytest.raises(UserError, match=r"config\.data makes no labels for sbo; change"):
        chosen(data, "mlm,sbo")
    with pytest.raises(UserError, match=r"nsp and sop share the head 'pair'"):
        chosen(data, "nsp,sop")


def test_two_objectives_add_up(new, tmp_path):
    from bert_jax.objectives.total import denominators

    batch = {name: jnp.ones((2, 3)) for name in ("masked_weights", "pair_weights")}
    assert jax.tree.map(float, denominators(batch, ("half", "nsp"))) == {"half": 6.0, "nsp": 6.0}
