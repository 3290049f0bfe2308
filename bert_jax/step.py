"""The training step and the evaluation step: one jit each, no state outside their arguments."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bert_jax import heads, objectives, sharding
from bert_jax.config import Config
from bert_jax.dropout import fold
from bert_jax.optimizer import make_optimizer, make_schedule

State = dict[str, Any]  # step: int32 scalar; params, opt: dicts of arrays


@dataclasses.dataclass(frozen=True)
class Program:
    """Everything that runs on the devices for one configuration and mesh."""

    init: Callable[[], State]
    train: jax.stages.Wrapped  # (state, batch) -> (state, metrics); the state is donated
    evaluate: Callable[[Any, heads.Batch], objectives.Sums]
    abstract: Any  # the state as ShapeDtypeStructs with shardings, for restoring into
    rows: NamedSharding  # how the rows of a batch lie on the mesh

    def compile_train(self, rows: Mapping[str, np.ndarray], batch_size: int) -> jax.stages.Compiled:
        """`train`, compiled ahead for batches of `batch_size` rows like these (any number)."""
        batch = {
            name: jax.ShapeDtypeStruct((batch_size, *v.shape[1:]), v.dtype, sharding=self.rows)
            for name, v in rows.items()
        }
        return self.train.lower(self.abstract, batch).compile()


def make_program(config: Config, mesh: Mesh, corpus: objectives.Corpus) -> Program:
    """Builds the jitted functions; nothing is compiled or allocated yet."""
    graph, abstract_params = heads.declare(config.model, config.compute, config.objectives)
    optimizer = make_optimizer(config.optimizer, config.total_steps)
    schedule = make_schedule(config.optimizer, config.total_steps)

    def init() -> State:
        key = jax.random.key(config.seed)
        params = heads.init_params(config.model, config.compute, config.objectives, key)
        return {"step": jnp.zeros((), jnp.int32), "params": params, "opt": optimizer.init(params)}

    def train_step(state: State, batch: heads.Batch) -> tuple[State, dict]:
        key = fold(config.seed, state["step"])

        def loss_fn(params):
            outputs = nnx.merge(graph, params)(batch, key)
            return objectives.all_sums(outputs, batch, corpus)

        (loss, sums), gradients = jax.value_and_grad(loss_fn, has_aux=True)(state["params"])
        updates, opt = optimizer.update(gradients, state["opt"], state["params"])
        metrics = {
            "loss": loss,
            "grad_norm": optax.tree.norm(gradients),
            "learning_rate": schedule(state["step"]),
            "sums": sums,
        }
        params = optax.apply_updates(state["params"], updates)
        return {"step": state["step"] + 1, "params": params, "opt": opt}, metrics

    def eval_step(params: Any, batch: heads.Batch) -> objectives.Sums:
        return objectives.all_sums(nnx.merge(graph, params)(batch), batch, corpus)[1]

    abstract = jax.eval_shape(init)
    param_specs = sharding.param_specs(abstract_params)
    opt_specs = optax.tree_utils.tree_map_params(
        optimizer, lambda _, s: s, abstract["opt"], param_specs, transform_non_params=lambda _: P()
    )
    shardings = sharding.on_mesh(mesh, {"step": P(), "params": param_specs, "opt": opt_specs})
    whole = NamedSharding(mesh, P())
    # Without out_shardings XLA re-shards some leaves, and the second step compiles again.
    return Program(
        init=jax.jit(init, out_shardings=shardings),
        train=jax.jit(train_step, donate_argnums=0, out_shardings=(shardings, whole)),
        evaluate=jax.jit(eval_step, out_shardings=whole),
        abstract=jax.tree.map(
            lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), abstract, shardings
        ),
        rows=sharding.batch_sharding(mesh),
    )
