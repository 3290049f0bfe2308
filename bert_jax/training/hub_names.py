"""The models on the Hugging Face hub that a configuration names: all processes of a job, and a run
that resumes, take the same commits."""

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from etils import epath

from bert_jax.config.schema import Config
from bert_jax.config.serialization import flatten, to_dict
from bert_jax.distributed.peers import ProcessGroup
from bert_jax.errors import UserError
from bert_jax.storage import hub
from bert_jax.storage.hub import HubName
from bert_jax.training import claim
from bert_jax.workdir import description
from bert_jax.workdir.layout import Workdir

_KEYS: Final = ("init", "teacher", "task.teacher", "task.tokenizer")


def commits_of(config: Config) -> dict[str, str]:
    """Returns the commits of the models that a configuration names, for the description of its run;
    errors as `hub.fetch`."""
    return hub.recorded(_names(config))


def agree(config: Config, workdir: Workdir, peers: ProcessGroup | None = None) -> None:
    """From now on, the names of a configuration mean the commits that its run has recorded; of new
    ones, those that process 0 finds. All processes call it.

    Args:
        peers: None for a single process.

    Raises:
        UserError: as `hub.fetch`, or the workdir is that of something else.
    """
    if not any(_names(config)):
        return
    recorded, _ = claim.recorded_run(workdir, config)
    hub.use((recorded or {}).get("hub", {}))
    first = peers is None or peers.is_first
    found = json.dumps(commits_of(config)) if first else ""
    if peers is not None:
        found, *_ = peers.all_gather_text("hub", found)
    hub.use(json.loads(found))


def use_recorded(workdir: epath.PathLike) -> None:
    """From now on, names mean the commits that the config.json of a run has, if it is there."""
    run = Workdir.open(workdir)
    if description.has_config_json(run):
        with suppress(UserError):  # of another kind, which the run reports
            hub.use(description.read_description(run).get("hub", {}))


def _names(config: Config) -> Iterator[HubName]:
    """Yields the names, parsed; UserError for one that is none."""
    values = flatten(to_dict(config))
    for key in _KEYS:
        if hub.is_hub(value := values.get(key, "")):
            yield hub.parse_model(value)
