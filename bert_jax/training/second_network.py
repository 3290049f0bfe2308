"""A second, frozen network that a training step sees: the teacher."""

import dataclasses
from typing import Any

import jax
from flax import nnx
from jax.sharding import Mesh

from bert_jax.config.distillation_settings import DistillationConfig
from bert_jax.config.schema import Config, ModelConfig
from bert_jax.objectives.corpus import Corpus
from bert_jax.objectives.distillation import distillation_sums
from bert_jax.objectives.encoder_with_heads import PretrainingModel
from bert_jax.objectives.masked_lm import MASKED_LM
from bert_jax.objectives.pretraining_model import declare
from bert_jax.objectives.total import Sums
from bert_jax.ops.attention import dispatch
from bert_jax.parallel import partition
from bert_jax.parallel.collectives import is_pure_data_parallel
from bert_jax.parallel.global_batch import Batch
from bert_jax.parallel.mesh import axis_size
from bert_jax.training.state_sharding import ParamSpecs, param_specs


@dataclasses.dataclass(frozen=True)
class SecondNetwork:
    """The teacher as a step sees it.

    Attributes:
        specs: how its parameters are sharded.
        abstract: its parameters as ShapeDtypeStructs with shardings.
        settings: of the loss.
        groups: of rows, see `ops.distillation_loss`.
    """

    graph: nnx.GraphDef
    specs: ParamSpecs
    abstract: Any
    settings: DistillationConfig
    groups: int

    def distill(
        self,
        student: PretrainingModel,
        params: Any,
        batch: Batch,
        key: jax.Array,
        corpus: Corpus,
        counts: dict[str, jax.Array],
    ) -> tuple[jax.Array, Sums]:
        """Returns the loss of the student and the sums behind it; params: of this network."""
        teacher = nnx.merge(self.graph, params)
        return distillation_sums(
            student, teacher, batch, key, corpus, counts, self.settings, self.groups
        )


def second_network(config: Config, mesh: Mesh, model: ModelConfig) -> SecondNetwork:
    """Returns the teacher of a run as its step sees it.

    model: of the teacher, for evaluation.

    Raises:
        UserError: a mesh axis does not divide a dimension that it shards.
    """
    # Not a Config with the teacher as its model: pairing and phases are about the student's form.
    compute = dispatch.resolve(config, mesh, model)
    graph, abstract = declare(model, compute, (MASKED_LM.name,))
    axes, shapes = partition.param_axes(abstract), nnx.to_pure_dict(abstract)
    partition.check_fits(mesh, axes, shapes)
    specs = param_specs(config, mesh, axes, shapes, model)
    shardings = partition.on_mesh(mesh, specs.storage)
    groups = 1 if is_pure_data_parallel(mesh) else axis_size(mesh, partition.AXES["batch"])
    return SecondNetwork(
        graph, specs, partition.abstract_on(shapes, shardings), config.distillation, groups
    )
