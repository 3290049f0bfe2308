"""The model that a run starts from, `config.init`: its parameters replace the random ones.

With `config.init_optimizer=carry` the run takes the moments and the step of its optimizer too. The
step is that of the run: its first batch, its learning rate and its phase are those of this step,
as if the run had done the updates before it.
"""

# Over 300 lines: what a run takes of a model is read, fitted and refused in one order.

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from bert_jax.checkpoint.fingerprint import by_path, path_of
from bert_jax.checkpoint.manager import chosen_step, known_run, read_own_meta
from bert_jax.config.recorded import config_of
from bert_jax.config.schema import Config, ModelConfig
from bert_jax.config.task_model import HeadConfig, TaskModelConfig
from bert_jax.convert import weights
from bert_jax.convert.hf_config import ORIGIN
from bert_jax.convert.model_folders import local_folder
from bert_jax.convert.reader import read_folder
from bert_jax.convert.run_encoder import encoder_of_run
from bert_jax.convert.sources import read_checkpoint
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError, count
from bert_jax.model.vector_layers import is_layer
from bert_jax.objectives.disentangled_embeddings import GENERATOR, apart
from bert_jax.objectives.encoder_with_heads import TEACHER_PROJECTION
from bert_jax.objectives.known_objectives import learned_by
from bert_jax.objectives.pretraining_model import trains_apart, vocabulary_paths
from bert_jax.objectives.replaced_tokens import REPLACED_TOKENS
from bert_jax.parallel.partition import place
from bert_jax.runtime.log import logger
from bert_jax.storage import hub
from bert_jax.storage.digest import json_digest, sha256
from bert_jax.training import claim, initial_encoder, optimizer_state
from bert_jax.training.initial_checks import (
    check_architecture,
    check_generator,
    check_keys,
    check_source,
)
from bert_jax.training.initial_vocabulary import (
    VocabularyRows,
    extended,
    first_difference,
    read_otherwise,
    replaced,
)
from bert_jax.training.optimizer_state import OptimizerState
from bert_jax.training.run_data import RunData
from bert_jax.training.state_sharding import State
from bert_jax.workdir import words_reached
from bert_jax.workdir.layout import Workdir, split_step

_DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")
_POSITION_TABLE = ("embeddings", "position")  # the end of its path


@dataclasses.dataclass(frozen=True)
class InitialState:
    """The part of a run's initial state that comes from a model, in the vocabulary of the run.

    Attributes:
        leaves: path in the state of a run -> array. Of the parameters, without heads that the model
            lacks; only with `config.init_optimizer=carry` "step", those below "opt" and, of a run,
            those below "ema" and "nonfinite".
        groups: of parameters, see `weights.groups_in`; also those that the run lacks.
        digest: of the model's parameters and optimizer, as it has them.
        copied: bool [V], the entries that have rows of the model; None: all.
        notes: what was made of its vocabulary and its positions, a line each.
        origin: name and commit of a model on the hub, or that was imported from there, or from
            which the run before started.
        words: that the run before had seen at its step, if they are counted and the step is taken.
    """

    leaves: Mapping[str, np.ndarray]
    groups: frozenset[str]
    digest: str
    copied: np.ndarray | None = None
    notes: tuple[str, ...] = ()
    origin: str = ""
    words: float | None = None

    @property
    def step(self) -> int:
        """Updates done before the run."""
        return int(self.leaves.get("step", 0))


@dataclasses.dataclass(frozen=True)
class InitialModel:
    """A model to start from.

    Attributes:
        digest: of its arrays, which the run records, as it does the next two.
        step: updates done before the run.
        origin, words: see `InitialState`.
    """

    source: str
    digest: str
    step: int
    origin: str
    read: Callable[[], InitialState]
    words: float | None = None


def find_initial(
    config: Config, workdir: Workdir, data: RunData, given: str = ""
) -> InitialModel | None:
    """Returns the model that `config.init` names, checked against the run; None if it names none.

    A run that resumes does not need it any more: if its config.json names the same one, what is
    recorded there is returned and nothing is read.

    Args:
        given: `config.init` as the user wrote it, for messages.

    Raises:
        UserError: no such model, its architecture, vocabulary or optimizer is not that of the run,
            or a key that says how to use a model although `config.init` names none.
    """
    check_keys(config)
    source = config.init
    if not source:
        return None
    recorded, started = claim.recorded_run(workdir, config)
    if recorded and started and recorded["config"].get("init") == source:
        known = recorded["data"]
        digest, step = known.get("init", ""), known.get("init_step", 0)
        origin = recorded.get("init_origin", "")
        words = recorded.get(words_reached.BEFORE)
        return InitialModel(source, digest, step, origin, lambda: _read(config, data), words)
    check_source(given or source)
    found = _read(config, data)
    return InitialModel(source, found.digest, found.step, found.origin, lambda: found, found.words)


def start_from(state: State, model: InitialModel) -> tuple[State, list[str]]:
    """Returns the state of a new run with the model's arrays, and the lines to log: the parts that
    it lacks, which keep their random values, those that the run lacks, and what was made of its
    vocabulary.

    Of more positions than the run has, the first are taken. Rows that a vocabulary has only for the
    hardware are not read: they may be those of the model, or zero.
    """
    found, new = model.read(), set[str]()

    def with_given(path: tuple, leaf: jax.Array) -> jax.Array:
        name = path_of(path)
        if (given := found.leaves.get(name)) is None:
            if name.startswith("params/"):
                new.add(_group_of(name))
            return leaf
        return place(fitted_rows(given, leaf), leaf.sharding)

    state = jax.tree_util.tree_map_with_path(with_given, state)
    lost = found.groups - weights.groups_in(state["params"]) - state["params"].keys()
    carried = f" at its step {found.step:,}, with the moments" if "step" in found.leaves else ""
    line = f"starts from {model.source}{carried}"
    for what, groups in (("new, with random values", new), ("left out", lost)):
        if groups:
            line += f"; {what}: {', '.join(map(weights.title, sorted(groups)))}"
    return state, [line, *found.notes]


def _group_of(path: str) -> str:
    """Returns the group of a parameter, for `weights.title`."""
    _, group, *below = path.split("/")
    if "pooler" in below:
        return "pooler"
    return "dense layers" if is_layer(below[0]) else group


def fitted_rows(given: np.ndarray, like: jax.Array | jax.ShapeDtypeStruct) -> np.ndarray:
    """Returns an array of the shape and dtype of another with as many of the given rows as it has;
    those that are left are zero."""
    fitting = np.zeros(like.shape, like.dtype)
    rows = np.s_[: min(len(given), len(fitting))] if given.shape else ()
    fitting[rows] = given[rows]
    return fitting


def _read(config: Config, data: RunData) -> InitialState:
    """Reads the model that `config.init` names; errors as `find_initial`."""
    path, step = split_step(config.init)
    run, carry = Workdir.open(path), config.init_optimizer == "carry"
    optimizer: OptimizerState | None = None
    others: Mapping[str, np.ndarray] = {}
    words: float | None = None
    if run.is_run():
        known = known_run(run)
        step = chosen_step(run, step, known)
        meta = read_own_meta(run, step, known)
        read = read_checkpoint(config.init, run, step, config.init_weights)
        params, model, tokenizer, origin = read.params, read.config, read.tokenizer, read.origin
        sentence = encoder_of_run(config_of(meta), params)
        if carry:
            optimizer = optimizer_state.of_checkpoint(run, step, padding=True)
            others = optimizer_state.average_of(run, step, config)
            words = words_reached.words_at(meta, step)
    else:
        if config.init_weights == "ema":
            raise UserError(
                f"config.init_weights=ema: {config.init} is no run, which has one set of weights; "
                "leave it out"
            )
        with local_folder(path, optimizer=carry) as folder:
            stored = read_folder(folder)
            model, tokenizer, sentence = stored.config, stored.tokenizer, stored.sentence
            origin = str(stored.values.get(ORIGIN, ""))
            if hub.is_hub(path):
                origin = hub.origin_of(hub.parse_model(path))
            params = weights.from_transformers(stored.tensors, model, stored.pad_token_id)
            if carry:
                optimizer = optimizer_state.read_state(folder)
    left_out = initial_encoder.left_out(sentence, config, data.tokenizer)
    is_detection = REPLACED_TOKENS.name in learned_by(config)
    if GENERATOR in params and not is_detection:
        left_out += (f"{config.init} is a discriminator; its generator is left out",)
    vocabulary = _vocabulary(config, run, tokenizer, data)
    kept = max(tokenizer.vocab_size, config.model.vocab_size)
    if (unused := model.vocab_size - kept) > 0:
        left_out += (f"{count(unused, 'row')} of the vocabulary without an entry: left out",)
    check_architecture(config, model, optimizer.step if optimizer else 0)
    if GENERATOR in params and is_detection:
        check_generator(config, model)
    params = _without_another_head(params, model, config.model)
    params = _without_another_projection(params, config.model)
    params = initial_encoder.with_dense_layers(params, sentence, config)
    if trains_apart(config.model, learned_by(config)):
        params = apart(params)
    if optimizer:
        leaves = initial_encoder.with_own_paths(optimizer.leaves, config)
        optimizer = dataclasses.replace(optimizer, leaves=leaves)
        others = initial_encoder.with_own_paths(others, config)
        others = optimizer_state.taken_average(others, params, config)
    if not config.task.name:
        left_out += _other_dropout(config.model, model)
    found = _fitted(params, optimizer, config, vocabulary)
    notes, leaves = (*found.notes, *left_out), {**found.leaves, **others}
    return dataclasses.replace(found, leaves=leaves, origin=origin, notes=notes, words=words)


def _without_another_head(
    params: Mapping[str, Any], theirs: ModelConfig, ours: ModelConfig
) -> Mapping[str, Any]:
    """Returns the parameters without the head of a task that has other labels, or reads other
    layers or other dense layers than the run's."""
    if not isinstance(theirs, TaskModelConfig) or not isinstance(ours, TaskModelConfig):
        return params

    def reads(head: HeadConfig) -> tuple[Any, ...]:
        return head.labels, head.layers, head.join, head.pooling, head.vector_layers

    if reads(theirs.head) == reads(ours.head):
        return params
    return {name: part for name, part in params.items() if name != theirs.head.name}


def _without_another_projection(params: Mapping[str, Any], ours: ModelConfig) -> Mapping[str, Any]:
    """Returns the parameters without a dense layer to the states of a teacher, if the run's teacher
    has another width. Of a run without a teacher it is named as left out."""
    given = params.get(TEACHER_PROJECTION)
    if given is None or ours.teacher_width in (0, given["kernel"].shape[-1]):
        return params
    return {name: part for name, part in params.items() if name != TEACHER_PROJECTION}


def _fitted(
    params: Mapping[str, Any],
    optimizer: OptimizerState | None,
    config: Config,
    vocabulary: VocabularyRows | None,
) -> InitialState:
    """Returns the arrays with the vocabulary and the positions of the run."""
    positions, notes = config.model.max_position_embeddings, list[str]()
    with_vocabulary = set[tuple[str, ...]]()
    if vocabulary:
        learned = learned_by(config)
        with_vocabulary = vocabulary_paths(config.model, learned)
        notes.append(vocabulary.line(config.init_entries))

    def fitted(path: tuple, given: np.ndarray) -> np.ndarray:
        names = tuple(key.key for key in path)
        if vocabulary and names in with_vocabulary:
            return vocabulary.take(given)
        if names[-2:] == _POSITION_TABLE and len(given) < positions:
            if names[0] == "encoder":
                copied = f"{len(given):,} of {positions:,} copied"
                notes.append(f"positions: {copied}, the rest repeat them")
            return np.resize(given, (positions, *given.shape[1:]))
        return given

    leaves = by_path({"params": jax.tree_util.tree_map_with_path(fitted, params)})
    carried = {}
    if optimizer:
        carried = optimizer_state.leaves_for_run(optimizer, leaves, config, config.init)
    groups = frozenset(weights.groups_in(params) | {TEACHER_PROJECTION} & params.keys())
    copied = vocabulary.source >= 0 if vocabulary else None
    return InitialState(
        leaves | carried, groups, arrays_digest(params, carried), copied, tuple(notes)
    )


def _other_dropout(ours: ModelConfig, theirs: ModelConfig) -> tuple[str, ...]:
    """Returns a line on the rates at which a run drops values, if the model has others."""
    given = {name: getattr(theirs, name) for name in _DROPOUTS}
    if given == {name: getattr(ours, name) for name in _DROPOUTS}:
        return ()
    flags = " ".join(f"--config.model.{name}={rate}" for name, rate in given.items())
    return (f"the model has other dropout than this run: {flags}",)


def _vocabulary(
    config: Config, folder: Workdir, theirs: Tokenizer, data: RunData
) -> VocabularyRows | None:
    """Returns the model's rows of the data's entries; None if both vocabularies are the same."""
    ours = data.tokenizer
    if config.init_vocabulary == "replace":
        return replaced(theirs, ours)
    if config.init_vocabulary == "extend":
        try:
            return extended(theirs, ours)
        except UserError as error:
            raise UserError(f"config.init={folder}: {error}") from None
    if not first_difference(theirs, ours):
        if otherwise := read_otherwise(theirs, ours):
            logger.warning(
                f"config.init={folder}: {otherwise}; import the model, and build the store with "
                "the tokenizer.json of the import"
            )
        return None
    own = f"--tokenizer={config.init if hub.is_hub(config.init) else folder.tokenizer}"
    if not hub.is_hub(config.init) and not folder.tokenizer.exists():
        own = f"the tokenizer.json that `bert-jax convert import --from={folder} --out=…` writes"
    raise UserError(
        f"config.init={folder}: its vocabulary is not that of the store {data.path}; build the "
        f"store with {own}, or set config.init_vocabulary to extend or replace"
    )


def arrays_digest(
    params: Mapping[str, Any], others: Mapping[str, np.ndarray] = MappingProxyType({})
) -> str:
    """Returns the sha256 of all arrays by name."""
    named = {jax.tree_util.keystr(p): x for p, x in jax.tree_util.tree_leaves_with_path(params)}
    arrays = {**named, **others}
    return json_digest(
        {name: sha256(np.ascontiguousarray(array).tobytes()) for name, array in arrays.items()}
    )
