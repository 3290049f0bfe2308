"""BertForPreTraining on exported Parquet rows, as its trainer reads them, has our loss."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pyarrow.parquet as pq
import pytest
from corpus import small_config, small_store
from exported import random_params
from small import COMPUTE

from bert_jax.api.held_out_evaluation import evaluate_held_out
from bert_jax.config.schema import Config, MeshConfig
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.objectives import total as objectives
from bert_jax.parallel.mesh import make_mesh
from bert_jax.publish.export import export
from bert_jax.publish.model_card import Card
from bert_jax.training.batches import phase_batches
from bert_jax.training.evaluation_pass import HeldOut
from bert_jax.training.export_examples import export_examples
from bert_jax.training.step import make_step_functions

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("default"),  # transformers' own deprecations are not ours
]
ROWS = 512  # more than the small store has: all rows of a split are one batch


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return small_store(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def config(store: TokenStore) -> Config:
    made = small_config(store)
    (phase,) = made.phases
    return dataclasses.replace(
        made,
        phases=(dataclasses.replace(phase, batch_size=ROWS),),
        compute=COMPUTE,
        mesh=MeshConfig(slice=1, data=1, fsdp=1, tensor=1),
    )


@pytest.fixture(scope="module")
def params(config: Config) -> dict:
    return random_params(config.model)


@pytest.fixture(scope="module")
def theirs(
    config: Config, params: dict, store: TokenStore, tmp_path_factory: pytest.TempPathFactory
) -> Any:
    from transformers import BertForPreTraining

    folder = tmp_path_factory.mktemp("exported") / "model"
    export(params, config.model, Tokenizer.load(store.tokenizer_path), folder, card=Card())
    return BertForPreTraining.from_pretrained(folder).eval()


def their_loss(theirs: Any, folder: Path) -> float:
    """The loss of all rows, collated as transformers' Trainer does by default."""
    import torch
    from transformers import default_data_collator

    rows = pq.read_table(sorted(folder.glob("*.parquet"))).to_pylist()
    assert 0 < len(rows) <= ROWS
    with torch.no_grad():
        return float(theirs(**default_data_collator(rows)).loss)


def ours_on(config: Config, store: TokenStore, params: dict, split: str) -> dict[str, float]:
    """What `evaluate` measures on held-out rows, or the same of the first epoch's rows."""
    held_out = HeldOut(config, config.phases[0], store)
    mesh = make_mesh(config.mesh, jax.devices()[:1])
    program = make_step_functions(config, mesh, held_out.corpus)
    with jax.set_mesh(mesh):
        if split == "held_out":
            return held_out.evaluate(program, params)
        batches = phase_batches(config, store, store.train, config.phases[0])
        batch = batches.batch(0, range(batches.rows_per_epoch))
        sums = program.evaluate(params, batch)
        del sums[objectives.ROWS]  # those of each row
        return objectives.summarize(sums, store.sources)


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_the_loss_of_exported_rows_is_ours(
    split: str, config: Config, store: TokenStore, params: dict, theirs: Any, tmp_path: Path
) -> None:
    export_examples(
        str(store.path), config, str(tmp_path / "out"),
        phase=0, split_name=split, epochs=1, format_name="parquet",
    )  # fmt: skip
    ours = ours_on(config, store, params, split)
    np.testing.assert_allclose(their_loss(theirs, tmp_path / "out"), ours["loss"], atol=1e-5)
    np.testing.assert_allclose(ours["loss"], ours["mlm/loss"] + ours["nsp/loss"], rtol=1e-6)


def test_the_loss_of_a_folder_on_a_store_is_transformers(
    config: Config, store: TokenStore, theirs: Any, tmp_path: Path
) -> None:
    """`evaluate --model --store`, which does not know how the folder was trained."""
    export_examples(
        str(store.path), config, str(tmp_path / "out"),
        phase=0, split_name="held_out", epochs=1, format_name="parquet",
    )  # fmt: skip
    found = evaluate_held_out(theirs.name_or_path, store.path)
    losses = {
        row.measure: row.found.value for row in found.rows if row.model == theirs.name_or_path
    }
    ours = losses["MLM loss"] + losses["NSP loss"]
    np.testing.assert_allclose(their_loss(theirs, tmp_path / "out"), ours, atol=1e-5)
