"""The models and datasets on the Hugging Face hub that a configuration names: all processes of a
job, and a run that resumes, take the same commits."""

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final

from etils import epath

from bert_jax.config.schema import Config
from bert_jax.config.serialization import flatten, to_dict
from bert_jax.data_pipeline.sources import hub_dataset
from bert_jax.distributed.peers import ProcessGroup
from bert_jax.errors import UserError
from bert_jax.storage import hub
from bert_jax.training import claim
from bert_jax.workdir import description
from bert_jax.workdir.layout import Workdir

_MODELS: Final = ("init", "teacher", "task.teacher", "task.tokenizer")
_DATASETS: Final = ("task.data", "task.held_out")


def commits_of(config: Config) -> dict[str, str]:
    """Returns the commits of what a configuration names, for the description of its run; errors as
    `hub.fetch`, and of a dataset as `hub_dataset.find`."""
    found = hub.recorded(hub.parse_model(name) for name in _named(config, _MODELS))
    for name in _named(config, _DATASETS):
        found |= hub_dataset.commits_of(name)
    return found


def agree(config: Config, workdir: Workdir, peers: ProcessGroup | None = None) -> None:
    """From now on, the names of a configuration mean the commits that its run has recorded; of new
    ones, those that process 0 finds. All processes call it.

    Args:
        peers: None for a single process.

    Raises:
        UserError: as `commits_of`, the workdir is that of something else, or this process has read
            the architecture of a model at another commit than process 0.
    """
    if not any(_named(config, (*_MODELS, *_DATASETS))):
        return
    recorded, _ = claim.recorded_run(workdir, config)
    hub.use((recorded or {}).get("hub", {}))
    first = peers is None or peers.is_first
    found = json.dumps(commits_of(config)) if first else ""
    if peers is not None:
        found, *_ = peers.all_gather_text("hub", found)
    agreed = json.loads(found)
    for name in map(hub.parse_model, _named(config, _MODELS)):
        if (own := hub.known_commit(name)) not in (None, agreed.get(name.key, own)):
            raise UserError(
                f"{name}: was changed on the hub while the job started; start it again, or give "
                f"the commit: {name.at(own)}"
            )
    hub.use(agreed)


def use_recorded(workdir: epath.PathLike) -> None:
    """From now on, names mean the commits that the config.json of a run has, if it is there."""
    run = Workdir.open(workdir)
    if description.has_config_json(run):
        with suppress(UserError):  # of another kind, which the run reports
            hub.use(description.read_description(run).get("hub", {}))


def _named(config: Config, keys: Iterable[str]) -> Iterator[str]:
    """Yields the values of keys that name a repository."""
    values = flatten(to_dict(config))
    yield from (name for key in keys if hub.is_hub(name := values.get(key, "")))
