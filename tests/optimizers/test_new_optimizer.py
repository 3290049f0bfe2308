"""A new optimizer is one row, as optax's Lion here.

Run as a program, this file is a `bert-jax` that has it.
"""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from corpus import small_config, small_store, two_phases
from processes import assert_a_kill_costs_no_bits, assert_same_bits, deep_config
from rows import with_row
from runs import read_meta
from small_step import CORPUS, mesh_of, place, rows_of, small
from tpu_compiler import needs_libtpu, with_support

from bert_jax import cli
from bert_jax.api.model import load
from bert_jax.config.optimizers import OPTIMIZERS
from bert_jax.config.schema import Config
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.errors import StoppedError, UserError
from bert_jax.optimizers.optimizer import Optimizer
from bert_jax.publish.export import run_export
from bert_jax.training.loop import pretrain
from bert_jax.training.options import RunOptions
from bert_jax.training.step import StepFunctions, make_step_functions

LION = Optimizer(
    make=lambda config, axes, storage: optax.scale_by_lion(config.b1, config.b2),
    moments=("mu",),
    counts=("count",),
)
SETTINGS = {"name": "lion", "learning_rate": 1e-3, "b2": 0.99, "weight_decay": 0.1}


@pytest.fixture(autouse=True)
def _listed() -> Iterator[None]:
    with with_row(OPTIMIZERS, "lion", LION):
        yield


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return small_store(tmp_path_factory.mktemp("lion") / "store")


def lion(config: Config, **changes: Any) -> Config:
    values = {**SETTINGS, **changes}
    return config.replace({f"optimizer.{key}": value for key, value in values.items()})


def program_of(config: Config) -> StepFunctions:
    return make_step_functions(config, mesh_of(config), CORPUS)


def trained(config: Config, steps: int) -> tuple[StepFunctions, Any, list[float]]:
    """The program, the state after these steps, and their losses."""
    losses = []
    with jax.set_mesh(mesh_of(config)):
        program = program_of(config)
        state, batch = program.init(), place(program, rows_of(config))
        for _ in range(steps):
            state, metrics = program.train(state, batch)
            losses.append(float(metrics["loss"]))
    return program, state, losses


def state_of(state: Any) -> optax.ScaleByLionState:
    (found,) = (part for part in state["opt"] if isinstance(part, optax.ScaleByLionState))
    return found


def test_it_is_known_by_its_name(store: TokenStore) -> None:
    assert lion(small_config(store)).optimizer.name == "lion"
    with pytest.raises(UserError, match=r"optimizer\.name='loin'; did you mean lion\?$"):
        lion(small_config(store), name="loin")


@pytest.mark.slow
def test_a_run_resumes_with_the_same_bits_and_is_exported(
    store: TokenStore, tmp_path: Path
) -> None:
    """In two phases, the second with moments and count reset; then on from its export."""
    config = lion(two_phases(store)).replace({"log_every_steps": 1, "checkpoint.every_steps": 4})
    pretrain(config, tmp_path / "whole")
    for stop in (4, 8):
        with pytest.raises(StoppedError):
            pretrain(config, tmp_path / "parts", options=RunOptions(stop_after=stop))
    pretrain(config, tmp_path / "parts")
    assert_same_bits(tmp_path / "whole", tmp_path / "parts")

    run_export(tmp_path / "parts", tmp_path / "exported", step=8, optimizer_state=True)
    assert load(tmp_path / "exported").encode("A text.").shape == (1, config.model.hidden_size)
    init = {"init": str(tmp_path / "exported"), "init_optimizer": "carry"}
    pretrain(config.replace(init), tmp_path / "continued")
    ends = [read_meta(tmp_path / name, 12)["fingerprints"] for name in ("whole", "continued")]
    assert ends[0] == ends[1]


@pytest.mark.nightly
@pytest.mark.processes
def test_a_killed_run_resumes_with_the_same_bits(store: TokenStore, tmp_path: Path) -> None:
    config, environment = lion(deep_config(store)), with_support({})
    assert_a_kill_costs_no_bits(config, tmp_path, program=(__file__,), env=environment, devices=8)


@pytest.mark.slow
@pytest.mark.parametrize(("moments", "count"), [("reset", "carry"), ("carry", "reset")])
def test_a_phase_starts_with_what_its_config_says(moments: str, count: str) -> None:
    config = lion(small(), phase_moments=moments, phase_count=count)
    program, state, _ = trained(config, 3)
    before = jax.tree.map(np.asarray, state_of(state))
    after = state_of(program.start_phase(state))
    assert (int(before.count), int(after.count)) == (3, 3 if count == "carry" else 0)
    for was, now in zip(jax.tree.leaves(before.mu), jax.tree.leaves(after.mu), strict=True):
        np.testing.assert_array_equal(now, was if moments == "carry" else 0 * was)


@pytest.mark.slow
def test_moments_of_half_the_size_train_alike() -> None:
    """Rounded to nearest, as no field is in `rounded_at_random`."""
    _, _, losses = trained(lion(small()), 10)
    _, state, halved = trained(lion(small(), moment_dtype="bfloat16"), 10)
    assert {x.dtype for x in jax.tree.leaves(state_of(state).mu)} == {jnp.dtype("bfloat16")}
    assert losses[-1] < losses[0] - 0.3
    assert losses != halved
    np.testing.assert_allclose(halved, losses, rtol=1e-3)


@pytest.mark.parametrize(
    "mesh",
    [
        {"data": 2, "fsdp": 2, "tensor": 2},
        pytest.param({"data": 8}, marks=pytest.mark.slow),
    ],
)
def test_one_and_eight_devices_have_the_same_loss(mesh: dict[str, int]) -> None:
    """Moments are sharded as their parameters."""
    one, eight = lion(small()), lion(small(mesh=mesh, compute={"shard_optimizer": True}))
    program, _, losses = trained(eight, 10)
    np.testing.assert_allclose(losses, trained(one, 10)[2], rtol=1e-6)
    state = program.abstract
    for x, p in zip(
        jax.tree.leaves(state_of(state).mu), jax.tree.leaves(state["params"]), strict=True
    ):
        assert x.sharding == p.sharding
    assert state_of(state).count.sharding.is_fully_replicated
    word = state_of(state).mu["encoder"]["embeddings"]["word"]
    assert word.sharding.num_devices == 8
    assert not word.sharding.is_fully_replicated


@pytest.mark.parametrize(
    ("row", "array"),
    [
        ({"moments": ()}, r"1/mu/encoder/embeddings/norm/bias \[32\]"),
        ({"counts": ()}, r"1/count \[\]"),
        ({"counts": ("count", "mu"), "moments": ()}, r"1/mu/encoder/embeddings/norm/bias \[32\]"),
        (  # arrays of other shapes than the parameters'
            {
                "make": lambda config, axes, storage: optax.scale_by_factored_rms(),
                "moments": ("v_row", "v_col", "v"),
            },
            r"1/v_row/encoder/embeddings/norm/bias \[1\]",
        ),
    ],
    ids=["moments", "count", "moments as a count", "factored"],
)
def test_a_state_that_the_row_does_not_describe_is_one_line(
    row: dict[str, Any], array: str
) -> None:
    with with_row(OPTIMIZERS, "other", dataclasses.replace(LION, **row)):
        config = lion(small(), name="other")
        with pytest.raises(UserError, match=rf"^config\.optimizer\.name=other: .* {array}; name "):
            program_of(config)


@pytest.mark.nightly
@needs_libtpu
@pytest.mark.processes
def test_it_compiles_for_a_slice() -> None:
    words = ("--config=tiny", "--topology=v5e-4", "--config.optimizer.name=lion", "--json")
    done = subprocess.run(
        [sys.executable, __file__, "compile", *words],
        env=with_support({**os.environ}), capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (phase,) = json.loads(done.stdout)["phases"]
    assert phase["estimated_tokens_per_second"] > 0


if __name__ == "__main__":
    OPTIMIZERS.add("lion", LION)
    sys.exit(cli.main(sys.argv[1:]))
