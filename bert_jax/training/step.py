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

from bert_jax.config.schema import Config, PhaseConfig
from bert_jax.launch.hardware.accelerators import BY_DEVICE_KIND
from bert_jax.objectives import total as objectives
from bert_jax.objectives.pretraining_model import Batch, declare, init_params
from bert_jax.ops.attention import dispatch
from bert_jax.ops.hashing import fold_key
from bert_jax.parallel import collectives, global_batch, partition
from bert_jax.training import skip_nonfinite
from bert_jax.training.optimizer import decayed, make_optimizer, start_phase
from bert_jax.training.schedule import make_schedule

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
    compute = dispatch.resolve(config, mesh)
    graph, abstract_params = declare(config.model, compute, learned)
    axes = partition.param_axes(abstract_params)
    partition.check_fits(mesh, axes, nnx.to_pure_dict(abstract_params))
    optimizer = make_optimizer(config.optimizer, axes)
    schedule = make_schedule(config)

    def init() -> State:
        key = jax.random.key(config.seed)
        params = init_params(config.model, config.compute, learned, key)
        return {
            "step": jnp.zeros((), jnp.int32),
            "params": params,
            "opt": optimizer.init(params),
            "nonfinite": skip_nonfinite.start(),
        }

    abstract = jax.eval_shape(init)
    specs = state_specs(config, mesh, axes, abstract)
    shardings, rows = partition.on_mesh(mesh, specs), global_batch.batch_sharding(mesh)
    apart = sent_by_layer(config, axes, abstract, specs["params"])
    laid, kept = partition.param_specs(axes), specs["params"]
    gradients_of = make_gradients(graph, corpus, rows, laid, kept, apart, compute.dtype)

    def train_step(state: State, batch: Batch, micro_batches: int = 1) -> tuple[State, dict]:
        params, key = state["params"], fold_key(config.seed, state["step"])
        counts = objectives.denominators(batch)
        (loss, sums), gradients = gradients_of(params, batch, key, counts, micro_batches)
        rate, norm = schedule(state["step"]), optax.tree.norm(gradients)
        updates, opt = optimizer.update(gradients, state["opt"], params, step=state["step"])
        limit = config.optimizer.max_nonfinite_steps
        update, counts_after = skip_nonfinite.judge(state["nonfinite"], limit, loss, norm)

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

    def eval_step(params: Any, batch: Batch) -> objectives.Sums:
        # Gathered where they are kept split: else the partitioner moves the rows of all devices.
        computed = as_computed(params, compute.dtype)
        computed = jax.lax.with_sharding_constraint(computed, partition.on_mesh(mesh, laid))
        return objectives.all_sums(nnx.merge(graph, computed)(batch), batch, corpus)[1]

    whole = NamedSharding(mesh, P())
    # Without out_shardings XLA re-shards some leaves, and the second step compiles again.
    return Program(
        init=jax.jit(init, out_shardings=shardings),
        train=jax.jit(
            train_step,
            static_argnames="micro_batches",
            donate_argnums=0,
            out_shardings=(shardings, whole),
            compiler_options=compiler_options(mesh),
        ),
        start_phase=jax.jit(begin_phase, donate_argnums=0, out_shardings=shardings),
        evaluate=jax.jit(eval_step, out_shardings=whole),
        abstract=jax.tree.map(
            lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), abstract, shardings
        ),
        rows=rows,
    )


def compiler_options(mesh: Mesh | AbstractMesh) -> dict[str, str] | None:
    """What the compiler is told for a step on these devices, beyond its defaults."""
    if isinstance(mesh, AbstractMesh):
        return None
    accelerator = BY_DEVICE_KIND.get(mesh.devices.flat[0].device_kind)
    if accelerator is None or accelerator.fusion_kib is None:
        return None
    return {"xla_tpu_scoped_vmem_limit_kib": str(accelerator.fusion_kib)}


def make_gradients(
    graph: nnx.GraphDef,
    corpus: objectives.Corpus,
    rows: NamedSharding,
    laid: Any,
    kept: Any,
    apart: Any,
    dtype: str,
) -> Callable[..., tuple]:
    """(params, batch, key, counts, parts) -> ((loss, sums), gradients) over a batch.

    Matrices are cast to the compute type before they are gathered and their gradients before they
    are summed, which halves what is sent in bfloat16; all else is float32. Written for one device
    where only data axes split anything: then what a device has computed of the gradients is summed
    over the others once, after the last part of the batch. Otherwise the partitioner does it all.

    Args:
        rows: how a batch lies on the mesh. laid: PartitionSpecs of the parameters while the model
            runs. kept: the same between steps, and of their gradients. apart: which are sent layer
            by layer. dtype: the compute type.
    """
    mesh = rows.mesh
    by_device = collectives.can(mesh)
    laid_on_mesh, kept_on_mesh = partition.on_mesh(mesh, laid), partition.on_mesh(mesh, kept)
    constrain = jax.lax.with_sharding_constraint

    def of_part(params: Any, batch: Batch, key: jax.Array, counts: Any) -> tuple:
        def loss_fn(params):
            outputs = nnx.merge(graph, params)(batch, key)
            return objectives.all_sums(outputs, batch, corpus, counts)

        losses, gradients = jax.value_and_grad(loss_fn, has_aux=True)(params)
        if not by_device:
            # First as the parameters lie: where gradients are kept must not reach back into the
            # products.
            gradients = constrain(constrain(gradients, laid_on_mesh), kept_on_mesh)
        return losses, gradients

    def of_parts(params: Any, batch: Batch, key: jax.Array, counts: Any) -> tuple:
        """Over a batch, or over several one after the other with as many keys."""
        if not key.ndim:
            return of_part(params, batch, key, counts)

        def add(total: Any, batch_and_key: tuple) -> tuple:
            losses, gradients = of_part(params, batch_and_key[0], batch_and_key[1], counts)
            return jax.tree.map(lambda t, g: t + g.astype(t.dtype), total, gradients), losses

        zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
        zeros = zeros if by_device else constrain(zeros, kept_on_mesh)
        scanned: tuple = jax.lax.scan(add, zeros, (batch, key))
        gradients, losses = scanned
        return jax.tree.map(lambda x: x.sum(0), losses), gradients

    def on_device(params: Any, batch: Batch, key: jax.Array, counts: Any) -> tuple:
        computed = as_computed(params, dtype)
        computed = jax.tree.map(collectives.gather, computed, kept, apart)
        losses, gradients = of_parts(computed, batch, key, counts)
        gradients = jax.tree.map(lambda g, p: g.astype(p.dtype), gradients, computed)
        gradients = jax.tree.map(collectives.total, gradients, kept, apart)
        return jax.tree.map(lambda x: collectives.total(x, P()), losses), gradients

    def of_batch(params: Any, batch: Batch, key: jax.Array, counts: Any, parts: int) -> tuple:
        """In parts, one after the other, each with its own dropout."""
        split = rows.spec
        if parts > 1:
            batch, key = (
                global_batch.micro_batches(batch, parts, rows),
                fold_key(key, jnp.arange(parts)),
            )
            split = P(None, *split)
        if by_device:
            ins, outs = (kept, split, P(), P()), (P(), kept)
            run = jax.shard_map(on_device, mesh=mesh, in_specs=ins, out_specs=outs, check_vma=False)
            losses, gradients = run(params, batch, key, counts)
        else:
            computed = constrain(as_computed(params, dtype), laid_on_mesh)
            losses, gradients = of_parts(computed, batch, key, counts)
        return losses, jax.tree.map(lambda g: g.astype(jnp.float32), gradients)

    return of_batch


def as_computed(params: Any, dtype: str) -> Any:
    """Parameters as the model multiplies them: matrices in the compute type, the rest float32."""
    return jax.tree.map(lambda p, matrix: p.astype(dtype) if matrix else p, params, decayed(params))


def kept_specs(config: Config, mesh: Mesh | AbstractMesh, axes: Any, abstract: State) -> Any:
    """The PartitionSpec of each parameter, its gradient and what the optimizer keeps for it."""
    specs = partition.param_specs(axes)
    if not config.compute.shard_optimizer:
        return specs

    def leaf(x: jax.ShapeDtypeStruct, names: tuple[str, ...], split: P) -> P:
        # Each layer is split, where it can be, rather than the stack: it may be sent by itself.
        stacked = int(names[0] == "layers")
        over = partition.over_data(mesh, P(*split[stacked:]), x.shape[stacked:])
        layer_split = P(*split[:stacked], *over)
        return layer_split if "data" in over else partition.over_data(mesh, split, x.shape)

    return jax.tree.map(leaf, abstract["params"], axes, specs)


def sent_by_layer(config: Config, axes: Any, abstract: State, kept: Any) -> Any:
    """Which parameters are: stacked matrices, where no loop over the layers is left to stack them.

    Then a layer's gradient is sent while those of the layers below are computed.
    """
    layers = config.model.num_hidden_layers
    unrolled = (config.compute.unroll_layers or layers) >= layers

    def leaf(matrix: bool, names: tuple[str, ...], split: P) -> bool:
        return unrolled and matrix and names[0] == "layers" and split[0] != "data"

    return jax.tree.map(leaf, decayed(abstract["params"]), axes, kept)


def state_specs(config: Config, mesh: Mesh | AbstractMesh, axes: Any, abstract: State) -> dict:
    """The PartitionSpec of every array of the state, in a dict like the state's.

    In the optimizer's state a dict like the parameters' holds something for each of them (moments);
    the rest (counts) is whole on every device.
    """
    kept = kept_specs(config, mesh, axes, abstract)
    of_path = dict(jax.tree_util.tree_leaves_with_path(kept))

    def leaf(path: tuple, _: Any) -> P:
        tails = (path[start:] for start in range(len(path)))
        return next((of_path[tail] for tail in tails if tail in of_path), P())

    return {
        "step": P(),
        "params": kept,
        "opt": jax.tree_util.tree_map_with_path(leaf, abstract["opt"]),
        "nonfinite": jax.tree.map(lambda _: P(), abstract["nonfinite"]),
    }
