"""Models of layouts whose layers are otherwise than BERT's: trained, exported and continued."""

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from corpus import small_config, small_store
from layout_models import LAYOUTS, PREFIXES
from nightly import others_nightly
from runs import read_meta

import bert_jax
from bert_jax import cli
from bert_jax.config.schema import Config
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.errors import StoppedError
from bert_jax.exit_codes import DONE
from bert_jax.publish.export import run_export
from bert_jax.training import loop
from bert_jax.training.options import RunOptions

pytestmark = pytest.mark.slow
NEW = ("modernbert", "albert", "electra")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return small_store(tmp_path_factory.mktemp("layouts") / "store")


def config_of(store: TokenStore, layout: str) -> Config:
    settings = {f"model.{name}": value for name, value in LAYOUTS[layout].items()}
    run = {"phases[0].steps": 4, "checkpoint.every_steps": 2, "data.pairing": "full_sentences"}
    return small_config(store).replace({**settings, **run, "model.num_hidden_layers": 4})


def continued(config: Config, model: Path) -> Config:
    """`continue_domain` from a model, whose architecture it takes."""
    names = ("steps", "batch_size", "seq_length", "max_predictions")
    phase = {f"phases[0].{name}": getattr(config.phases[0], name) for name in names}
    data = {"data.store": config.data.store, "data.pairing": config.data.pairing}
    return bert_jax.config("continue_domain", {"init": model, **phase, **data})


@pytest.mark.parametrize("layout", others_nightly(NEW, keep=["modernbert"]))
def test_a_run_from_an_export_ends_as_the_run_that_resumes(
    layout: str, store: TokenStore, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    config, exported = config_of(store, layout), tmp_path / "exported"
    with pytest.raises(StoppedError):
        loop.pretrain(config, tmp_path / "run", options=RunOptions(stop_after=2))
    run_export(tmp_path / "run", exported, optimizer_state=True)
    loop.pretrain(config, tmp_path / "run")
    carry = config.replace({"init": str(exported), "init_optimizer": "carry"})
    loop.pretrain(carry, tmp_path / "carried")
    ends = [read_meta(tmp_path / name, 4)["fingerprints"] for name in ("run", "carried")]
    assert ends[0] == ends[1]
    model = continued(config, exported).model
    assert {name: getattr(model, name) for name in LAYOUTS[layout]} == LAYOUTS[layout]
    loop.pretrain(continued(config, exported), tmp_path / "domain")
    assert f"starts from {exported}\n" in capsys.readouterr().out
    run_export(tmp_path / "domain", tmp_path / "out")
    values = json.loads((tmp_path / "out/config.json").read_text())
    assert values["architectures"] == [f"{PREFIXES[layout]}ForMaskedLM"]
    before, after = (
        safetensors.numpy.load_file(folder / "model.safetensors")
        for folder in (exported, tmp_path / "out")
    )
    assert before.keys() == after.keys()
    moved = {name: np.abs(after[name] - tensor).max() for name, tensor in before.items()}
    assert 0 < max(moved.values()) < 1e-3, moved
    commands = ["convert", "verify", f"{tmp_path}/domain", str(tmp_path / "out")]
    assert cli.main(commands) == DONE
