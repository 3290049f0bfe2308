"""Steps of whole programs: every set of objectives trains, and unreached positions only decay."""

import dataclasses

import golden_case as cases
import jax
import numpy as np
import pytest
from golden_case import RECIPES, TINY
from small import run_config

from bert_jax.config.schema import Config
from bert_jax.objectives import total
from bert_jax.objectives.corpus import Corpus
from bert_jax.objectives.known_objectives import chosen
from bert_jax.parallel.mesh import make_mesh
from bert_jax.training.step import StepFunctions, make_step_functions


def program(config: Config) -> tuple[StepFunctions, jax.sharding.Mesh]:
    mesh = make_mesh(config.mesh, jax.devices()[:1])
    unigram = np.zeros(config.model.vocab_size, np.float32)
    return make_step_functions(config, mesh, Corpus(("text",), unigram)), mesh


@pytest.mark.parametrize(
    ("pairing", "span_boundary"),
    [pytest.param("single", False, marks=pytest.mark.slow), ("sop", True)],
)
def test_every_set_of_objectives_trains(pairing, span_boundary):
    config = run_config(TINY, RECIPES["adamw"])
    data = dataclasses.replace(
        config.data, pairing=pairing, masking="span", span_boundary=span_boundary
    )
    config = dataclasses.replace(config, data=data)
    batch = dict(cases.batch(TINY, 0))
    if pairing == "single":
        batch = {n: x for n, x in batch.items() if n != "cls_positions" and "pair" not in n}
    if span_boundary:
        batch |= {
            "span_left": np.maximum(batch["masked_positions"] - 1, 0),
            "span_right": batch["masked_positions"] + 1,
            "span_offsets": np.zeros_like(batch["masked_positions"]),
            "span_weights": batch["masked_weights"],
        }
    run, mesh = program(config)
    losses = []
    with jax.set_mesh(mesh):
        state = run.init()
        before = jax.tree.map(np.asarray, state["params"])
        for _ in range(3):
            state, metrics = run.train(state, batch)
            scalars = total.summarize(jax.tree.map(np.asarray, metrics["sums"]), ("text",))
            losses.append(scalars["loss"])
    assert {n.split("/")[0] for n in scalars if "/" in n} == set(chosen(config.data))
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] - 0.1 * len(chosen(config.data))
    still = [
        jax.tree_util.keystr(path)
        for (path, old), new in zip(
            jax.tree_util.tree_leaves_with_path(before),
            jax.tree.leaves(state["params"]),
            strict=True,
        )
        if np.array_equal(old, new)
    ]
    assert not still


@pytest.mark.slow
def test_positions_that_a_phase_does_not_reach_only_decay():
    """As in the original, whose table always has all its rows: their moments stay zero."""
    config = run_config(TINY, RECIPES["bert_adamw"])
    reached = TINY.length
    short = dataclasses.replace(TINY, length=16, slots=3)
    run, mesh = program(config)
    decay = config.optimizer.weight_decay

    def table(tree: object) -> list[np.ndarray]:
        """Every leaf that belongs to the position table."""
        return [
            np.asarray(leaf)
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
            if jax.tree_util.keystr(path).endswith("['embeddings']['position']")
        ]

    def padded(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """As long as the longer phase's, so that one compiled step does for both."""
        shapes = {n: x.shape for n, x in cases.batch(TINY, 0).items()}
        grown = {n: np.zeros(shapes[n], x.dtype) for n, x in batch.items()}
        for name, values in batch.items():
            grown[name][:, : values.shape[1]] = values
        return grown

    with jax.set_mesh(mesh):
        state = run.init()
        (start,) = table(state["params"])
        assert start.shape == (TINY.positions, TINY.hidden_size)
        wanted = start.copy()
        for step, case in enumerate([short, short, TINY, TINY]):
            state, metrics = run.train(state, padded(cases.batch(case, step)))
            wanted *= np.float32(1 - float(metrics["learning_rate"]) * decay)
            (rows,) = table(state["params"])
            moments = table(state["opt"])
            assert len(moments) == 2
            first_unreached = case.length if step < 2 else reached
            np.testing.assert_allclose(rows[first_unreached:], wanted[first_unreached:], rtol=1e-6)
            for moment in moments:
                assert moment[:first_unreached].any(axis=1).all()
                assert not moment[first_unreached:].any()
    assert np.abs(wanted[reached:] / start[reached:] - 1).min() > 1e-5
