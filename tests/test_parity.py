"""The same numbers as transformers and torch: outputs, losses, and parameters after three steps.

The goldens hold what tests/goldens/make.py computed with torch; weights and batches are made here
again, from the same names and steps.
"""

import jax
import numpy as np
import pytest
from flax import nnx
from goldens import case as cases
from goldens.case import CASES, RECIPES, STEPS, Case, Recipe

from bert_jax import config as configs
from bert_jax import heads, objectives, sharding
from bert_jax.convert import names
from bert_jax.optimizer import make_optimizer
from bert_jax.step import Program, make_program

TOLERANCE = 1e-5  # times the larger of 1 and the reference's largest magnitude
# Length of the whole movement of a tensor, relative. optax computes 1 - 0.999**n in float32, which
# is exact to 3e-5 for small n; torch does in float64.
MOVED_TOLERANCE = 1e-4


@pytest.fixture(autouse=True)
def _highest_precision():
    with jax.default_matmul_precision("highest"):
        yield


def configuration(case: Case, recipe: Recipe = RECIPES["adamw"]) -> configs.Config:
    model = configs.ModelConfig(
        vocab_size=case.vocab_size,
        hidden_size=case.hidden_size,
        num_hidden_layers=case.layers,
        num_attention_heads=case.heads,
        intermediate_size=case.intermediate_size,
        hidden_act=case.act,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        max_position_embeddings=case.positions,
        type_vocab_size=2,
        initializer_range=0.02,
        layer_norm_eps=1e-12,
        pad_vocab_to_multiple_of=128,
    )
    optimizer = configs.OptimizerConfig(
        name=recipe.name,
        learning_rate=case.learning_rate,
        warmup_steps=recipe.warmup_steps,
        b1=recipe.b1,
        b2=recipe.b2,
        eps=recipe.eps,
        weight_decay=recipe.weight_decay,
        clip_norm=recipe.clip_norm,
    )
    return configs.Config(
        seed=0,
        log_every_steps=1,
        model=model,
        data=configs.DataConfig(
            store="", pairing="nsp", negative_pool="source", short_seq_prob=0.1, masking="token",
            mask_rate=0.15, mask_share=0.8, random_share=0.1,
        ),
        phases=(
            configs.PhaseConfig(
                steps=recipe.total_steps, batch_size=case.rows, seq_length=case.length,
                max_predictions=case.slots,
            ),
        ),
        optimizer=optimizer,
        mesh=configs.MeshConfig(slice=1, data=1, fsdp=1, tensor=1),
        compute=configs.ComputeConfig(dtype="float32", unroll_layers=1),
        checkpoint=configs.CheckpointConfig(every_steps=1, keep=1),
        evaluation=configs.EvaluationConfig(every_steps=1, batches=1),
    )  # fmt: skip


def parameters(golden: dict, config: configs.Config) -> dict:
    """Our parameters from the reference's tensor names and shapes."""
    shapes = {n: tuple(map(int, s[1:-1].split(","))) for n, s in _pairs(golden)}
    tensors = {name: cases.weight(name, shape) for name, shape in shapes.items()}
    return names.from_transformers(tensors, config.model)


def _pairs(golden: dict) -> list[tuple[str, str]]:
    return list(zip(golden["names"].tolist(), golden["shapes"].tolist(), strict=True))


def program(config: configs.Config) -> tuple[Program, jax.sharding.Mesh]:
    mesh = sharding.make_mesh(config.mesh, jax.devices()[:1])
    unigram = np.zeros(config.model.vocab_size, np.float32)
    return make_program(config, mesh, objectives.Corpus(("text",), unigram)), mesh


def difference(ours: object, reference: np.ndarray) -> float:
    """Largest difference in units of max(1, max|reference|)."""
    ours = np.asarray(ours)
    assert ours.shape == reference.shape
    return float(np.abs(ours - reference).max() / max(1.0, np.abs(reference).max()))


@pytest.mark.parametrize("name", list(CASES))
def test_outputs_and_losses(name):
    case, golden = CASES[name], cases.load(name)
    config = configuration(case)
    params = parameters(golden, config)
    batch = cases.batch(case, 0)
    graph, _ = heads.declare(config.model, config.compute)

    @jax.jit
    def forward(params, batch):
        model = nnx.merge(graph, params)
        hidden = model.encoder(
            batch["input_ids"], batch["token_type_ids"], batch["example_ids"], batch["position_ids"]
        )
        return hidden, model.encoder.pooled(hidden, batch["cls_positions"]), *model(batch)

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


@pytest.mark.parametrize("recipe", list(RECIPES))
@pytest.mark.parametrize("name", ["tiny", pytest.param("base", marks=pytest.mark.slow)])
def test_three_optimizer_steps(name, recipe):
    case = CASES[name]
    golden = cases.load(name)
    config = configuration(case, RECIPES[recipe])
    params = jax.tree.map(jax.numpy.asarray, parameters(golden, config))
    before = names.to_transformers(params, config.model)
    run, mesh = program(config)
    optimizer = make_optimizer(config.optimizer, config.total_steps)
    state = {"step": jax.numpy.int32(0), "params": params, "opt": jax.jit(optimizer.init)(params)}
    metrics = []
    with jax.set_mesh(mesh):
        for step in range(STEPS):
            state, scalars = run.train(state, cases.batch(case, step))
            metrics.append((float(scalars["loss"]), float(scalars["grad_norm"])))
    golden = {k.removeprefix(f"{recipe}/"): v for k, v in golden.items() if k.startswith(recipe)}
    losses, norms = np.array(metrics).T
    assert difference(losses, golden["losses"]) <= TOLERANCE
    np.testing.assert_allclose(norms, golden["grad_norms"], rtol=1e-5)
    after = names.to_transformers(state["params"], config.model)
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
