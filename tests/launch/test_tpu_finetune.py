"""A job on TPU slices that fine-tunes: its model and its task lie in a bucket."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from exported import random_params
from processes import assert_same_bits
from small_task import task_config, write_task
from tpu_launch import Site, site, until

from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.publish.export import export
from bert_jax.publish.model_card import Card

pytestmark = [
    pytest.mark.slow,
    pytest.mark.processes,
    pytest.mark.xdist_group("engines"),  # beside tests with deadlines, as those with Slurm
]

FLAGS = (
    "--config=glue", "--config.task.name=rte", "--config.task.epochs=20",
    "--config.phases[0].batch_size=8", "--config.phases[0].examples_per_row=8",
    "--config.phases[0].seq_length=32", "--config.compute.dtype=float32",
    "--config.checkpoint.every_steps=5", "--config.checkpoint.keep=100",
    "--config.log_every_steps=1", "--config.deadlines.peer=10",
)  # fmt: skip


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The files of a task, and an export of which a run takes the architecture."""
    task = write_task(tmp_path_factory.mktemp("task"))
    model, folder = task_config(task).model, tmp_path_factory.mktemp("model") / "exported"
    tokenizer = Tokenizer.load(task / "tokenizer.json")
    export(random_params(model), model, tokenizer, folder, card=Card())
    return {"task": task, "model": folder}


@pytest.fixture
def at(tmp_path: Path, inputs: dict[str, Path]) -> Iterator[Site]:
    with site(tmp_path, inputs, recorded=True) as made:
        yield made


def words(where: dict[str, object]) -> list[str]:
    return [
        *("finetune", *FLAGS),
        *(f"--config.init={where['model']}", f"--config.task.data={where['task']}"),
    ]


@pytest.mark.nightly
def test_a_preempted_job_gives_the_bits_of_an_undisturbed_one(
    at: Site, inputs: dict[str, Path], tmp_path: Path
) -> None:
    undisturbed = tmp_path / "disk" / "b1"
    local = ["launch", "local", "run", "--processes=2", *words(inputs)]
    flags = [f"--workdir={undisturbed}", "--cpu_devices=1"]
    subprocess.run([sys.executable, "-m", "bert_jax", *local, *flags], check=True, timeout=900)
    remote = words({name: f"gs://bucket/{name}" for name in inputs})
    launcher = at.run_words(["--topology=v4-16", "--spot"], remote)
    until(lambda: at.saved(20), "checkpoint", launcher)
    at.cloud.preempt("b1-1")
    assert launcher.code() == 0, launcher.said()
    assert at.cloud.created == ["b1-1", "b1-2"]
    assert at.cloud.states() == {}
    found = at.download("b1", tmp_path / "tpu")
    assert_same_bits(found, undisturbed)
    assert (found / "results.json").read_bytes() == (undisturbed / "results.json").read_bytes()


def test_inputs_that_are_not_in_the_bucket_are_said_before_anything_exists(at: Site) -> None:
    where = {"model": "gs://bucket/none", "task": "gs://bucket/other"}
    launcher = at.run_words(["--topology=v4-16"], words(where))
    assert launcher.code() == 1
    line = "config.task.data=gs://bucket/other, config.init=gs://bucket/none: not there; give"
    assert line in launcher.said()
    assert (at.objects(), at.cloud.created) == ([], [])
