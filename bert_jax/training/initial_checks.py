"""The refusals of `config.init`: sources, keys and architectures that a run cannot start from."""

import dataclasses
from pathlib import Path

from bert_jax.config.defaults import ARCHITECTURE
from bert_jax.config.generator_settings import GeneratorConfig
from bert_jax.config.model_settings import generator_of
from bert_jax.config.schema import Config, ModelConfig
from bert_jax.convert.google_files import is_google_bert
from bert_jax.convert.model_files import check_one
from bert_jax.convert.sentence_encoder import MODULES
from bert_jax.errors import UserError, hub_hint
from bert_jax.storage import hub
from bert_jax.storage.read_files import path_of
from bert_jax.storage.regular_file import check_not_special
from bert_jax.storage.remote import is_remote, storage_errors
from bert_jax.training.word_start import is_counted
from bert_jax.workdir.layout import split_step

_POSITIONS = "max_position_embeddings"  # the only setting of these that may differ
_THETA = "global_rope_theta"  # which phases may set


def check_source(init: str, key: str = "config.init") -> None:
    """Raises UserError for the model of a key that is no folder, or that must be imported first;
    whether one on the hub is there, the client says when it reads it."""
    if hub.is_hub(init):
        hub.parse_model(init)
        return
    path = path_of(split_step(init)[0])
    with storage_errors(init):
        is_folder, is_foreign = path.is_dir(), path.is_file() or is_google_bert(path)
    if is_foreign:
        raise UserError(
            f"{key}={init}: import it first: bert-jax convert import --from={init} "
            "--out=…; then give that folder"
        )
    if not is_folder:
        check_not_special(path)
        raise UserError(
            f"{key}={init}: no such folder; give that of a run, an import or an export"
            f"{hub_hint(init)}"
        )
    if not is_remote(init) and not (path / MODULES).exists():
        check_one(Path(path), f"{key}={init}")


def check_keys(config: Config) -> None:
    """Raises UserError for keys about a model that have no effect or do not go together."""
    changed = {
        key: value
        for key, default in (
            ("init_vocabulary", "same"), ("init_entries", "pieces"), ("init_positions", "same"),
            ("init_weights", "last"), ("init_optimizer", "reset"),
        )
        if (value := getattr(config, key)) != default
    }  # fmt: skip
    if changed and not config.init:
        key, value = next(iter(changed.items()))
        raise UserError(f"config.{key}={value} has no effect without config.init; set it")
    if config.task.name and not config.init and is_counted(config.model):
        raise UserError(
            "config.model.word_initializer and config.model.output_bias_initializer count the text "
            "of a token store, which a task does not have; set config.init, or set them to random "
            "and zeros"
        )
    if "init_entries" in changed:
        _check_entries(config)
    carry = changed.pop("init_optimizer", None)
    if changed.pop("init_weights", None) and carry:
        raise UserError(
            "config.init_weights=ema: the moments are not those of the average; set "
            "config.init_optimizer=reset"
        )
    if carry and changed:
        (key, value), *_ = changed.items()
        raise UserError(
            f"config.{key}={value} adds embedding rows, for which the model has no moments; set "
            f"config.{key}=same, or config.init_optimizer=reset"
        )


def _check_entries(config: Config) -> None:
    """Raises UserError if there are no new entries, or no text to count."""
    if config.init_vocabulary == "same":
        raise UserError(
            f"config.init_entries={config.init_entries} has no effect with "
            "config.init_vocabulary=same; set init_vocabulary to extend or replace"
        )
    if config.task.name:
        raise UserError(
            f"config.init_entries={config.init_entries} counts the text of a token store, which a "
            "task does not have; set it to pieces"
        )


def check_architecture(config: Config, theirs: ModelConfig, step: int) -> None:
    """step: the updates that the run has at its start. The theta of its positions may be that of
    the phase of the next update, or of the one before, whose checkpoint it may be."""
    begins = config.phase_at(min(step, config.total_steps - 1))[0]
    before = config.phase_at(min(max(step - 1, 0), config.total_steps - 1))[0]
    last, ours = (config.with_model_of(config.phases[index]).model for index in (before, begins))
    fixed = [name for name in ARCHITECTURE if name != _POSITIONS]
    differ = [name for name in fixed if getattr(theirs, name) != getattr(ours, name)]
    if _THETA in differ and getattr(theirs, _THETA) == getattr(last, _THETA):
        differ.remove(_THETA)
    if ours.position != "learned" and config.init_positions != "same":
        raise UserError(
            f"config.init_positions={config.init_positions} has no effect: a model with "
            f"position={ours.position} has no table of positions; set it to same"
        )
    lacks = theirs.max_position_embeddings < ours.max_position_embeddings
    refused = ours.position == "learned" and config.init_positions == "same" and lacks
    if refused:
        differ.append(_POSITIONS)
    if differ:
        by_phase = _THETA in differ and config.phases[begins].global_rope_theta is not None
        keys = {name: f"model.{name}" for name in differ}
        keys |= {_THETA: f"phases[{begins}].{_THETA}"} if by_phase else {}
        values = " ".join(f"--config.{key}={getattr(theirs, name)}" for name, key in keys.items())
        grow = ", or --config.init_positions=repeat for more positions" if refused else ""
        raise UserError(
            f"config.init={config.init}: its architecture differs from config.model; set "
            f"{values}{grow}"
        )


def check_generator(config: Config, theirs: ModelConfig) -> None:
    """Raises UserError if both networks of a run are taken, and the generator has other sizes, or
    tables that this one would not have or would lack the moments of."""
    ours, given = generator_of(config.model), generator_of(theirs)
    names = [field.name for field in dataclasses.fields(GeneratorConfig)]
    sizes = [name for name in names if hasattr(given, name)]
    differ = {name: getattr(given, name) for name in sizes}
    differ = {name: size for name, size in differ.items() if size != getattr(ours, name)}
    what, sharing = "sizes", theirs.generator.embedding_sharing
    own = config.model.generator.embedding_sharing
    if sharing != own and (sharing != "shared" or config.init_optimizer == "carry"):
        what = f"{what} and tables" if differ else "tables"
        differ["embedding_sharing"] = sharing
    if differ:
        values = (f"--config.model.generator.{name}={value}" for name, value in differ.items())
        raise UserError(
            f"config.init={config.init}: its generator has other {what}; set {' '.join(values)}, "
            "or give the discriminator of an export, which starts this model alone"
        )
