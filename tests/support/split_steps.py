"""The first steps of a small model, split in any way, and whether two splits give the same."""

import dataclasses
from typing import Any

import jax
import numpy as np
import optax
from small_step import CORPUS, mesh_of, place, rows_of

from bert_jax.config.schema import Config, ModelConfig
from bert_jax.training.step import make_step_functions

STEPS = 3


@dataclasses.dataclass
class Trained:
    """What three steps gave, and what gave it."""

    losses: list[float]
    before: Any  # the whole state
    after: Any
    text: str  # of the compiled step


def train(
    config: Config,
    before: Any = None,
    steps: int = STEPS,
    *,
    teacher: tuple[ModelConfig, Any] | None = None,
) -> Trained:
    """The first steps of a phase, compiled as a run compiles them; from `before` if given.

    teacher: its architecture and parameters.
    """
    arrays, mesh = rows_of(config), mesh_of(config)
    with jax.set_mesh(mesh):
        program = make_step_functions(config, mesh, CORPUS, teacher and teacher[0])
        step = program.compile_train(arrays, config.phases[0])
        if before is None:
            before = jax.tree.map(np.asarray, program.init())
        state = _on(program.abstract, before)
        frozen = (_on(program.teacher, teacher[1]),) if teacher else ()
        placed, losses = place(program, arrays), []
        for _ in range(steps):
            state, metrics = step(state, placed, *frozen)
            losses.append(float(metrics["loss"]))
        assert not any(x.is_deleted() for x in jax.tree.leaves(frozen))
    return Trained(losses, before, state, step.as_text())


def _on(abstract: Any, arrays: Any) -> Any:
    return jax.tree.map(lambda x, a: jax.device_put(x, a.sharding), arrays, abstract)


def distance(a: Trained | Any, b: Any) -> float:
    return float(optax.tree.norm(jax.tree.map(lambda x, y: np.asarray(x) - np.asarray(y), a, b)))


def assert_same(one: Trained, other: Trained) -> None:
    assert one.text != other.text, "the programs compared are the same"
    np.testing.assert_allclose(other.losses, one.losses, rtol=1e-6)
    moved = distance(one.after["params"], one.before["params"])
    assert moved > 0.1
    assert distance(one.after["params"], other.after["params"]) <= 1e-6 * moved
