"""The model that a run learns from, `config.teacher`: a second tree of parameters, never changed.

It is sharded as the run's own parameters and stays out of checkpoints; a run records its digest,
and resumes only with the same one.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
from flax import nnx

from bert_jax.checkpoint.fingerprint import path_of
from bert_jax.config.defaults import ARCHITECTURE
from bert_jax.config.schema import ComputeConfig, Config, ModelConfig
from bert_jax.convert import weights
from bert_jax.convert.sources import read_model
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.objectives.known_objectives import learned_by
from bert_jax.objectives.masked_lm import MASKED_LM
from bert_jax.objectives.pretraining_model import declare, part_of
from bert_jax.objectives.replaced_tokens import REPLACED_TOKENS, to_give
from bert_jax.parallel.partition import place
from bert_jax.runtime.log import logger
from bert_jax.training.initial import arrays_digest, fitted_rows
from bert_jax.training.initial_checks import check_source
from bert_jax.training.initial_vocabulary import first_difference, read_otherwise
from bert_jax.training.run_data import RunData
from bert_jax.training.state_sharding import State
from bert_jax.workdir.layout import Workdir, split_step

OBJECTIVES = (MASKED_LM.name,)  # of which a teacher has the head
# Settings of the architecture that may differ where layers are copied, or are compared apart: by
# the others layers and tables are computed.
_NOT_OF_A_LAYER = {
    "num_hidden_layers", "num_hidden_groups", "type_vocab_size", "max_position_embeddings",
    "layout", "classifier_pooling",
}  # fmt: skip
_LAYERS = "params/encoder/layers/"
_POSITIONS = "params/encoder/embeddings/position"


@dataclasses.dataclass(frozen=True)
class Teacher:
    """A model to learn from.

    Attributes:
        model: its architecture, for evaluation, with the run's padding of the vocabulary.
        params: encoder and masked-token head, NumPy arrays.
        digest: of its arrays, which the run records.
    """

    model: ModelConfig
    params: Mapping[str, Any]
    digest: str

    def placed(self, shardings: Any) -> Any:
        """Returns the parameters on their devices."""
        return jax.tree.map(place, self.params, shardings)


def for_evaluation(model: ModelConfig, student: ModelConfig) -> ModelConfig:
    """Returns a teacher's architecture without dropout, with the student's rows of the vocabulary:
    of those that a teacher has beyond its tokenizer's entries, none can be predicted."""
    return dataclasses.replace(
        model,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        teacher_width=0,
        vocab_size=student.vocab_size,
        pad_vocab_to_multiple_of=student.pad_vocab_to_multiple_of,
    )


def check_has_teacher(config: Config) -> None:
    """Raises UserError for settings of a teacher in a run without one."""
    if config.teacher:
        return
    for name in config.distillation.changed:
        if config.task.name:
            raise UserError(
                f"config.distillation.{name} is of pretraining; a task has config.task.teacher, "
                "config.task.temperature and config.task.teacher_weight"
            )
        raise UserError(
            f"config.distillation.{name} needs a model; set config.teacher to a run at "
            "a step (run@4000), an import or an export"
        )
    if config.model.teacher_width:
        raise UserError(
            f"config.model.teacher_width={config.model.teacher_width}: follows from "
            "config.teacher; leave it out"
        )


def find_teacher(config: Config, data: RunData) -> Teacher | None:
    """Returns the model that `config.teacher` names, checked against the run; None if it names
    none.

    Raises:
        UserError: no such model; it has another vocabulary, no masked-token head, fewer positions
            than the rows or not the layers to copy; it teaches what the run does not learn; or no
            teacher where one is needed.
    """
    source = config.teacher
    check_has_teacher(config)
    if not source:
        return None
    where = f"config.teacher={source}"
    check_source(source, "config.teacher")
    check_pinned(source)
    read = read_model(source)
    _check(where, config, data, read.config, read.params, read.tokenizer)
    model = for_evaluation(read.config, config.model)
    exact = _fitted(read.params, dataclasses.replace(model, pad_vocab_to_multiple_of=1))
    return Teacher(model, _fitted(exact, model), arrays_digest(exact))


def _fitted(params: Mapping[str, Any], model: ModelConfig) -> dict[str, Any]:
    """Returns encoder and masked-token head with as many rows of the vocabulary as a model has."""
    shapes = nnx.to_pure_dict(declare(model, ComputeConfig.plain(), OBJECTIVES)[1])
    return jax.tree.map(fitted_rows, part_of(params, shapes), shapes)


def _check(
    where: str,
    config: Config,
    data: RunData,
    model: ModelConfig,
    params: Mapping[str, Any],
    tokenizer: Tokenizer,
) -> None:
    """Raises UserError for a teacher that the run cannot learn from."""
    if config.task.name:
        raise UserError(f"{where}: of pretraining; a task has its own teacher, config.task.teacher")
    if MASKED_LM.head not in params:
        groups = sorted(weights.groups_in(params))
        raise UserError(
            f"{where}: it has no masked-language-model head, only "
            f"{', '.join(map(weights.title, groups))}; {to_give(groups)}"
        )
    learned = learned_by(config)
    if MASKED_LM.name not in learned or REPLACED_TOKENS.name in learned:
        raise UserError(
            f"{where}: a student learns {MASKED_LM.name}, without replaced-token detection, but "
            f"this run learns {','.join(learned)}; change config.objectives or "
            "config.data.replaced_tokens, or leave the teacher out"
        )
    _check_vocabulary(where, data, tokenizer)
    check_architecture(config, model)


def check_pinned(source: str) -> None:
    """Raises UserError for `config.teacher` that names a run without a step."""
    path, step = split_step(source)
    if step is None and Workdir.open(path).is_run():
        where = f"config.teacher={source}"
        raise UserError(f"{where}: a run, whose newest step may change; give one: {where}@STEP")


def check_architecture(config: Config, model: ModelConfig) -> None:
    """Raises UserError for a teacher that cannot read a phase's rows, or that lacks the layers that
    the student starts as."""
    where = f"config.teacher={config.teacher}"
    longest = max(phase.seq_length for phase in config.phases)
    if model.max_position_embeddings < longest:
        raise UserError(
            f"{where}: it has {model.max_position_embeddings} positions, but a phase has "
            f"seq_length={longest}; lower it, or give another teacher"
        )
    if config.distillation.layers:
        _check_layers(where, config, model)


def _check_layers(where: str, config: Config, theirs: ModelConfig) -> None:
    """Raises UserError if the student's layers cannot start as those of its teacher."""
    ours, settings = config.with_model_of(config.phases[0]).model, config.distillation
    copied = f'config.distillation.teacher_layers="{settings.teacher_layers}"'
    if lacking := [n for n in settings.layers if n >= theirs.num_hidden_layers]:
        raise UserError(
            f"{where}: it has layers 0 to {theirs.num_hidden_layers - 1}, but {copied} copies "
            f"{lacking[0]}"
        )
    form = [name for name in ARCHITECTURE if name not in _NOT_OF_A_LAYER]
    differ = [name for name in form if getattr(theirs, name) != getattr(ours, name)]
    if theirs.type_vocab_size and ours.type_vocab_size not in (0, theirs.type_vocab_size):
        differ.append("type_vocab_size")
    if ours.position == "learned" and theirs.max_position_embeddings < ours.max_position_embeddings:
        differ.append("max_position_embeddings")
    if differ:
        values = " ".join(f"--config.model.{name}={getattr(theirs, name)}" for name in differ)
        raise UserError(
            f"{where}: {copied} copies layers of another form than config.model has; set {values}, "
            'or teacher_layers to ""'
        )
    starts = [place for place, layer in enumerate(settings.layers) if layer == 0]
    if not ours.first_attention_norm and starts != [0]:
        raise UserError(
            f"{where}: {copied}, but only the student's first layer may lack the LayerNorm before "
            "attention, as the teacher's layer 0 does; begin with 0, and name it once"
        )


def _check_vocabulary(where: str, data: RunData, theirs: Tokenizer) -> None:
    """Raises UserError for other entries than the store's; warns of texts read otherwise."""
    if different := first_difference(theirs, data.tokenizer):
        raise UserError(
            f"{where}: another vocabulary than the store's: {different}; build the store with the "
            f"tokenizer of the teacher, or give a teacher of {data.path}"
        )
    if otherwise := read_otherwise(theirs, data.tokenizer):
        logger.warning(f"{where}: {otherwise}; build the store with the tokenizer of the teacher")


def start_as(state: State, teacher: Teacher, config: Config) -> State:
    """Returns the state of a new student with layers, embeddings and head of its teacher.

    Of more positions than the student has, the first are taken; of layers that share their
    parameters, each has those of its group.
    """
    shared = teacher.model.num_hidden_layers // teacher.model.layers_of_parameters
    layers = [layer // shared for layer in config.distillation.layers]
    given = {
        f"params/{path_of(path)}": leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(teacher.params)
    }

    def copied(path: tuple, leaf: jax.Array) -> jax.Array:
        name = path_of(path)
        if (array := given.get(name)) is None:
            return leaf
        if name.startswith(_LAYERS):
            array = array[layers]
        elif name == _POSITIONS:
            array = array[: len(leaf)]
        return place(array.astype(leaf.dtype), leaf.sharding)

    params = jax.tree_util.tree_map_with_path(copied, {"params": state["params"]})
    return {**state, **params}
