"""The same numbers as transformers and torch: outputs, losses, and parameters after three steps.

The goldens hold what tests/goldens/make.py computed with torch; weights and batches are made here
again, from the same names and steps.
"""

import golden_case as cases
import jax
import numpy as np
import pytest
from flax import nnx
from golden_case import CASES, RECIPES, STEPS
from small import run_config

from bert_jax.config.schema import Config
from bert_jax.convert import weights
from bert_jax.objectives.corpus import Corpus
from bert_jax.objectives.known_objectives import chosen
from bert_jax.objectives.pretraining_model import declare
from bert_jax.optimizers.optimizer import make_optimizer
from bert_jax.parallel import partition
from bert_jax.parallel.mesh import make_mesh
from bert_jax.training import skip_nonfinite
from bert_jax.training.step import StepFunctions, make_step_functions

TOLERANCE = 1e-5  # times the larger of 1 and the reference's largest magnitude
# Length of the whole movement of a tensor, relative. optax computes 1 - 0.999**n in float32, which
# is exact to 3e-5 for small n; torch does in float64.
MOVED_TOLERANCE = 1e-4


@pytest.fixture(autouse=True)
def _highest_precision():
    with jax.default_matmul_precision("highest"):
        yield


def parameters(golden: dict, config: Config) -> dict:
    """Our parameters from the reference's tensor names and shapes."""
    shapes = {n: tuple(map(int, s[1:-1].split(","))) for n, s in _pairs(golden)}
    tensors = {name: cases.weight(name, shape) for name, shape in shapes.items()}
    return weights.from_transformers(tensors, config.model)


def _pairs(golden: dict) -> list[tuple[str, str]]:
    return list(zip(golden["names"].tolist(), golden["shapes"].tolist(), strict=True))


def program(config: Config) -> tuple[StepFunctions, jax.sharding.Mesh]:
    mesh = make_mesh(config.mesh, jax.devices()[:1])
    unigram = np.zeros(config.model.vocab_size, np.float32)
    return make_step_functions(config, mesh, Corpus(("text",), unigram)), mesh


def difference(ours: object, reference: np.ndarray) -> float:
    """Largest difference in units of max(1, max|reference|)."""
    ours = np.asarray(ours)
    assert ours.shape == reference.shape
    return float(np.abs(ours - reference).max() / max(1.0, np.abs(reference).max()))


@pytest.mark.parametrize(
    "name", ["tiny", "tiny_tanh", pytest.param("base", marks=pytest.mark.slow)]
)
def test_outputs_and_losses(name):
    case, golden = CASES[name], cases.load(name)
    config = run_config(case)
    params = parameters(golden, config)
    batch = cases.batch(case, 0)
    graph, _ = declare(config.model, config.compute, chosen(config.data))

    @jax.jit
    def forward(params, batch):
        model = nnx.merge(graph, params)
        hidden = model.encoder(
            batch["input_ids"], batch["token_type_ids"], batch["example_ids"], batch["position_ids"]
        )
        logits = model(batch)
        pooled = model.encoder.pooled(hidden, batch["cls_positions"])
        return hidden, pooled, logits["mlm"], logits["nsp"]

    hidden, pooled, mlm, nsp = map(np.asarray, forward(params, batch))
    sums = program(config)[0].evaluate(params, batch)
    mlm_loss, nsp_loss = (float(sums[k]["loss"] / sums[k]["count"]) for k in ("mlm", "nsp"))
    logits = mlm[batch["masked_weights"] > 0][:, : case.vocab_size]
    top = logits.max(-1)
    differences = {
        "hidden": difference(
            hidden[cases.kept_positions(case, batch["example_ids"])], golden["hidden"]
        ),
        "pooled": difference(pooled[:, 0], golden["pooled"]),
        "mlm_logits": difference(logits[:, :: cases.VOCAB_STRIDE[name]], golden["mlm_logits"]),
        "mlm_logsumexp": difference(
            np.log(np.exp(logits - top[:, None]).sum(-1)) + top, golden["mlm_logsumexp"]
        ),
        "nsp_logits": difference(nsp[:, 0], golden["nsp_logits"]),
        "mlm_loss": difference(mlm_loss, golden["mlm_loss"]),
        "nsp_loss": difference(nsp_loss, golden["nsp_loss"]),
        "loss": difference(mlm_loss + nsp_loss, golden["loss"]),
    }
    assert not {k: d for k, d in differences.items() if not d <= TOLERANCE}


@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        *(
            pytest.param("tiny", recipe, marks=[] if recipe == "adamw" else pytest.mark.slow)
            for recipe in RECIPES
        ),
        pytest.param("base", "bert_adamw", marks=pytest.mark.slow),
        pytest.param("base", "adamw", marks=pytest.mark.nightly),
    ],
)
def test_three_optimizer_steps(name, recipe):
    case = CASES[name]
    golden = cases.load(name)
    config = run_config(case, RECIPES[recipe])
    params = jax.tree.map(jax.numpy.asarray, parameters(golden, config))
    before = weights.to_transformers(params, config.model)
    run, mesh = program(config)
    _, abstract = declare(config.model, config.compute, chosen(config.data))
    optimizer = make_optimizer(config.optimizer, partition.param_axes(abstract))
    state = {
        "step": jax.numpy.int32(0),
        "params": params,
        "opt": jax.jit(optimizer.init)(params),
        "nonfinite": skip_nonfinite.start(),
    }
    metrics = []
    with jax.set_mesh(mesh):
        for step in range(STEPS):
            state, scalars = run.train(state, cases.batch(case, step))
            metrics.append((float(scalars["loss"]), float(scalars["grad_norm"])))
    golden = {k.removeprefix(f"{recipe}/"): v for k, v in golden.items() if k.startswith(recipe)}
    losses, norms = np.array(metrics).T
    assert difference(losses, golden["losses"]) <= TOLERANCE
    np.testing.assert_allclose(norms, golden["grad_norms"], rtol=1e-5)
    after = weights.to_transformers(state["params"], config.model)
    wrong = {}
    for tensor, values in after.items():
        # A key's bias adds the same to every score of a row, which softmax does not see: its true
        # gradient is zero, and Adam makes a whole step of what rounding leaves.
        if tensor.endswith("self.key.bias"):
            continue
        flat = values.reshape(-1)[cases.sampled(tensor, values.size)]
        reference = golden[f"after/{tensor}"]
        moved = np.linalg.norm((values.astype(np.float64) - before[tensor]).reshape(-1))
        apart = difference(flat, reference), abs(moved / golden[f"moved/{tensor}"] - 1)
        if not (apart[0] <= TOLERANCE and apart[1] <= MOVED_TOLERANCE):
            wrong[tensor] = apart
    assert not wrong
