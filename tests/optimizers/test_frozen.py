"""Frozen parameters: against the same problem without them, on a mesh, and in a run that stops."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from corpus import small_config, small_store
from processes import assert_same_bits
from runs import read_meta

from bert_jax.checkpoint import manager
from bert_jax.config.on_resume import OnResume, on_resume
from bert_jax.config.schema import Config
from bert_jax.errors import StoppedError, UserError
from bert_jax.optimizers.optimizer import make_optimizer, optimizer_of
from bert_jax.training.loop import pretrain
from bert_jax.training.options import RunOptions
from bert_jax.workdir.layout import Workdir

AXES = {
    "encoder": {
        "embeddings": {"word": ("vocab", "embed"), "position": ("position", "embed")},
        "layers": {"mlp": {"kernel": ("layers", "embed", "mlp"), "bias": ("layers", "mlp")}},
    },
    "mlm": {"kernel": ("embed", "embed")},
}
SIZES = {"vocab": 7, "position": 5, "embed": 4, "layers": 3, "mlp": 6}
POSITION = "encoder/embeddings/position"
CHOICES: dict[str, dict[str, Any]] = {
    "bert_adamw": {},
    "adamw": {"weight_decay_on": "all", "moment_dtype": "bfloat16"},
    "stable_adamw": {},
    "lamb": {},
    "muon": {"layer_decay": 0.8},
}


def is_names(x: Any) -> bool:
    return isinstance(x, tuple)


def arrays(seed: int, axes: Any = AXES) -> Any:
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda names: jnp.asarray(3 * rng.normal(size=[SIZES[n] for n in names]), jnp.float32),
        axes, is_leaf=is_names,
    )  # fmt: skip


def reduced(tree: Any) -> Any:
    """A tree without the table of positions and without the head."""
    tree = {"encoder": {**tree["encoder"], "embeddings": {**tree["encoder"]["embeddings"]}}}
    del tree["encoder"]["embeddings"]["position"]
    return tree


def config_of(frozen: str, **optimizer: Any) -> Config:
    config = Config()
    optimizer = {"clip_norm": 0.5, "frozen": frozen, **optimizer}
    return dataclasses.replace(
        config, optimizer=dataclasses.replace(config.optimizer, **optimizer),
        model=dataclasses.replace(config.model, num_hidden_layers=SIZES["layers"]),
    )  # fmt: skip


def trained(tx: Any, params: Any, gradients: Any) -> tuple[Any, Any]:
    state = tx.init(params)
    for step, given in enumerate(gradients):
        updates, state = tx.update(given, state, params, step=step)
        params = jax.tree.map(lambda p, u: p - 0.1 * u, params, updates)
    return params, state


@pytest.mark.parametrize("name", CHOICES)
def test_the_others_are_trained_as_if_there_were_no_frozen_ones(name):
    """As with requires_grad=False: no gradient, so none in the norm that is clipped either."""
    config = config_of(f"{POSITION}, mlm", name=name, **CHOICES[name])
    params, gradients = arrays(0), [arrays(seed) for seed in range(1, 5)]
    found, state = trained(optimizer_of(config, AXES), params, gradients)
    whole = make_optimizer(config.optimizer, reduced(AXES))
    wanted, alone = trained(whole, reduced(params), map(reduced, gradients))
    jax.tree.map(np.testing.assert_array_equal, reduced(found), wanted)
    jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(state), jax.tree.leaves(alone))
    for of in (lambda tree: tree["encoder"]["embeddings"]["position"], lambda tree: tree["mlm"]):
        jax.tree.map(np.testing.assert_array_equal, of(found), of(params))
    assert not np.array_equal(found["encoder"]["embeddings"]["word"], 0)


def test_layer_wise_rates_count_frozen_layers():
    """The tables below a frozen stack have the rate that they have below a trained one."""
    changes = {"layer_decay": 0.5, "name": "adamw", "clip_norm": 0.0, "eps": 1e-12}
    params, gradients = arrays(0), [arrays(1)]
    results = [
        trained(optimizer_of(config_of(frozen, **changes), AXES), params, gradients)[0]
        for frozen in ("", "encoder/layers")
    ]
    whole, partly = (tree["encoder"]["embeddings"]["word"] for tree in results)
    np.testing.assert_array_equal(whole, partly)


@pytest.mark.parametrize(
    ("frozen", "message"),
    [
        ("encoder/embeddings/positions", "no parameter .*; did you mean encoder/embeddings/posit"),
        ("encoder/layer", "no parameter 'encoder/layer'; did you mean encoder/layers"),
        ("mlm,encoder/embed", "no parameter 'encoder/embed'; did you mean encoder/embeddings"),
        ("xyz", "no parameter 'xyz'; valid: encoder/embeddings, encoder/layers, mlm/kernel"),
        ("params/mlm", "no parameter 'params/mlm'"),
        ("mlm,encoder", "=mlm,encoder leaves no parameter to train; name fewer"),
    ],
)
def test_wrong_names_are_one_line(frozen, message):
    with pytest.raises(UserError, match=rf"config\.optimizer\.frozen.*{message}") as error:
        optimizer_of(config_of(frozen), AXES)
    assert "\n" not in str(error.value)


def test_it_is_fixed_on_resume():
    assert on_resume(Config, "optimizer.frozen") is OnResume.FIXED


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return small_store(tmp_path_factory.mktemp("frozen") / "store")


def run_config(store, **changes):
    return small_config(store).replace(
        {
            "optimizer.frozen": f"{POSITION},encoder/layers/mlp",
            "log_every_steps": 1,
            "optimizer.ema_decay": 0.9,
            "checkpoint.keep_start": True,
            **changes,
        }
    )


def test_a_run_leaves_them_and_resumes_with_the_same_bits(store, tmp_path):
    """With sharded moments, accumulation and an average."""
    config = run_config(
        store,
        **{
            "phases[0].batch_size": 16,
            "phases[0].micro_batches": 2,
            "optimizer.name": "muon",
        },
    )
    pretrain(config, tmp_path / "whole")
    with pytest.raises(StoppedError):
        pretrain(config, tmp_path / "parts", options=RunOptions(stop_after=5))
    pretrain(config, tmp_path / "parts")
    assert_same_bits(tmp_path / "whole", tmp_path / "parts")
    run = Workdir.open(tmp_path / "whole")
    before, _ = manager.load_params(run, 0)
    after, meta = manager.load_params(run)
    table = ("position", lambda tree: tree["encoder"]["embeddings"])
    np.testing.assert_array_equal(table[1](before)["position"], table[1](after)["position"])
    assert not np.array_equal(table[1](before)["word"], table[1](after)["word"])
    paths = read_meta(tmp_path / "whole", meta["step"])["fingerprints"]
    moments = [path for path in paths if path.startswith("opt/") and "/encoder/" in path]
    assert moments
    assert not any(f"/{POSITION}" in path or "/layers/mlp/" in path for path in moments)


def test_another_choice_on_resume_is_refused(store, tmp_path):
    config = run_config(store)
    with pytest.raises(StoppedError):
        pretrain(config, tmp_path / "run", options=RunOptions(stop_after=2))
    with pytest.raises(UserError, match=r"optimizer\.frozen"):
        pretrain(config.replace("optimizer.frozen", ""), tmp_path / "run")


def test_moments_of_others_are_not_carried(store, tmp_path):
    whole = small_config(store)
    pretrain(whole, tmp_path / "whole")
    config = run_config(
        store, init=str(tmp_path / "whole"), init_optimizer="carry",
        **{"phases[0].steps": whole.phases[0].steps + 4, "optimizer.ema_decay": 0.0},
    )  # fmt: skip
    with pytest.raises(UserError, match=r"all of its parameters, that of the run of some; set"):
        pretrain(config, tmp_path / "run")
