"""Runs and checkpoints of earlier versions: their configs lack the keys that came later."""

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import pytest
from corpus import small_config, small_store

import bert_jax
from bert_jax.aot import lower
from bert_jax.checkpoint import manager
from bert_jax.config.schema import Config
from bert_jax.config.serialization import from_dict, to_dict, updated
from bert_jax.parallel.mesh import make_mesh
from bert_jax.training import loop, setup
from bert_jax.training.options import RunOptions
from bert_jax.workdir.layout import Workdir

# What versions without these keys did. A key that changes what is computed belongs here.
LATER = {
    "model.initializer": "published",
    "model.positional_heads": {"layers": 1, "sharpness": 9.5, "noise": 0.25, "table": 1.5},
    "model.position": "learned",
    "model.norm_position": "post",
    "model.layout": "bert",
    "optimizer.decay_share": 0.1,
    "optimizer.muon_scale": 10.0,
    "optimizer.muon_momentum": 0.95,
    "optimizer.layer_decay": 1.0,
    "evaluation.attention": False,
    "evaluation.fills": 0,
    "task": {
        "name": "", "data": "", "held_out": "", "text": "text", "pair": "", "label": "label",
        "tokenizer": "", "epochs": 3.0, "warmup_share": 0.1, "evaluations": 1, "batches": "strata",
        "keep": "last", "layers": "", "join": "concat", "pooling": "mean",
    },
    "objectives": "",
    "init": "",
    "init_vocabulary": "same",
    "init_entries": "pieces",
    "init_positions": "same",
    "init_optimizer": "reset",
}  # fmt: skip


def earlier(values: dict[str, Any]) -> dict[str, Any]:
    """The values without the keys that an earlier version did not have."""
    values = copy.deepcopy(values)
    for key in LATER:
        *parts, last = key.split(".")
        part = values
        for name in parts:
            part = part[name]
        del part[last]
    return values


def lowered(config: Config) -> str:
    with jax.set_mesh(mesh := make_mesh(config.mesh, jax.devices()[:1])):
        return lower.lower(config, config.phases[0], mesh).as_text()


def test_a_config_without_later_keys_lowers_to_the_same_program(tmp_path: Path) -> None:
    config = small_config(small_store(tmp_path / "store"))
    groups = {k: v for k, v in LATER.items() if isinstance(v, dict)}
    plain = {k: v for k, v in LATER.items() if k not in groups}
    plain |= {f"{group}.{k}": v for group, values in groups.items() for k, v in values.items()}
    stated = from_dict(updated(to_dict(config), plain), Config)
    assert stated.model.norm_position == "post"
    assert lowered(from_dict(earlier(to_dict(config)), Config)) == lowered(stated)


@pytest.mark.slow
def test_a_run_of_an_earlier_version_is_resumed_and_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(small_store(tmp_path / "store")).replace("phases[0].steps", 2)
    describe = setup.describe

    def without_later_keys(*args: Any, **facts: Any) -> dict[str, Any]:
        said = describe(*args, **facts)
        return said | {"config": earlier(said["config"])}

    with monkeypatch.context() as patch:
        patch.setattr(setup, "describe", without_later_keys)
        with pytest.raises(bert_jax.StoppedError):
            loop.pretrain(config, tmp_path / "run", options=RunOptions(stop_after=1))
    recorded = json.loads((tmp_path / "run/config.json").read_text())["config"]
    assert "layout" not in recorded["model"]
    _, meta = manager.load_params(Workdir.open(tmp_path / "run"))
    assert "layout" not in meta["config"]["model"]
    bert_jax.export(tmp_path / "run", tmp_path / "first")
    unpadded = dataclasses.replace(config.model, pad_vocab_to_multiple_of=1)
    assert bert_jax.load(tmp_path / "first").config == unpadded
    loop.pretrain(config, tmp_path / "run")
    loop.pretrain(config, tmp_path / "undisturbed")
    (first, _), (second, _) = (
        manager.load_params(Workdir.open(tmp_path / name)) for name in ("run", "undisturbed")
    )
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), first, second))
