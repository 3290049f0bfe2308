"""The model that a run starts from, `config.init`: its parameters replace the random ones."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bert_jax.config.schema import Config, ModelConfig
from bert_jax.convert import weights
from bert_jax.convert.reader import read_folder
from bert_jax.convert.sources import read_checkpoint, split_step
from bert_jax.data_pipeline.storage.digest import json_digest, sha256
from bert_jax.data_pipeline.storage.remote import is_remote
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.data_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.training import claim
from bert_jax.training.state_sharding import State
from bert_jax.workdir.layout import Workdir

# Settings of the model that its parameters depend on; the others may differ.
_FIXED = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "hidden_act", "layer_norm_eps", "type_vocab_size", "position", "norm_position",
    "layout",
)  # fmt: skip
_POSITIONS = "max_position_embeddings"


@dataclasses.dataclass(frozen=True)
class InitialModel:
    """A model to start from.

    Attributes:
        digest: of its parameters, which the run records.
        read: returns the parameters as float32 NumPy arrays, without heads that it lacks.
    """

    source: str
    digest: str
    read: Callable[[], Mapping[str, Any]]


def find_initial(config: Config, workdir: Workdir, store: TokenStore) -> InitialModel | None:
    """Returns the model that `config.init` names, checked against the run; None if it names none.

    A run that resumes does not need it any more: if its config.json names the same one, the digest
    there is returned and nothing is read.

    Raises:
        UserError: no such model, or its architecture or vocabulary is not that of the run.
    """
    source = config.init
    if not source:
        return None
    if is_remote(source):
        raise UserError(f"config.init={source}: give a local folder; copy it to every machine")
    recorded, started = claim.recorded_run(workdir, config)
    if recorded and started and recorded["config"].get("init") == source:
        digest = recorded["data"].get("init", "")
        return InitialModel(source, digest, lambda: _read(source, config, store)[0])
    params, digest = _read(source, config, store)
    return InitialModel(source, digest, lambda: params)


def start_from(state: State, model: InitialModel) -> tuple[State, list[str]]:
    """Returns the state of a new run with the model's parameters, and the names of the parts that
    it lacks, which keep their random values.

    Of more positions than the run has, the first are taken. Rows that a vocabulary has only for the
    hardware are not read: they may be those of the model, or zero.
    """
    params, new = model.read(), set[str]()

    def replaced(path: tuple, leaf: jax.Array) -> jax.Array:
        names = [key.key for key in path]
        given: Any = params
        for name in names:
            given = given.get(name) if isinstance(given, Mapping) else None
        if given is None:
            new.add("pooler" if "pooler" in names else names[0])
            return leaf
        fitting = np.zeros(leaf.shape, leaf.dtype)
        rows = min(len(given), len(fitting))
        fitting[:rows] = given[:rows]
        return jax.make_array_from_callback(leaf.shape, leaf.sharding, lambda index: fitting[index])

    return {**state, "params": jax.tree_util.tree_map_with_path(replaced, state["params"])}, [*new]


def _read(source: str, config: Config, store: TokenStore) -> tuple[Mapping[str, Any], str]:
    """Returns parameters and their digest; errors as `find_initial`."""
    path, step = split_step(source)
    run = Workdir.open(path)
    if run.checkpoints.is_dir():
        read = read_checkpoint(source, run, step)
        params, model, tokenizer = read.params, read.config, read.tokenizer
    else:
        stored = read_folder(Path(path))
        model, tokenizer = stored.config, stored.tokenizer
        params = weights.stored_params(stored.tensors, model, stored.pad_token_id)
    _check_architecture(source, model, config.model)
    _check_vocabulary(run, tokenizer, store)
    return params, _digest(params)


def _check_architecture(source: str, theirs: ModelConfig, ours: ModelConfig) -> None:
    differ = [name for name in _FIXED if getattr(theirs, name) != getattr(ours, name)]
    if ours.position == "learned" and theirs.max_position_embeddings < ours.max_position_embeddings:
        differ.append(_POSITIONS)
    if differ:
        values = " ".join(f"--config.model.{name}={getattr(theirs, name)}" for name in differ)
        raise UserError(
            f"config.init={source}: another architecture than config.model; use {values}"
        )


def _check_vocabulary(folder: Workdir, theirs: Tokenizer, store: TokenStore) -> None:
    ours = Tokenizer.load(store.tokenizer_path)
    same_size = theirs.vocab_size == ours.vocab_size
    if not same_size or any(theirs.token(i) != ours.token(i) for i in range(ours.vocab_size)):
        raise UserError(
            f"config.init={folder}: its vocabulary is not that of the store {store.path}; build "
            f"the store with --tokenizer={folder.tokenizer}"
        )


def _digest(params: Mapping[str, Any]) -> str:
    """Returns the sha256 of all parameters by name."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    digests = {
        jax.tree_util.keystr(path): sha256(np.ascontiguousarray(leaf).tobytes())
        for path, leaf in leaves
    }
    return json_digest(digests)
