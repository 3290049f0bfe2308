"""Every layout with the head of the masked language model and of each task against transformers:
logits, losses and three optimizer steps, dropout off."""

import dataclasses
import json
from collections.abc import Iterator
from functools import partial

import golden_case as cases
import jax
import numpy as np
import pytest
from flax import nnx
from golden_case import RECIPES, STEPS, TINY
from layout_models import LAYOUTS, TASKS, layout_config, task_batch, task_config, task_params
from small import COMPUTE, run_config

from bert_jax.config.schema import ModelConfig
from bert_jax.config.task_model import TaskModelConfig
from bert_jax.convert import weights
from bert_jax.convert.hf_config import to_config_json
from bert_jax.objectives.corpus import Corpus
from bert_jax.objectives.pretraining_model import declare
from bert_jax.objectives.total import all_sums
from bert_jax.parallel import partition
from bert_jax.parallel.mesh import make_mesh
from bert_jax.training import skip_nonfinite, step
from bert_jax.training.optimizer import make_optimizer

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("default")]
EVERY = [(layout, task) for layout in LAYOUTS for task in ("mlm", *TASKS)]
# The losses of a classifier are the same in every layout.
EVERY_HEAD = [
    (layout, task)
    for layout, task in EVERY
    if layout == "bert" or task not in ("multi_label_classification", "regression")
]
CORPUS = Corpus(("text",), np.zeros(TINY.vocab_size, np.float32))
# With the usual epsilon Adam makes a whole step of a gradient that is rounding.
RECIPE = dataclasses.replace(RECIPES["adamw"], eps=1e-4)


@pytest.fixture(autouse=True)
def _highest_precision():
    with jax.default_matmul_precision("highest"):
        yield


def config_of(layout: str, task: str, **changes: object) -> ModelConfig:
    return (layout_config if task == "mlm" else partial(task_config, task=task))(layout, **changes)


def theirs_of(config: ModelConfig, params: dict) -> "torch.nn.Module":
    """The model of transformers with our parameters."""
    values = json.loads(json.dumps(to_config_json(config, pad_token_id=cases.PAD, heads=params)))
    settings = transformers.AutoConfig.for_model(**values)
    model = getattr(transformers, values["architectures"][0])(settings)
    state = {n: torch.from_numpy(x) for n, x in weights.to_transformers(params, config).items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    assert not {*missing} - {*model.all_tied_weights_keys}
    return model.eval()


def outputs_of(model: "torch.nn.Module", config: ModelConfig, batch: dict):
    """Returns their loss and logits for a batch of ours; those of the masked language model at its
    masked positions."""
    inputs = {
        "input_ids": torch.from_numpy(batch["input_ids"]).long(),
        "attention_mask": torch.from_numpy(batch["example_ids"]).long(),
    }
    if config.type_vocab_size:
        inputs["token_type_ids"] = torch.from_numpy(batch["token_type_ids"]).long()
    if not isinstance(config, TaskModelConfig):
        rows, slots = np.nonzero(batch["masked_weights"])
        places = rows, batch["masked_positions"][rows, slots]
        labels = np.full_like(batch["input_ids"], -100)
        labels[places] = batch["masked_labels"][rows, slots]
        out = model(**inputs, labels=torch.from_numpy(labels).long())
        return out.loss, out.logits[places]
    if config.head.name == "qa":
        for theirs, ours in (("start_positions", "starts"), ("end_positions", "ends")):
            inputs[theirs] = torch.from_numpy(batch[f"answer_{ours}"][:, 0]).long()
    elif config.head.name == "tagger":
        labels = np.where(batch["token_weights"] > 0, batch["token_labels"], -100)
        inputs["labels"] = torch.from_numpy(labels).long()
    else:
        labels = torch.from_numpy(batch["labels"][:, 0])
        inputs["labels"] = labels.long() if labels.dtype == torch.int32 else labels
    out = model(**inputs)
    if config.head.name == "qa":
        return out.loss, torch.stack([out.start_logits, out.end_logits], -1)
    return out.loss, out.logits


def difference(ours: object, reference: object) -> float:
    """The largest, in units of max(1, max|reference|)."""
    ours, reference = np.asarray(ours), np.asarray(reference)
    assert ours.shape == reference.shape
    return float(np.abs(ours - reference).max() / max(1.0, np.abs(reference).max()))


@pytest.mark.parametrize("size", [1.0, 2.0])
@pytest.mark.parametrize(("layout", "task"), EVERY)
def test_logits_and_losses(layout, task, size):
    """Matrices twice as large are larger than those of trained BERTs; with three times the size,
    PyTorch in float32 and in float64 begin to differ by more than the tolerance."""
    config = config_of(layout, task)
    params, batch = task_params(config, size), task_batch(config)

    @jax.jit
    def ours(params, batch):
        outputs = nnx.merge(declare(config, COMPUTE, (task,))[0], params)(batch)
        return all_sums(outputs, batch, CORPUS)[0], outputs[task]

    loss, logits = ours(params, batch)
    with torch.no_grad():
        their_loss, their_logits = outputs_of(theirs_of(config, params), config, batch)
    their_logits = their_logits.numpy()
    if task == "mlm":
        logits = logits[batch["masked_weights"] > 0]
    elif task == "token_classification":
        real = batch["example_ids"] > 0
        logits, their_logits = logits[real], their_logits[real]
    elif task != "question_answering":
        logits = logits[:, 0]
    assert difference(logits, their_logits) <= 1e-5
    assert difference(loss, their_loss.numpy()) <= 1e-5
    assert np.abs(their_logits).max() > 0.1 * size


def torch_steps(model: "torch.nn.Module", config: ModelConfig, peak: float) -> Iterator[float]:
    """Three steps of torch.optim.AdamW as `tests/goldens/make.py` takes them; yields the losses."""
    trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    free = ("LayerNorm", "layer_norm", "bias")  # of decay
    groups = [
        {"params": [p for n, p in trained if any(f in n for f in free) is not decays],
         "weight_decay": RECIPE.weight_decay * decays}
        for decays in (True, False)
    ]  # fmt: skip
    optimizer = torch.optim.AdamW(groups, peak, (RECIPE.b1, RECIPE.b2), RECIPE.eps)
    for number in range(STEPS):
        model.zero_grad()
        loss, _ = outputs_of(model, config, task_batch(config, number))
        loss.backward()
        yield loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), RECIPE.clip_norm)
        for group in optimizer.param_groups:
            group["lr"] = peak * (1 - number / RECIPE.total_steps)
        optimizer.step()


@pytest.mark.parametrize(("layout", "task"), EVERY_HEAD)
def test_three_optimizer_steps(layout, task, monkeypatch):
    """By the training step of a run."""
    model, config = config_of(layout, task, num_hidden_layers=1), run_config(recipe=RECIPE)
    data = dataclasses.replace(config.data, pairing="single")
    config = dataclasses.replace(config, model=model, data=data)
    monkeypatch.setattr(step, "chosen", lambda data, names: (task,))
    mesh = make_mesh(config.mesh, jax.devices()[:1])
    run = step.make_step_functions(config, mesh, CORPUS)
    _, abstract = declare(model, COMPUTE, (task,))
    optimizer = make_optimizer(config.optimizer, partition.param_axes(abstract))
    params = jax.tree.map(jax.numpy.asarray, task_params(model))
    theirs = theirs_of(model, params).train()
    state = {
        "step": jax.numpy.int32(0),
        "params": params,
        "opt": jax.jit(optimizer.init)(params),
        "nonfinite": skip_nonfinite.start(),
    }
    losses = []
    with jax.set_mesh(mesh):
        for number in range(STEPS):
            state, metrics = run.train(state, task_batch(model, number))
            losses.append(float(metrics["loss"]))
    assert difference(losses, [*torch_steps(theirs, model, TINY.learning_rate)]) <= 1e-5
    after, reference = weights.to_transformers(state["params"], model), theirs.state_dict()
    differences = {name: difference(tensor, reference[name]) for name, tensor in after.items()}
    assert not {name: d for name, d in differences.items() if d > 1e-5}
