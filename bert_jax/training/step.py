"""The training and evaluation steps: one jitted pure function each."""

# Over 300 lines: both steps, and what compiles them with the same shardings.

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bert_jax.config.optimizer_settings import OptimizerConfig
from bert_jax.config.optimizers import OPTIMIZERS
from bert_jax.config.schema import Config, ModelConfig, PhaseConfig
from bert_jax.config.task_model import TaskModelConfig
from bert_jax.hardware.accelerators import BY_DEVICE_KIND
from bert_jax.model.neighbor_attention import neighbor_attention
from bert_jax.objectives import total as objectives
from bert_jax.objectives.corpus import Corpus
from bert_jax.objectives.disentangled_embeddings import summed
from bert_jax.objectives.distillation import DISTILLATION, taught
from bert_jax.objectives.encoder_with_heads import encoder_rows
from bert_jax.objectives.known_objectives import OBJECTIVES, learned_by
from bert_jax.objectives.masked_lm import MASKED_LM
from bert_jax.objectives.pretraining_model import declare, init_params, part_of, trains_apart
from bert_jax.objectives.replaced_tokens import REPLACED_TOKENS
from bert_jax.ops.attention import dispatch
from bert_jax.ops.hashing import fold_key
from bert_jax.optimizers.optimizer import optimizer_of, reset_for_phase
from bert_jax.optimizers.schedule import make_schedule
from bert_jax.parallel import global_batch, partition
from bert_jax.parallel.global_batch import Batch
from bert_jax.training import averaging, skip_nonfinite
from bert_jax.training.cached_gradients import AcrossRows
from bert_jax.training.fill_step import FILLS, guesses, has_fills
from bert_jax.training.gradients import GradientsFn, LossFn, cast_matrices, make_gradients
from bert_jax.training.second_network import SecondNetwork, second_network
from bert_jax.training.state_sharding import NO_PARAMS, State, param_specs, state_specs


@dataclasses.dataclass(frozen=True)
class StepFunctions:
    """The jitted functions of one configuration and mesh."""

    init: Callable[[], State]
    # (state, batch, teacher=None, micro_batches=1) -> (state, metrics); the state is donated.
    # Metrics, all replicated: loss, grad_norm, learning_rate, sums, and skipped (0 or 1) and
    # in_row, int32.
    train: jax.stages.Wrapped
    start_phase: jax.stages.Wrapped  # state -> state, at the start of a later phase; state donated
    # (params, batch) -> sums, replicated; for pretraining with the sums of each row, as below
    evaluate: jax.stages.Wrapped
    evaluate_rows: jax.stages.Wrapped  # (params, batch) -> sums of each row, sharded as the rows
    abstract: Any  # the state as ShapeDtypeStructs with shardings, for restoring into
    teacher: Any  # its parameters, in the same form; None without one
    rows: NamedSharding  # how the rows of a batch are sharded over the mesh

    def lower_train(self, rows: Mapping[str, np.ndarray], phase: PhaseConfig) -> jax.stages.Lowered:
        """Lowers `train` for a phase; `rows` give the shapes (any number of rows)."""
        batch = self.abstract_batch(rows, phase.batch_size)
        frozen = () if self.teacher is None else (self.teacher,)
        return self.train.lower(self.abstract, batch, *frozen, micro_batches=phase.micro_batches)

    def compile_train(
        self, rows: Mapping[str, np.ndarray], phase: PhaseConfig
    ) -> jax.stages.Compiled:
        """Compiles `train` ahead of time; see `lower_train`."""
        return self.lower_train(rows, phase).compile()

    def compile_evaluate(
        self, rows: Mapping[str, np.ndarray], batch_size: int
    ) -> jax.stages.Compiled:
        """Compiles `evaluate` ahead of time for batches of `batch_size` such rows."""
        batch = self.abstract_batch(rows, batch_size)
        return self.evaluate.lower(self.abstract["params"], batch).compile()

    def compile_start_phase(self) -> jax.stages.Compiled:
        """Compiles `start_phase` ahead of time."""
        return self.start_phase.lower(self.abstract).compile()

    def placed(self, params: Mapping[str, Any]) -> Any:
        """Returns those of the parameters that the functions take, on their devices."""
        target = self.abstract["params"]
        return jax.device_put(part_of(params, target), jax.tree.map(lambda x: x.sharding, target))

    def abstract_batch(self, rows: Mapping[str, np.ndarray], batch_size: int) -> dict[str, Any]:
        """Returns a batch of such rows as ShapeDtypeStructs with shardings."""
        return {
            name: jax.ShapeDtypeStruct((batch_size, *v.shape[1:]), v.dtype, sharding=self.rows)
            for name, v in rows.items()
        }


def make_step_functions(
    config: Config, mesh: Mesh, corpus: Corpus, teacher: ModelConfig | None = None
) -> StepFunctions:
    """Returns the jitted functions; nothing is compiled or allocated yet.

    Args:
        teacher: the architecture of the model that a training step learns from, for evaluation.

    Raises:
        UserError: a mesh axis does not divide a dimension that it shards, or the requested
            attention kernel does not support these devices or phases.
    """
    learned, compute = learned_by(config), dispatch.resolve(config, mesh)
    graph, declared = declare(config.model, compute, learned)
    axes, shapes = partition.param_axes(declared), nnx.to_pure_dict(declared)
    partition.check_fits(mesh, axes, shapes)
    specs = param_specs(config, mesh, axes, shapes)
    optimizer = optimizer_of(config, axes, partition.on_mesh(mesh, specs.storage))
    frozen = second_network(config, mesh, teacher) if teacher else None

    def init() -> State:
        params = init_params(config.model, config.compute, learned, jax.random.key(config.seed))
        return {
            "step": jnp.zeros((), jnp.int32),
            "params": params,
            **({"ema": params} if config.optimizer.ema_decay else {}),
            "opt": optimizer.init(params),
            "nonfinite": skip_nonfinite.start(),
        }

    def start_phase(state: State) -> State:
        return {**state, "opt": reset_for_phase(state["opt"], config.optimizer)}

    abstract = jax.eval_shape(init)
    computed = partition.on_mesh(mesh, specs.compute)
    shardings = partition.on_mesh(mesh, state_specs(specs, abstract))
    rows, replicated = global_batch.batch_sharding(mesh), NamedSharding(mesh, P())
    loss = _make_loss(config, graph, frozen, corpus)
    second = frozen.specs if frozen else NO_PARAMS
    across = _loss_across_rows(config, graph, learned, corpus)
    gradients_of = make_gradients(loss, rows, specs, second, compute.dtype, across)
    evaluation = functools.partial(_make_eval_step, config, graph, compute.dtype, computed, corpus)
    of_sums = _sums_shardings(config, learned, rows)
    # Without out_shardings XLA reshards some leaves, and the second step compiles again.
    return StepFunctions(
        init=jax.jit(init, out_shardings=shardings),
        train=jax.jit(
            _make_train_step(config, learned, optimizer, gradients_of),
            static_argnames="micro_batches",
            donate_argnums=0,
            out_shardings=(shardings, replicated),
            compiler_options=compiler_options(mesh, config.optimizer),
        ),
        start_phase=jax.jit(start_phase, donate_argnums=0, out_shardings=shardings),
        evaluate=jax.jit(evaluation(by_row=False), out_shardings=of_sums),
        evaluate_rows=jax.jit(evaluation(by_row=True), out_shardings=rows),
        abstract=partition.abstract_on(abstract, shardings),
        teacher=frozen.abstract if frozen else None,
        rows=rows,
    )


def _make_loss(
    config: Config, graph: nnx.GraphDef, frozen: SecondNetwork | None, corpus: Corpus
) -> LossFn:
    """Returns the loss of a training step; frozen: the teacher in pretraining, if there is one."""
    factors = {REPLACED_TOKENS.name: config.rtd_weight}

    def loss_fn(params: Any, second: Any, batch: Batch, key: jax.Array, counts: Any) -> tuple:
        model = nnx.merge(graph, params)
        if frozen is not None:
            return frozen.distill(model, second, batch, key, corpus, counts)
        outputs = model(batch, key)
        loss, sums = objectives.all_sums(outputs, batch, corpus, counts, factors)
        return objectives.with_teacher(loss, sums, outputs, batch, counts, config.task)

    return loss_fn


def _loss_across_rows(
    config: Config, graph: nnx.GraphDef, learned: tuple[str, ...], corpus: Corpus
) -> AcrossRows | None:
    """Returns the loss of a training step in two parts, if it compares the rows of all
    micro-batches; None if it is a sum over them."""
    if not any(OBJECTIVES[name].across_rows(config.model) for name in learned):
        return None

    def loss(outputs: Any, batch: Batch, counts: Any) -> tuple:
        return objectives.all_sums(outputs, batch, corpus, counts)

    return AcrossRows(lambda params, batch, key: nnx.merge(graph, params)(batch, key), loss)


def _make_eval_step(
    config: Config, graph: nnx.GraphDef, dtype: str, shardings: Any, corpus: Corpus, by_row: bool
) -> Callable[[Any, Batch], objectives.Sums]:
    """Returns the function (params, batch) -> sums to be jitted.

    Args:
        shardings: of the parameters during a step.
        by_row: the sums of each row, without attention on neighbours.
    """

    is_apart = trains_apart(config.model, learned_by(config))

    def eval_step(params: Any, batch: Batch) -> objectives.Sums:
        # Gather sharded parameters; otherwise the partitioner moves the rows of all devices.
        computed = jax.lax.with_sharding_constraint(cast_matrices(params, dtype), shardings)
        model = nnx.merge(graph, computed)
        outputs = model(batch)
        if by_row:
            return objectives.row_sums(outputs, batch, corpus)
        sums: dict[str, Any] = objectives.all_sums(outputs, batch, corpus)[1]
        if isinstance(config.model, TaskModelConfig):  # its metrics are no sums
            sums["outputs"] = outputs
        else:  # how much the means vary with the choice of documents
            sums[objectives.ROWS] = objectives.row_sums(outputs, batch, corpus)
        if config.evaluation.attention:
            read = nnx.merge(graph, summed(computed)) if is_apart else model
            sums["attention"] = neighbor_attention(read.encoder, encoder_rows(batch))
        if has_fills(config):
            sums[FILLS] = guesses(outputs[MASKED_LM.name], config.model.vocab_size)
        return sums

    return eval_step


def _sums_shardings(
    config: Config, learned: tuple[str, ...], rows: NamedSharding
) -> dict[str, NamedSharding]:
    """Returns how the results of `evaluate` are sharded: sums of each row stay with their rows."""
    names = [*learned, "tokens"]
    names += ["outputs"] if isinstance(config.model, TaskModelConfig) else [objectives.ROWS]
    names += ["attention"] if config.evaluation.attention else []
    replicated = NamedSharding(rows.mesh, P())
    names += [FILLS] if has_fills(config) else []
    return {n: rows if n in (objectives.ROWS, FILLS) else replicated for n in names}


def _make_train_step(
    config: Config,
    learned: tuple[str, ...],
    optimizer: optax.GradientTransformationExtraArgs,
    gradients_of: GradientsFn,
) -> Callable[..., tuple[State, dict]]:
    """Returns the function (state, batch, teacher, micro_batches) -> (state, metrics) to be jitted;
    teacher: its parameters, None without one."""
    schedule, limit = make_schedule(config), config.optimizer.max_nonfinite_steps

    def train_step(
        state: State, batch: Batch, teacher: Any = None, micro_batches: int = 1
    ) -> tuple[State, dict]:
        params, key = state["params"], fold_key(config.seed, state["step"])
        counts = objectives.denominators(batch, learned)
        if teacher is not None:
            counts[DISTILLATION] = jnp.maximum(taught(batch, config.distillation).sum(), 1)
        (loss, sums), gradients = gradients_of(
            params, teacher or {}, batch, key, counts, micro_batches
        )
        rate, norm = schedule(state["step"]), optax.tree.norm(gradients)
        updates, opt = optimizer.update(gradients, state["opt"], params, step=state["step"])
        update, counts_after = skip_nonfinite.should_update(state["nonfinite"], limit, loss, norm)

        def unless_skipped(new: jax.Array, old: jax.Array) -> jax.Array:
            return jnp.where(update, new, old)  # no lax.cond: no device waits for the host

        metrics = {
            "loss": loss,
            "grad_norm": norm,
            "learning_rate": rate,
            "sums": sums,
            "skipped": (~update).astype(jnp.int32),
            "in_row": counts_after["in_row"],
        }
        after: State = {
            "step": state["step"] + 1,
            "params": jax.tree.map(lambda p, u: unless_skipped(p - rate * u, p), params, updates),
            "opt": jax.tree.map(unless_skipped, opt, state["opt"]),
            "nonfinite": counts_after,
        }
        if "ema" in state:
            done = after["step"] - counts_after["total"]
            ema = averaging.average(
                state["ema"], after["params"], config.optimizer.ema_decay, jnp.maximum(done, 1)
            )
            after["ema"] = jax.tree.map(unless_skipped, ema, state["ema"])
        return after, metrics

    return train_step


def compiler_options(
    mesh: Mesh | AbstractMesh, optimizer: OptimizerConfig
) -> dict[str, str | bool] | None:
    """Returns the compiler options of a step on these devices; None for the defaults."""
    if isinstance(mesh, AbstractMesh):
        return None
    device = mesh.devices.flat[0]
    options: dict[str, str | bool] = {}
    accelerator = BY_DEVICE_KIND.get(device.device_kind)
    if accelerator and accelerator.fusion_kib:
        options["xla_tpu_scoped_vmem_limit_kib"] = str(accelerator.fusion_kib)
    if device.platform == "cpu":
        # Without it the moments are copied, by one thread, before they are updated in place.
        options["xla_cpu_copy_insertion_use_region_analysis"] = True
    options |= OPTIMIZERS[optimizer.name].compiler_options.get(device.platform, {})
    return options or None
