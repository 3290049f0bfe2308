"""The model that a run starts from, `config.init`: its parameters replace the random ones."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bert_jax.config.defaults import ARCHITECTURE
from bert_jax.config.schema import Config, ModelConfig
from bert_jax.convert import weights
from bert_jax.convert.reader import read_folder
from bert_jax.convert.sources import read_checkpoint
from bert_jax.data_pipeline.storage.digest import json_digest, sha256
from bert_jax.data_pipeline.storage.remote import is_remote
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.objectives.pretraining_model import declare
from bert_jax.objectives.registry import chosen
from bert_jax.parallel.partition import param_axes
from bert_jax.training import claim
from bert_jax.training.initial_vocabulary import VocabularyRows, extended, replaced
from bert_jax.training.state_sharding import State
from bert_jax.workdir.layout import Workdir, split_step

_POSITIONS = "max_position_embeddings"  # the only setting of these that may differ
_POSITION_TABLE = ("encoder", "embeddings", "position")


@dataclasses.dataclass(frozen=True)
class InitialParams:
    """The parameters of a model, in the vocabulary and the positions of the run.

    Attributes:
        params: float32 NumPy arrays, without heads that the model lacks.
        digest: of the parameters as the model has them.
        notes: what was made of its vocabulary and its positions, a line each.
    """

    params: Mapping[str, Any]
    digest: str
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class InitialModel:
    """A model to start from.

    Attributes:
        digest: of its parameters, which the run records.
    """

    source: str
    digest: str
    read: Callable[[], InitialParams]


def find_initial(config: Config, workdir: Workdir, store: TokenStore) -> InitialModel | None:
    """Returns the model that `config.init` names, checked against the run; None if it names none.

    A run that resumes does not need it any more: if its config.json names the same one, the digest
    there is returned and nothing is read.

    Raises:
        UserError: no such model, its architecture or vocabulary is not that of the run, or a key
            that says how to use a model although `config.init` names none.
    """
    source = config.init
    if not source:
        for key in ("init_vocabulary", "init_positions"):
            if getattr(config, key) != "same":
                value = getattr(config, key)
                raise UserError(f"config.{key}={value} has no effect without config.init; set it")
        return None
    if is_remote(source):
        raise UserError(f"config.init={source}: give a local folder; copy it to every machine")
    recorded, started = claim.recorded_run(workdir, config)
    if recorded and started and recorded["config"].get("init") == source:
        digest = recorded["data"].get("init", "")
        return InitialModel(source, digest, lambda: _read(config, store))
    found = _read(config, store)
    return InitialModel(source, found.digest, lambda: found)


def start_from(state: State, model: InitialModel) -> tuple[State, list[str]]:
    """Returns the state of a new run with the model's parameters, and the lines to log: the parts
    that it lacks, which keep their random values, those that the run lacks, and what was made of
    its vocabulary.

    Of more positions than the run has, the first are taken. Rows that a vocabulary has only for the
    hardware are not read: they may be those of the model, or zero.
    """
    found, new = model.read(), set[str]()

    def with_given(path: tuple, leaf: jax.Array) -> jax.Array:
        names = [key.key for key in path]
        given: Any = found.params
        for name in names:
            given = given.get(name) if isinstance(given, Mapping) else None
        if given is None:
            new.add("pooler" if "pooler" in names else names[0])
            return leaf
        fitting = np.zeros(leaf.shape, leaf.dtype)
        rows = min(len(given), len(fitting))
        fitting[:rows] = given[:rows]
        return jax.make_array_from_callback(leaf.shape, leaf.sharding, lambda index: fitting[index])

    params = jax.tree_util.tree_map_with_path(with_given, state["params"])
    line, lost = (
        f"starts from {model.source}",
        weights.groups_in(found.params) - weights.groups_in(params),
    )
    for what, groups in (("new, with random values", new), ("left out", lost)):
        if groups:
            line += f"; {what}: {', '.join(map(weights.title, sorted(groups)))}"
    return {**state, "params": params}, [line, *found.notes]


def _read(config: Config, store: TokenStore) -> InitialParams:
    """Reads the model that `config.init` names; errors as `find_initial`."""
    path, step = split_step(config.init)
    run = Workdir.open(path)
    if run.checkpoints.is_dir():
        read = read_checkpoint(config.init, run, step)
        params, model, tokenizer = read.params, read.config, read.tokenizer
    else:
        stored = read_folder(Path(path))
        model, tokenizer = stored.config, stored.tokenizer
        params = weights.from_transformers(stored.tensors, model, stored.pad_token_id)
    vocabulary = _vocabulary(config, run, tokenizer, store)
    _check_architecture(config, model)
    return _fitted(params, config, vocabulary)


def _fitted(
    params: Mapping[str, Any], config: Config, vocabulary: VocabularyRows | None
) -> InitialParams:
    """Returns the parameters with the vocabulary and the positions of the run."""
    positions, notes = config.model.max_position_embeddings, list[str]()
    with_vocabulary = _with_vocabulary(config) if vocabulary else set()
    if vocabulary:
        notes.append(str(vocabulary))

    def fitted(path: tuple, given: np.ndarray) -> np.ndarray:
        names = tuple(key.key for key in path)
        if vocabulary and names in with_vocabulary:
            return vocabulary.take(given)
        if names == _POSITION_TABLE and len(given) < positions:
            notes.append(f"positions: {len(given):,} of {positions:,} copied, the rest repeat them")
            return np.resize(given, (positions, *given.shape[1:]))
        return given

    fitting = jax.tree_util.tree_map_with_path(fitted, params)
    return InitialParams(fitting, _digest(params), tuple(notes))


def _with_vocabulary(config: Config) -> set[tuple[str, ...]]:
    """Returns the names of the run's parameters that have a row for each entry."""
    learned = chosen(config.data, config.objectives)
    axes = param_axes(declare(config.model, config.compute, learned)[1])
    leaves = jax.tree_util.tree_leaves_with_path(axes, is_leaf=lambda x: isinstance(x, tuple))
    return {tuple(key.key for key in path) for path, names in leaves if names[0] == "vocab"}


def _check_architecture(config: Config, theirs: ModelConfig) -> None:
    ours, fixed = config.model, [name for name in ARCHITECTURE if name != _POSITIONS]
    differ = [name for name in fixed if getattr(theirs, name) != getattr(ours, name)]
    lacks = theirs.max_position_embeddings < ours.max_position_embeddings
    refused = ours.position == "learned" and config.init_positions == "same" and lacks
    if refused:
        differ.append(_POSITIONS)
    if differ:
        values = " ".join(f"--config.model.{name}={getattr(theirs, name)}" for name in differ)
        grow = ", or --config.init_positions=repeat for more positions" if refused else ""
        raise UserError(
            f"config.init={config.init}: another architecture than config.model; use {values}{grow}"
        )


def _vocabulary(
    config: Config, folder: Workdir, theirs: Tokenizer, store: TokenStore
) -> VocabularyRows | None:
    """Returns the model's rows of the store's entries; None if both vocabularies are the same."""
    ours = Tokenizer.load(store.tokenizer_path)
    if config.init_vocabulary == "replace":
        return replaced(theirs, ours)
    if config.init_vocabulary == "extend":
        try:
            return extended(theirs, ours)
        except UserError as error:
            raise UserError(f"config.init={folder}: {error}") from None
    same_size = theirs.vocab_size == ours.vocab_size
    if same_size and all(theirs.token(i) == ours.token(i) for i in range(ours.vocab_size)):
        return None
    raise UserError(
        f"config.init={folder}: its vocabulary is not that of the store {store.path}; build the "
        f"store with --tokenizer={folder.tokenizer}, or set config.init_vocabulary to extend or "
        "replace"
    )


def _digest(params: Mapping[str, Any]) -> str:
    """Returns the sha256 of all parameters by name."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    digests = {
        jax.tree_util.keystr(path): sha256(np.ascontiguousarray(leaf).tobytes())
        for path, leaf in leaves
    }
    return json_digest(digests)
