"""The real files of CoLA, SST-2 and RTE."""

import json
from pathlib import Path

import jax
import pytest
from small_task import task_config

from bert_jax import cli
from bert_jax.config.schema import Config
from bert_jax.finetune.results import run_result, write_results
from bert_jax.finetune.runs import finetune
from bert_jax.finetune.task_data import open_task
from bert_jax.parallel.mesh import make_mesh
from bert_jax.workdir.layout import Workdir

FOLDERS = {"cola": "CoLA", "sst2": "SST-2", "rte": "RTE"}
# Training and held-out examples; rows of 128 tokens in a batch of 32, and the least share of real
# tokens in them.
EXPECTED = {
    "cola": (8551, 1043, 3, 0.94),
    "sst2": (67349, 872, 4, 0.83),
    "rte": (2490, 277, 18, 0.92),
}


def real_config(real_data: Path, task: str, **changes: object) -> Config:
    names = {"task__name": task, "task__data": str(real_data / "glue" / FOLDERS[task])}
    vocabulary = str(real_data / "vocab/bert-base-uncased-vocab.txt")
    sizes = {"model__max_position_embeddings": 128, "phases[0]__seq_length": 128}
    batch = {"phases[0]__batch_size": 32, "phases[0]__examples_per_row": 32}
    return task_config(real_data, **names, task__tokenizer=vocabulary, **sizes, **batch, **changes)


@pytest.mark.slow
@pytest.mark.parametrize("task", FOLDERS)
def test_batches_of_real_examples_are_full(real_data: Path, task: str) -> None:
    config = real_config(real_data, task)
    data = open_task(config, Workdir.open("/nowhere/run"))
    config = data.configured(config)
    phase = data.phase(config, config.phases[0], make_mesh(config.mesh, jax.devices()[:1]))
    train, held_out, rows, fill = EXPECTED[task]
    assert (len(data.train.labels), len(data.held_out.labels)) == (train, held_out)
    assert phase.shape.batch_size == rows
    assert phase.train.fill_rate()[0] >= fill
    assert config.phases[0].steps == 3 * -(-train // 32)


@pytest.mark.slow
@pytest.mark.parametrize("task", FOLDERS)
def test_a_real_task_is_trained_and_predicted(real_data: Path, tmp_path: Path, task: str) -> None:
    config = real_config(real_data, task, mesh__data=-1, task__epochs=0.02)
    data = finetune(config, tmp_path / "run")
    write_results(tmp_path / "run", config, data, [run_result(config, tmp_path / "run")])
    found = json.loads((tmp_path / "run/results.json").read_text())
    accuracy = {name: values["accuracy"] for name, values in found["baselines"].items()}
    assert 0.45 < accuracy["majority"] < 0.7
    if task == "sst2":
        assert accuracy["bag of words"] > 0.78
    words = [f"--model={tmp_path / 'run'}", f"--input={config.task.data}", "--split=dev"]
    assert cli.main(["predict", *words, f"--out={tmp_path / 'out.tsv'}"]) == 0
    assert len((tmp_path / "out.tsv").read_text().splitlines()) == 1 + len(data.held_out.labels)
