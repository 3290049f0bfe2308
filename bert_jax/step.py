"""The training step and the evaluation step: one jit each, no state outside their arguments."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bert_jax import heads, nonfinite, objectives, sharding
from bert_jax.config import Config, PhaseConfig
from bert_jax.dropout import fold
from bert_jax.kernels import choice
from bert_jax.optimizer import make_optimizer, start_phase
from bert_jax.schedule import make_schedule

# step: int32 scalar, steps done; params, opt: dicts of arrays; nonfinite: `nonfinite.Counts`
State = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Program:
    """Everything that runs on the devices for one configuration and mesh."""

    init: Callable[[], State]
    # (state, batch, micro_batches=1) -> (state, metrics); the state is donated. Metrics, all whole
    # on every device: loss, grad_norm, learning_rate, sums, and skipped (0 or 1) and in_row, int32.
    train: jax.stages.Wrapped
    start_phase: jax.stages.Wrapped  # state -> state, at the start of a later phase; donates too
    evaluate: jax.stages.Wrapped  # (params, batch) -> sums
    abstract: Any  # the state as ShapeDtypeStructs with shardings, for restoring into
    rows: NamedSharding  # how the rows of a batch lie on the mesh

    def lower_train(self, rows: Mapping[str, np.ndarray], phase: PhaseConfig) -> jax.stages.Lowered:
        """`train` for a phase, whose rows are like these (any number)."""
        batch = self.abstract_batch(rows, phase.batch_size)
        return self.train.lower(self.abstract, batch, micro_batches=phase.micro_batches)

    def compile_train(
        self, rows: Mapping[str, np.ndarray], phase: PhaseConfig
    ) -> jax.stages.Compiled:
        """The same, compiled ahead."""
        return self.lower_train(rows, phase).compile()

    def compile_evaluate(
        self, rows: Mapping[str, np.ndarray], batch_size: int
    ) -> jax.stages.Compiled:
        """`evaluate`, compiled ahead for batches of so many rows like these."""
        batch = self.abstract_batch(rows, batch_size)
        return self.evaluate.lower(self.abstract["params"], batch).compile()

    def compile_start_phase(self) -> jax.stages.Compiled:
        """`start_phase`, compiled ahead."""
        return self.start_phase.lower(self.abstract).compile()

    def abstract_batch(self, rows: Mapping[str, np.ndarray], batch_size: int) -> dict[str, Any]:
        """A batch of rows like these as ShapeDtypeStructs with shardings."""
        return {
            name: jax.ShapeDtypeStruct((batch_size, *v.shape[1:]), v.dtype, sharding=self.rows)
            for name, v in rows.items()
        }


def make_program(config: Config, mesh: Mesh, corpus: objectives.Corpus) -> Program:
    """Builds the jitted functions; nothing is compiled or allocated yet.

    Raises:
        UserError: an axis of the mesh does not divide a dimension that it splits, or the form of
            attention asked for does not run on these devices or with these phases.
    """
    learned = config.objectives
    compute = choice.resolve(config, mesh)
    graph, abstract_params = heads.declare(config.model, compute, learned)
    axes = sharding.param_axes(abstract_params)
    sharding.check_fits(mesh, axes, nnx.to_pure_dict(abstract_params))
    optimizer = make_optimizer(config.optimizer, axes)
    schedule = make_schedule(config)

    def init() -> State:
        key = jax.random.key(config.seed)
        params = heads.init_params(config.model, config.compute, learned, key)
        return {
            "step": jnp.zeros((), jnp.int32),
            "params": params,
            "opt": optimizer.init(params),
            "nonfinite": nonfinite.start(),
        }

    abstract = jax.eval_shape(init)
    specs = state_specs(config, mesh, axes, abstract)
    shardings, rows = sharding.on_mesh(mesh, specs), sharding.batch_sharding(mesh)
    # Gradients are kept where the moments are: a device needs no more of them than it updates.
    kept = sharding.on_mesh(mesh, moment_specs(config, mesh, axes, abstract))
    gradients_of = make_gradients(graph, corpus, rows, shardings["params"], kept)

    def train_step(state: State, batch: heads.Batch, micro_batches: int = 1) -> tuple[State, dict]:
        params, key = state["params"], fold(config.seed, state["step"])
        counts = objectives.denominators(batch)
        (loss, sums), gradients = gradients_of(params, batch, key, counts, micro_batches)
        rate, norm = schedule(state["step"]), optax.tree.norm(gradients)
        updates, opt = optimizer.update(gradients, state["opt"], params)
        limit = config.optimizer.max_nonfinite_steps
        update, counts_after = nonfinite.judge(state["nonfinite"], limit, loss, norm)

        def unless_skipped(new: jax.Array, old: jax.Array) -> jax.Array:
            return jnp.where(update, new, old)  # not a conditional: no device waits for a host

        metrics = {
            "loss": loss,
            "grad_norm": norm,
            "learning_rate": rate,
            "sums": sums,
            "skipped": (~update).astype(jnp.int32),
            "in_row": counts_after["in_row"],
        }
        after = {
            "step": state["step"] + 1,
            "params": jax.tree.map(lambda p, u: unless_skipped(p - rate * u, p), params, updates),
            "opt": jax.tree.map(unless_skipped, opt, state["opt"]),
            "nonfinite": counts_after,
        }
        return after, metrics

    def begin_phase(state: State) -> State:
        return {**state, "opt": start_phase(state["opt"], config.optimizer)}

    def eval_step(params: Any, batch: heads.Batch) -> objectives.Sums:
        return objectives.all_sums(nnx.merge(graph, params)(batch), batch, corpus)[1]

    whole = NamedSharding(mesh, P())
    # Without out_shardings XLA re-shards some leaves, and the second step compiles again.
    return Program(
        init=jax.jit(init, out_shardings=shardings),
        train=jax.jit(
            train_step,
            static_argnames="micro_batches",
            donate_argnums=0,
            out_shardings=(shardings, whole),
        ),
        start_phase=jax.jit(begin_phase, donate_argnums=0, out_shardings=shardings),
        evaluate=jax.jit(eval_step, out_shardings=whole),
        abstract=jax.tree.map(
            lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), abstract, shardings
        ),
        rows=rows,
    )


def make_gradients(
    graph: nnx.GraphDef, corpus: objectives.Corpus, rows: NamedSharding, laid: Any, kept: Any
) -> Callable[..., tuple]:
    """(params, batch, key, counts, parts) -> ((loss, sums), gradients) over a batch.

    Args:
        rows: how a batch lies on the mesh. laid: how the parameters lie. kept: how their gradients
            shall lie.
    """

    def of_part(params: Any, batch: heads.Batch, key: jax.Array, counts: Any) -> tuple:
        def loss_fn(params):
            outputs = nnx.merge(graph, params)(batch, key)
            return objectives.all_sums(outputs, batch, corpus, counts)

        losses, gradients = jax.value_and_grad(loss_fn, has_aux=True)(params)
        # First as the parameters lie: the moments' layout must not reach back into the products.
        gradients = jax.lax.with_sharding_constraint(gradients, laid)
        return losses, jax.lax.with_sharding_constraint(gradients, kept)

    def of_batch(params: Any, batch: heads.Batch, key: jax.Array, counts: Any, parts: int) -> tuple:
        """In parts, one after the other, each with its own dropout."""
        if parts == 1:
            return of_part(params, batch, key, counts)

        def add(total: Any, batch_and_key: tuple) -> tuple:
            losses, gradients = of_part(params, batch_and_key[0], batch_and_key[1], counts)
            return jax.tree.map(jnp.add, total, gradients), losses

        zeros = jax.lax.with_sharding_constraint(jax.tree.map(jnp.zeros_like, params), kept)
        split = sharding.micro_batches(batch, parts, rows)
        scanned: tuple = jax.lax.scan(add, zeros, (split, fold(key, jnp.arange(parts))))
        gradients, of_parts = scanned
        return jax.tree.map(lambda x: x.sum(0), of_parts), gradients

    return of_batch


def moment_specs(config: Config, mesh: Mesh | AbstractMesh, axes: Any, abstract: State) -> Any:
    """The PartitionSpec of what the optimizer keeps for each parameter, and of its gradient."""
    specs = sharding.param_specs(axes)
    if not config.compute.shard_optimizer:
        return specs
    return jax.tree.map(
        lambda x, s: sharding.over_data(mesh, s, x.shape), abstract["params"], specs
    )


def state_specs(config: Config, mesh: Mesh | AbstractMesh, axes: Any, abstract: State) -> dict:
    """The PartitionSpec of every array of the state, in a dict like the state's.

    In the optimizer's state a dict like the parameters' holds something for each of them (moments);
    the rest (counts) is whole on every device.
    """
    moments = moment_specs(config, mesh, axes, abstract)
    of_path = dict(jax.tree_util.tree_leaves_with_path(moments))

    def leaf(path: tuple, _: Any) -> P:
        tails = (path[start:] for start in range(len(path)))
        return next((of_path[tail] for tail in tails if tail in of_path), P())

    return {
        "step": P(),
        "params": sharding.param_specs(axes),
        "opt": jax.tree_util.tree_map_with_path(leaf, abstract["opt"]),
        "nonfinite": jax.tree.map(lambda _: P(), abstract["nonfinite"]),
    }
