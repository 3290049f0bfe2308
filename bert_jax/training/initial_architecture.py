"""The architecture of the model that `config.init` names, for a config that does not give one."""

import os
from pathlib import Path

from etils import epath

from bert_jax.config.schema import Config, ModelConfig
from bert_jax.config.serialization import completed, from_dict
from bert_jax.convert import checksums
from bert_jax.convert.files import check_links, read_json
from bert_jax.storage.remote import is_remote
from bert_jax.training import claim
from bert_jax.workdir import description
from bert_jax.workdir.layout import Workdir, split_step


def find_architecture(source: str, workdir: epath.PathLike | None = None) -> ModelConfig | None:
    """Returns the settings of a model without reading its weights; None if it is not there, which
    the run reports.

    Args:
        source: `config.init`.
        workdir: of the run. If it has started from this model, the settings that it recorded are
            returned, since it does not need the model any more.

    Raises:
        UserError: the model's config.json is damaged or of another kind of model, or a file is a
            link to one outside.
    """
    if workdir is not None and (recorded := _recorded(source, Workdir.open(workdir))):
        return recorded
    if is_remote(source):
        return None
    path, _ = split_step(source)
    run = Workdir.open(path)
    file = Path(run.config_json)  # of transformers, too
    if not file.is_file():
        return None
    if run.checkpoints.is_dir():
        return _model_of(description.read(run))
    from bert_jax.convert.hf_config import from_config_json  # imports JAX
    from bert_jax.convert.sentence_encoder import encoder_folder

    check_links(Path(path))
    folder, sums = encoder_folder(Path(path), checksums.read(Path(path)))
    file = folder / file.name
    return from_config_json(read_json(file, sums), str(file))


def _recorded(source: str, run: Workdir) -> ModelConfig | None:
    """Returns the settings of a run that started from this model; None for any other run."""
    if not description.has_config_json(run) or not claim.has_checkpoints(run):
        return None
    recorded = description.read(run)
    same = recorded["config"].get("init") == os.path.abspath(source)
    return _model_of(recorded) if same else None


def _model_of(recorded: dict) -> ModelConfig:
    return from_dict(completed(recorded["config"], Config)["model"], ModelConfig, "config.model")
