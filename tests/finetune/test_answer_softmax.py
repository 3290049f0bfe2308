"""The loss of questions over a window's tokens, and over the padded row as in transformers.

Regenerate with PYTHONPATH=tests/support python tests/finetune/test_answer_softmax.py, which needs
the [torch] extra.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
from flax import nnx
from layout_models import task_params
from small import COMPUTE
from small_task import task_config, write_task

from bert_jax.config.schema import Config
from bert_jax.config.task_model import TaskModelConfig
from bert_jax.convert.task_heads import with_head
from bert_jax.errors import UserError
from bert_jax.finetune.batches import ExampleBatches
from bert_jax.finetune.check_task import check_task
from bert_jax.finetune.task_data import open_task
from bert_jax.objectives.pretraining_model import declare
from bert_jax.objectives.total import all_sums
from bert_jax.parallel.mesh import make_mesh
from bert_jax.workdir.layout import Workdir

GOLDEN = Path(__file__).parents[1] / "goldens/question_losses.json"
LAYOUTS: dict[str, dict[str, Any]] = {
    "bert": {},
    "distilbert": {"model__layout": "distilbert", "model__type_vocab_size": 0},
    "roformer": {"model__position": "rotary", "model__hidden_act": "gelu_tanh"},
}
BATCHES = 2
PAD = 0


def configured(folder: Path, layout: str = "bert", **changes: object) -> Config:
    return task_config(
        folder, model__pad_vocab_to_multiple_of=1,
        **LAYOUTS[layout],
        **{"task__name": "question_answering", "phases[0]__examples_per_row": 1, **changes},
    )  # fmt: skip


def questions(folder: Path, layout: str, **changes: object) -> tuple[Config, ExampleBatches]:
    """The configuration with the head, without dropout, and the training batches."""
    config = configured(folder, layout, **changes)
    data = open_task(config, Workdir.open(folder / "run"))
    config = data.configured(config)
    config = config.with_model(with_head(config.model, "qa", ("start", "end"), dropout=0.0))
    mesh = make_mesh(config.mesh, jax.devices()[:1])
    return config, data.phase(config, config.phases[0], mesh).train


def ours(config: Config, batches: ExampleBatches) -> list[list[float]]:
    """The loss of each batch and the norm of its gradient, without that of [PAD]'s embedding, which
    learns here and in run_squad.py; transformers keeps it."""
    assert isinstance(config.model, TaskModelConfig)
    graph, _ = declare(config.model, COMPUTE, ("question_answering",))

    @jax.jit
    @jax.value_and_grad
    def loss(params: dict, batch: dict) -> jax.Array:
        return all_sums(nnx.merge(graph, params)(batch), batch, None)[0]

    found = []
    for index in range(BATCHES):
        with jax.default_matmul_precision("highest"):
            value, grads = loss(task_params(config.model), batches.batch(index))
        word = grads["encoder"]["embeddings"]["word"]
        grads["encoder"]["embeddings"]["word"] = word.at[PAD].set(0)
        found.append([float(value), float(optax.tree.norm(grads))])
    return found


def theirs(config: Config, batches: ExampleBatches) -> list[list[float]]:
    """The same of transformers."""
    import torch_parity

    model = torch_parity.theirs_of(config.model, task_params(config.model))
    found = []
    for index in range(BATCHES):
        model.zero_grad()
        loss, _ = torch_parity.outputs_of(model, config.model, batches.batch(index))
        loss.backward()
        grads = [p.grad.double() for p in model.parameters() if p.grad is not None]
        squares = [float((grad**2).sum()) for grad in grads]
        found.append([loss.item(), sum(squares) ** 0.5])
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_task(tmp_path_factory.mktemp("task"))


@cache
def golden() -> dict[str, list[list[float]]]:
    return json.loads(GOLDEN.read_text())


@pytest.mark.parametrize(
    "layout",
    ["bert", *(pytest.param(name, marks=pytest.mark.slow) for name in ("distilbert", "roformer"))],
)
def test_over_the_row_it_is_the_loss_of_transformers(layout: str, folder: Path) -> None:
    """With its gradient, on batches that are mostly padding."""
    config, batches = questions(folder, layout, task__answer_softmax="row")
    assert (batches.batch(0)["example_ids"] == 0).mean() > 0.2
    np.testing.assert_allclose(ours(config, batches), golden()[layout], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_over_the_window_padding_has_no_part_in_it(folder: Path) -> None:
    """Rows twice as long have the same loss, which is not that over the row."""
    losses = []
    for positions in (32, 64):
        longer = {"phases[0]__row_length": positions, "phases[0]__examples_per_row": 2}
        config, batches = questions(folder, "bert", **longer, task__batches="shuffle")
        losses.append(ours(config, batches))
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    assert np.abs(np.subtract(losses[0], golden()["bert"]))[:, 0].min() > 0.05


@pytest.mark.torch
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_golden_is_what_transformers_gives(layout: str, folder: Path) -> None:
    config, batches = questions(folder, layout, task__answer_softmax="row")
    np.testing.assert_allclose(theirs(config, batches), golden()[layout], rtol=1e-5)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"phases[0]__examples_per_row": 8}, r"set '--config\.phases\[0\]\.examples_per_row=1'$"),
        ({"task__name": "tagging"}, "has no effect for tagging; leave it out"),
        ({"model__layout": "roberta"}, "RoBERTa gives padding a position of its own"),
        ({"model__local_attention": 8}, "padding reads no text outside of its window"),
        ({"model__norm_position": "pre"}, "RoBERTa gives padding a position of its own"),
        (
            {"task__layers": "-1"},
            "cannot be used with a frozen encoder; leave out config.task.layers",
        ),
    ],
)
def test_where_there_is_no_such_loss_it_is_refused(changes: dict, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        check_task(
            configured(Path(), **{"task__data": "x", "task__answer_softmax": "row", **changes})
        )


if __name__ == "__main__":
    import tempfile

    made = write_task(Path(tempfile.mkdtemp()))
    found = {name: theirs(*questions(made, name, task__answer_softmax="row")) for name in LAYOUTS}
    GOLDEN.write_text(json.dumps(found, indent=2) + "\n")
