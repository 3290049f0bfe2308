"""Every layout with the head of the masked language model and of each task against transformers:
logits, losses and three optimizer steps, dropout off."""

import dataclasses
from functools import partial

import jax
import numpy as np
import pytest
from flax import nnx
from golden_case import STEPS, TINY
from late_import import LateImport
from layout_models import EVERY as EVERY_TASK
from layout_models import LAYOUTS, layout_config, task_batch, task_config, task_params
from nightly import others_nightly
from parity_steps import RECIPE, difference, our_steps
from small import COMPUTE, run_config

from bert_jax.config.schema import ModelConfig
from bert_jax.convert import weights
from bert_jax.objectives.corpus import Corpus
from bert_jax.objectives.pretraining_model import declare
from bert_jax.objectives.total import all_sums

torch = LateImport("torch")
parity = LateImport("torch_parity", reason="needs transformers, too")

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("default")]
EVERY = [*((layout, "mlm") for layout in LAYOUTS), *EVERY_TASK]
# The losses of a classifier are the same in every layout.
EVERY_HEAD = [
    (layout, task)
    for layout, task in EVERY
    if layout == "bert" or task not in ("multi_label_classification", "regression")
]
# Of BERT every head, of other layouts that of words and one of a task.
STEPPED = [each for each in EVERY_HEAD if {"bert", "mlm", "token_classification"} & set(each)]
CORPUS = Corpus(("text",), np.zeros(TINY.vocab_size, np.float32))


@pytest.fixture(autouse=True)
def _highest_precision():
    with jax.default_matmul_precision("highest"):
        yield


def config_of(layout: str, task: str, **changes: object) -> ModelConfig:
    return (layout_config if task == "mlm" else partial(task_config, task=task))(layout, **changes)


@pytest.mark.parametrize("size", [1.0, 2.0])
@pytest.mark.parametrize(("layout", "task"), EVERY)
def test_logits_and_losses(layout, task, size, **changes):
    """Matrices twice as large are larger than those of trained BERTs; with three times the size,
    PyTorch in float32 and in float64 begin to differ by more than the tolerance."""
    config = config_of(layout, task, **changes)
    params, batch = task_params(config, size), task_batch(config)

    @jax.jit
    def ours(params, batch):
        outputs = nnx.merge(declare(config, COMPUTE, (task,))[0], params)(batch)
        return all_sums(outputs, batch, CORPUS)[0], outputs[task]

    loss, logits = ours(params, batch)
    with torch.no_grad():
        their_loss, their_logits = parity.outputs_of(
            parity.theirs_of(config, params), config, batch
        )
    their_logits = their_logits.numpy()
    if task == "mlm":
        logits = logits[batch["masked_weights"] > 0]
    elif task == "token_classification":
        real = batch["example_ids"] > 0
        logits, their_logits = logits[real], their_logits[real]
    elif task == "multiple_choice":
        logits = logits[..., 0]
    elif task != "question_answering":
        logits = logits[:, 0]
    assert difference(logits, their_logits) <= 1e-5
    assert difference(loss, their_loss.numpy()) <= 1e-5
    assert np.abs(their_logits).max() > 0.1 * size


@pytest.mark.parametrize(
    "change",
    [
        {"num_hidden_groups": 2, "num_hidden_layers": 6, "hidden_act": "gelu"},
        {"num_hidden_groups": 3, "num_hidden_layers": 3, "embedding_size": 32},
        {"hidden_size": 24, "num_attention_heads": 3},
    ],
    ids=str,
)
def test_other_values_of_albert(change):
    test_logits_and_losses("albert", "mlm", 1.0, **change)
    test_three_optimizer_steps("albert", "mlm", **change)


@pytest.mark.parametrize(
    ("task", "change"),
    [
        ("single_label_classification", {"classifier_pooling": "mean"}),
        ("multiple_choice", {"classifier_pooling": "mean"}),
        ("mlm", {"linear_bias": True, "norm_bias": True, "hidden_act": "gelu_tanh"}),
        ("token_classification", {"linear_bias": True, "norm_bias": True}),
        ("mlm", {"local_attention": 0}),
        ("mlm", {"local_attention": 7, "num_hidden_layers": 7, "global_attn_every_n_layers": 3}),
    ],
    ids=str,
)
def test_other_values_of_modernbert(task, change):
    test_logits_and_losses("modernbert", task, 1.0, **change)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_packed_examples_are_those_of_transformers_alone(layout):
    """In a row of 288 tokens, so that windows are computed in blocks."""
    config = config_of(layout, "mlm")
    params, batch = task_params(config), task_batch(config)
    with torch.no_grad():
        their_logits = parity.logits_of(parity.theirs_of(config, params), config, batch).numpy()
    real, times = batch["example_ids"] > 0, 4
    packed = {
        name: np.tile(batch[name][real], times)[None]
        for name in ("input_ids", "token_type_ids", "position_ids")
    }
    lengths = np.tile(real.sum(1), times)
    packed["example_ids"] = np.repeat(np.arange(1, 1 + len(lengths)), lengths)[None]

    @jax.jit
    def ours(params, packed):
        model = nnx.merge(declare(config, COMPUTE, ("mlm",))[0], params)
        names = ("input_ids", "token_type_ids", "example_ids", "position_ids")
        return model.mlm(model.encoder(*map(packed.get, names)), model.encoder.embeddings.word[...])

    logits = ours(params, packed)[0]
    assert len(logits) > 256
    assert difference(logits, np.tile(their_logits[real], (times, 1))) <= 1e-5


@pytest.mark.parametrize(("layout", "task"), others_nightly(EVERY_HEAD, keep=STEPPED))
def test_three_optimizer_steps(layout, task, **changes):
    """By the training step of a run."""
    changes = {"num_hidden_layers": {"modernbert": 3, "albert": 2}.get(layout, 1), **changes}
    model, config = config_of(layout, task, **changes), run_config(recipe=RECIPE)
    data = dataclasses.replace(config.data, pairing="single")
    config = dataclasses.replace(config, model=model, data=data)
    params = task_params(model)
    batches = [task_batch(model, number) for number in range(STEPS)]
    losses, after = our_steps(config, (task,), params, batches)
    theirs = parity.theirs_of(model, params)
    assert difference(losses, parity.their_steps(theirs, config, batches)) <= 1e-5
    after, reference = weights.to_transformers(after, model), theirs.state_dict()
    differences = {name: difference(tensor, reference[name]) for name, tensor in after.items()}
    assert not {name: d for name, d in differences.items() if d > 1e-5}
