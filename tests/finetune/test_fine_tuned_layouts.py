"""Models whose layers or heads are otherwise than BERT's are fine-tuned end to end."""

import json
from pathlib import Path

import numpy as np
import pytest
from exported import random_params
from layout_models import PREFIXES, layout_config
from nightly import others_nightly
from runs import read_records
from small_task import TASKS, write_task

import bert_jax
from bert_jax import cli
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.exit_codes import DONE
from bert_jax.finetune.runs import finetune
from bert_jax.publish.export import export
from bert_jax.publish.model_card import Card

ENDINGS = ("SequenceClassification", "TokenClassification", "QuestionAnswering", "MultipleChoice")
OWN = {"modernbert": {"classifier_pooling": "mean"}, "albert": {}, "electra": {}}
PRETRAINED = {"electra": ("rtd",)}  # a discriminator

EVERY = [(layout, *each) for layout in OWN for each in zip(TASKS, ENDINGS, strict=True)]
KEPT = {
    ("modernbert", "tagging"), ("modernbert", "multiple_choice"), ("albert", "rte"),
    ("electra", "rte"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "task", "ending"),
    others_nightly(EVERY, keep=[each for each in EVERY if each[:2] in KEPT]),
)
def test_an_export_is_fine_tuned_and_predicts(
    layout: str, task: str, ending: str, tmp_path: Path
) -> None:
    folder = write_task(tmp_path / "task")
    tokenizer = Tokenizer.load(folder / "tokenizer.json")
    sizes = {"vocab_size": tokenizer.vocab_size, "max_position_embeddings": 64}
    config = layout_config(layout, **sizes, **OWN[layout])
    learned = PRETRAINED.get(layout, ("mlm",))
    params = random_params(config, learned)
    export(params, config, tokenizer, tmp_path / "model", card=Card(objectives=learned))
    settings = {
        "init": str(tmp_path / "model"), "task.name": task, "task.data": str(folder),
        "task.epochs": 2.0, "phases[0].batch_size": 8, "phases[0].examples_per_row": 4,
        "phases[0].seq_length": 32, "compute.dtype": "float32",
        "optimizer.learning_rate": 1e-3,
    }  # fmt: skip
    config = bert_jax.config("glue", settings)
    assert config.model.layout == layout
    finetune(config, tmp_path / "run")
    losses = [record["loss"] for record in read_records(tmp_path / "run", "train")]
    assert np.isfinite(losses).all()
    bert_jax.export(tmp_path / "run", tmp_path / "out")
    values = json.loads((tmp_path / "out/config.json").read_text())
    assert values["architectures"] == [f"{PREFIXES[layout]}For{ending}"]
    if layout == "modernbert":
        assert values["classifier_pooling"] == "mean"
    words = [f"--model={tmp_path / 'run'}", f"--input={folder}", "--split=dev"]
    assert cli.main(["predict", *words, f"--out={tmp_path / 'predictions'}"]) == DONE
    assert cli.main(["convert", "verify", f"{tmp_path}/run", f"{tmp_path}/out"]) == DONE
