"""What a run's folder belongs to: its configuration, its data, its tokenizer.

<workdir>/config.json     configuration and the digests of what it was trained on
          tokenizer.json  the tokenizer of the store, as it will be exported
          checkpoints/ metrics.jsonl evaluations.jsonl tensorboard/
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from etils import epath

from bert_jax.config import Config
from bert_jax.config_values import flatten, to_dict
from bert_jax.errors import StorageError, UserError
from data_pipeline.buckets import again, check_bucket, is_remote, is_transient, open_path, saying
from data_pipeline.store import TokenStore

# What may change between two starts of one run: none of it changes which examples a step sees or
# what the parameters mean.
_MAY_CHANGE = re.compile(
    r"config\.(log_every_steps|data\.store|optimizer\.(?!name)"
    r"|mesh\.|compute\.|checkpoint\.|evaluation\.|deadlines\.)"
)
_OF_PHASE = re.compile(r"(?:config\.phases|data\.rows_per_epoch)\[(\d+)\](?:\.(\w+))?")
# The same for a phase that has begun and not ended.
_MAY_CHANGE_IN_PHASE = {"steps", "micro_batches", "learning_rate", "warmup_steps"}


def describe(config: Config, store: TokenStore, rows_per_epoch: Sequence[int]) -> dict[str, Any]:
    """The run's description: goes into `config.json` and into every checkpoint.

    rows_per_epoch: of each phase.
    """
    return {
        "config": to_dict(config),
        "data": {
            "tokenizer": store.tokenizer_digest,
            "train": store.train.digest,
            "held_out": store.held_out.digest,
            "rows_per_epoch": list(rows_per_epoch),
        },
    }


def read(workdir: epath.Path) -> dict[str, Any]:
    """The description of the run in a folder.

    Raises:
        UserError: the folder is not one of a run.
    """
    path = open_path(workdir) / "config.json"
    with saying(path):
        try:
            description = json.loads(again(path.read_bytes))
            if {"config", "data"} <= set(description):
                return description
        except (FileNotFoundError, NotADirectoryError, ValueError, TypeError):
            pass
    raise UserError(
        f"{workdir}: not the folder of a pretraining run (no config.json of one in it); "
        "give the --workdir that was given to `bert-jax pretrain`"
    )


def check_free(workdir: epath.PathLike) -> None:
    """Raises UserError where a run would write over files that are not of a run, or cannot read."""
    folder = open_path(workdir)
    with saying(folder, "cannot be the folder of a run"):
        if is_remote(folder):
            check_bucket(folder)
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{folder}: a file; give a folder as --workdir")
        if (folder / "config.json").exists():
            _check_is_run(folder)
        elif (folder / "tokenizer.json").exists():
            raise UserError(
                f"{folder}: its tokenizer.json is not of a pretraining run; give another --workdir"
            )


def _check_is_run(folder: epath.Path) -> None:
    try:
        read(folder)
    except UserError as error:
        if error.__cause__:  # of storage: nothing is known about what is there
            raise
        raise UserError(
            f"{folder}: its config.json is not of a pretraining run; give another --workdir"
        ) from None


def claim(workdir: epath.Path, description: dict[str, Any], *, resuming_at: int | None) -> None:
    """Writes the description; when the run goes on, first checks that it may.

    Args:
        resuming_at: the step of the checkpoint to go on from, None for a new run.

    Raises:
        UserError: the workdir was started with another store, tokenizer or setting that decides
            what a step sees, or a phase that is finished would change; names every such value, old
            and new.
    """
    path = workdir / "config.json"
    if resuming_at is not None and path.exists():
        _check(workdir, read(workdir), description, resuming_at)
    _write(path, json.dumps(description, indent=2) + "\n")


def keep_tokenizer(workdir: epath.Path, store: TokenStore) -> None:
    """Copies the store's tokenizer into the workdir."""
    _write(workdir / "tokenizer.json", store.tokenizer_path.read_text(encoding="utf-8"))


def _check(workdir: epath.Path, old: dict[str, Any], new: dict[str, Any], step: int) -> None:
    if old["data"]["tokenizer"] != new["data"]["tokenizer"]:
        raise UserError(
            f"{workdir}: its checkpoint was trained with tokenizer "
            f"{old['data']['tokenizer'][:12]}…, the store was made with "
            f"{new['data']['tokenizer'][:12]}…; give that store or a new --workdir"
        )
    before, after = flatten(old), flatten(new)
    changed = [k for k in {**before, **after} if before.get(k) != after.get(k)]
    starts = [0]
    for phase in old["config"]["phases"]:
        starts.append(starts[-1] + phase["steps"])
    begun = sum(start < step for start in starts[:-1])  # phases with at least one update done
    finished = begun - (step < starts[begun])
    frozen: list[str] = []
    refused: list[str] = []
    kept = len(new["config"]["phases"])
    for key in changed:
        said = f"{key} ({before.get(key)} → {after.get(key)})"
        match = _OF_PHASE.match(key)
        if match is None:
            if not _MAY_CHANGE.match(key):
                refused.append(said)
            continue
        index = int(match[1])
        if index >= kept:
            said = f"config.phases[{index}] (there → not there)"
        elif key.startswith("data.") and (frozen or refused):
            continue  # follows from what is named already: keys of `data` come last
        if said in frozen or said in refused:
            continue
        if index < finished:
            frozen.append(said)
        elif index < begun and match[2] not in _MAY_CHANGE_IN_PHASE:
            refused.append(said)
    if frozen:
        raise UserError(
            f"{workdir}: cannot go on with another {'; '.join([*refused, *frozen])}: a finished "
            f"phase cannot change, and {step} steps are done; put the old values back, add a phase "
            "or give a new --workdir"
        )
    if refused:
        raise UserError(
            f"{workdir}: cannot go on with another {'; '.join(refused)}; "
            "put the old values back or give a new --workdir"
        )
    if finished < begun:
        done, wanted = step - starts[finished], new["config"]["phases"][finished]["steps"]
        if wanted < done:
            raise UserError(
                f"{workdir}: config.phases[{finished}].steps "
                f"({starts[begun] - starts[finished]} → {wanted}) is less than the {done} steps "
                f"of it that are done; give {done} or more, or a new --workdir"
            )


def _write(path: epath.Path, text: str) -> None:
    """Whole or not at all.

    Raises:
        UserError: there is no such bucket, or no permission.
        StorageError: the disk or the bucket does not take it, now.
    """

    def write() -> None:
        if is_remote(path):  # an object changes whole, and has no name to be moved to
            path.write_text(text)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.parent / f".{path.name}.tmp"
        temporary.write_text(text)
        temporary.replace(path)

    try:
        with saying(path, "cannot be written"):
            again(write)
    except UserError as error:
        if error.__cause__ and is_transient(error.__cause__):
            raise StorageError(str(error)) from error
        raise
