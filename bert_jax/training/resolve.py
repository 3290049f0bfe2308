"""The configuration of a run, completed in one order for every command that starts one:

1. the architecture: that of the model that `config.init` names, where the config gives none;
2. the size of the vocabulary: of the store, of a task that of the model or of its tokenizer;
3. the steps that a time budget has decided, as the workdir records them;
4. what the teacher decides: the width of the states that a student's are compared with;
5. what the data decide: the head of a task, and its steps by its epochs;
6. the steps of a new time budget, which the first steps of the run decide: `TimeBudget.decide`.

`read_config` and `load` do 1 and 2 where a config is read, since a `Config` checks its model as a
whole; `resolve` does the rest, in the job of the run.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from absl import flags
from etils import epath

from bert_jax.checkpoint.catalog import complete_steps, read_meta
from bert_jax.config import config_files
from bert_jax.config.recorded import encoder_of
from bert_jax.config.schema import Config, ModelConfig
from bert_jax.config.serialization import completed
from bert_jax.convert import checksums
from bert_jax.convert.model_files import check_links, read_json
from bert_jax.errors import UserError
from bert_jax.extensions.registry import check_rows
from bert_jax.storage import hub
from bert_jax.storage.remote import from_any_folder, is_remote, storage_errors
from bert_jax.training import claim, hub_names
from bert_jax.workdir import description
from bert_jax.workdir.layout import Workdir, split_step

if TYPE_CHECKING:  # imports JAX, which `launch` and others that only read a config need not
    from bert_jax.distributed.job import Job
    from bert_jax.training.run_data import OpenData, RunData
    from bert_jax.training.time_budget import TimeBudget


def read_config(
    values: flags.FlagValues, workdir: epath.PathLike | None = None, *, offline: bool = False
) -> Config:
    """Returns the parsed flag as a `Config`.

    Args:
        workdir: of the run, see `find_architecture`.
        offline: nothing in a bucket or on the hub is read.

    Raises:
        UserError: as `config_files.read_config`, `find_architecture` and `naming_modules`.
    """
    if offline and workdir is not None and is_remote(workdir):
        workdir = None

    def model_of(source: str) -> ModelConfig | None:
        away = offline and (is_remote(source) or hub.is_hub(source))
        return None if away else find_architecture(source, workdir)

    def size_of(tokenizer: str) -> int:
        return _entries_of(tokenizer, workdir)

    with naming_modules(workdir):
        return config_files.read_config(values, model_of, offline=offline, size_of=size_of)


@contextlib.contextmanager
def naming_modules(workdir: epath.PathLike | None) -> Iterator[None]:
    """Turns an error, such as of an unknown name, into one that names the user's modules which the
    run in a workdir needs, if one is missing."""
    try:
        yield
    except UserError:
        if workdir is not None and description.has_config_json(run := Workdir.open(workdir)):
            rows: Any = ()
            with contextlib.suppress(UserError):  # the error itself says more
                rows = description.read_description(run).get("modules", ())
            check_rows(rows)
        raise


def load(name: str, changes: Mapping[str, Any] = MappingProxyType({})) -> Config:
    """Returns a shipped config by name, or that of a file, with other values by key; UserError as
    `config_files.load` and `find_architecture`."""
    return config_files.load(name, changes, find_architecture, _entries_of)


def resolve(
    config: Config, workdir: Workdir, job: "Job", open_data: "OpenData", seconds: float | None
) -> "tuple[Config, RunData, TimeBudget]":
    """Returns the configuration of a run, its data, open, and its time budget.

    All processes of the job call it.

    Args:
        seconds: the time budget of this start, if it has one.

    Raises:
        UserError: the data, the configuration and the workdir are not compatible.
    """
    from bert_jax.training.initial_checks import check_source
    from bert_jax.training.time_budget import TimeBudget

    hub_names.agree(config, workdir, job.peers)
    budget = TimeBudget.read(config, workdir, job, seconds)
    config, is_task = budget.config, bool(config.task.name)
    if config.teacher:
        check_source(config.teacher, "config.teacher")
        if teacher := find_architecture(config.teacher):
            config = with_teacher_width(config, teacher)
    if not is_task:  # before another store than the run's is verified, which may take hours
        claim.check_before_start(workdir, config)
    data = open_data(config)
    config = data.configured(config)
    if is_task:  # its files have decided its steps
        claim.check_before_start(workdir, config)
    return config, data, budget


def with_teacher_width(config: Config, teacher: ModelConfig) -> Config:
    """Returns the configuration with a dense layer to the width of a teacher's states, if they are
    compared and have another width."""
    differ = config.distillation.cosine_weight and teacher.hidden_size != config.model.hidden_size
    width = teacher.hidden_size if differ else 0
    return config.with_model(dataclasses.replace(config.model, teacher_width=width))


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
    path, step = split_step(source)
    if hub.is_hub(source):
        if workdir is not None:
            hub_names.use_recorded(workdir)
    else:
        run = Workdir.open(path)
        with storage_errors(source):
            is_model = run.config_json.is_file()  # of transformers, too
        if not is_model:
            return None
        if run.is_run():
            return _model_of(_of_checkpoint(run, step) or description.read_description(run))
    from bert_jax.convert.hf_config import from_config_json  # imports JAX
    from bert_jax.convert.model_files import CONFIG
    from bert_jax.convert.model_folders import local_folder
    from bert_jax.convert.sentence_encoder import encoder_folder

    with local_folder(path, weights=False) as copy:
        check_links(copy)
        folder, sums = encoder_folder(copy, checksums.read_checksums(copy))
        file = folder / CONFIG
        return from_config_json(read_json(file, sums), str(file))


def _entries_of(tokenizer: str, workdir: epath.PathLike | None = None) -> int:
    """Returns the number of entries of a tokenizer on the hub, at the commit that the run in a
    workdir has recorded; errors as `load_tokenizer`."""
    from bert_jax.convert.model_folders import load_tokenizer

    if workdir is not None:
        hub_names.use_recorded(workdir)
    return load_tokenizer(tokenizer).vocab_size


def _recorded(source: str, run: Workdir) -> ModelConfig | None:
    """Returns the settings of a run that started from this model; None for any other run."""
    if not description.has_config_json(run) or not claim.has_checkpoints(run):
        return None
    recorded = description.read_description(run)
    same = recorded["config"].get("init") == from_any_folder(source)
    return _model_of(recorded) if same else None


def _of_checkpoint(run: Workdir, step: int | None) -> dict | None:
    """Returns the description in a checkpoint, by default the newest; None if there is none."""
    steps = complete_steps(run.checkpoints)
    chosen = steps[-1] if step is None and steps else step
    return read_meta(run.checkpoints, chosen) if chosen in steps else None


def _model_of(recorded: dict) -> ModelConfig:
    """Returns the architecture in a description, also of an earlier version, without a head."""
    return encoder_of({**recorded, "config": completed(recorded["config"], Config)})
