"""What a run's folder belongs to: its configuration, its data, its tokenizer.

<workdir>/config.json     configuration, the digests of what it was trained on, the versions and
                          devices it last ran with
          tokenizer.json  the tokenizer of the store, as it will be exported
          checkpoints/ metrics.jsonl evaluations.jsonl tensorboard/
"""

import contextlib
import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from bert_jax.checkpoint import saved
from bert_jax.config import Config
from bert_jax.config_values import flatten, to_dict
from bert_jax.errors import StorageError, UserError
from bert_jax.versions import versions
from data_pipeline.buckets import again, check_bucket, is_remote, is_transient, open_path, saying
from data_pipeline.manifest import SPLITS, read_manifest, split_digest
from data_pipeline.store import TokenStore

# What may change between two starts of one run: none of it changes which examples a step sees or
# what the parameters mean, or in which type checkpoints hold the moments.
_MAY_CHANGE = re.compile(
    r"config\.(log_every_steps|data\.store|optimizer\.(?!name|moment_dtype)"
    r"|mesh\.|compute\.|checkpoint\.|evaluation\.|deadlines\.)"
)
_OF_PHASE = re.compile(r"(?:config\.phases|data\.rows_per_epoch)\[(\d+)\](?:\.(\w+))?")
# The same for a phase that has begun and not ended.
_MAY_CHANGE_IN_PHASE = {"steps", "micro_batches", "learning_rate", "warmup_steps"}
# Of what may change, what changes the order or precision in which numbers are added up.
_ROUNDS = re.compile(r"config\.(mesh|compute)\.|config\.phases\[\d+\]\.micro_batches")
_BITS = ": the last bits may differ"


def describe(
    config: Config,
    store: TokenStore,
    rows_per_epoch: Sequence[int],
    *,
    mesh: Mapping[str, int],
    device_kind: str,
) -> dict[str, Any]:
    """The run's description: goes into `config.json` and into every checkpoint.

    Args:
        rows_per_epoch: of each phase.
        mesh: devices along each axis; how many processes have them changes no number.
        device_kind: what they are.
    """
    return {
        "config": to_dict(config),
        "data": {
            "tokenizer": store.tokenizer_digest,
            "train": store.train.digest,
            "held_out": store.held_out.digest,
            "rows_per_epoch": list(rows_per_epoch),
        },
        "versions": versions(),
        "devices": {"kind": device_kind, "mesh": dict(mesh)},
    }


def digest(config: Config) -> str:
    """A short name of a configuration: equal where every value is."""
    text = json.dumps(to_dict(config), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


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


def check_first(workdir: epath.Path, config: Config) -> None:
    """What can be refused at once: before JAX starts, a store is read or a plan is made.

    `claim` decides in the end; this saves hours of verifying the wrong store.

    Raises:
        UserError: as `check_free` and `claim`, or no token store where the configuration says.
    """
    check_free(workdir)
    if not config.data.store:
        raise UserError(
            "config.data.store is empty; pass --config.data.store=… with the folder of a token "
            "store (`bert-jax data build` makes one)"
        )
    steps = saved.complete_steps(workdir)
    if not steps or not _has(workdir, "config.json"):
        return
    old = read(workdir)
    new = {"config": to_dict(config), "data": dict(old["data"])}
    manifest = read_manifest(config.data.store)
    new["data"]["tokenizer"] = manifest["tokenizer_digest"]
    new["data"] |= {name: split_digest(name, manifest["files"]) for name in SPLITS}
    _check(workdir, old, new, steps[-1])


def claim(
    workdir: epath.Path, description: dict[str, Any], *, resuming_at: int | None
) -> list[str]:
    """Writes the description; when the run goes on, first checks that it may.

    Args:
        resuming_at: the step of the checkpoint to go on from, None for a new run.

    Returns:
        A line for everything that is different from before and may be: settings, versions of
        packages, devices.

    Raises:
        UserError: the workdir was started with another store, tokenizer or setting that decides
            what a step sees or what parameters mean, or a phase that is finished would change.
            After one line that names every such key comes a diff, a line for each old and new
            value.
    """
    changed = []
    if resuming_at is not None:
        old = _started_with(workdir)
        if old is not None:
            _check(workdir, old, description, resuming_at)
            changed = _said_of_changes(old, description)
    _write(workdir / "config.json", json.dumps(description, indent=2) + "\n")
    return changed


def keep_tokenizer(workdir: epath.Path, store: TokenStore) -> None:
    """Copies the store's tokenizer into the workdir."""
    _write(workdir / "tokenizer.json", store.tokenizer_path.read_text(encoding="utf-8"))


def _has(workdir: epath.Path, name: str) -> bool:
    with saying(workdir):
        return again((workdir / name).exists)


def _started_with(workdir: epath.Path) -> dict[str, Any] | None:
    """The description that a run was begun under: config.json, or that of the newest checkpoint
    where it is lost; None where no checkpoint can be read either."""
    if _has(workdir, "config.json"):
        return read(workdir)
    for step in reversed(saved.all_steps(workdir)):
        with contextlib.suppress(saved.DamagedError):
            return saved.read_meta(workdir, step)
    return None


@dataclasses.dataclass
class _Refused:
    """Keys that may not change, in the order of the diff."""

    lines: dict[str, list[str]] = dataclasses.field(default_factory=dict)  # key -> of the diff

    def add(self, key: str, old: Any, new: Any) -> None:
        before, after = ([] if v is None else [v] for v in (old, new))
        self.lines[key] = [*(f"- {key}: {v}" for v in before), *(f"+ {key}: {v}" for v in after)]

    def __str__(self) -> str:
        return "\n".join(line for lines in self.lines.values() for line in lines)


def _check(workdir: epath.Path, old: dict[str, Any], new: dict[str, Any], step: int) -> None:
    try:
        before, after, old_phases = *map(_of_run, (old, new)), old["config"]["phases"]
        lengths = [phase["steps"] for phase in old_phases]
    except (KeyError, TypeError, AttributeError):
        raise UserError(
            f"{workdir / 'config.json'}: not what a pretraining run writes; put the old file back "
            "or give a new --workdir"
        ) from None
    starts = [0]
    for steps in lengths:
        starts.append(starts[-1] + steps)
    begun = sum(start < step for start in starts[:-1])  # phases with at least one update done
    finished = begun - (step < starts[begun])
    if before["data.tokenizer"] != after["data.tokenizer"]:
        differ = _Refused()
        for key in ("data.tokenizer", "config.data.store"):
            differ.add(key, before[key], after[key])
        raise UserError(
            f"{workdir}: its checkpoint was trained with another tokenizer than the store was made "
            f"with; give the store of the run or a new --workdir\n{differ}"
        )
    frozen, refused = _Refused(), _Refused()
    kept = len(new["config"]["phases"])
    for key in [k for k in {**before, **after} if before.get(k) != after.get(k)]:
        match = _OF_PHASE.match(key)
        if match is None:
            if not _MAY_CHANGE.match(key):
                refused.add(key, before.get(key), after.get(key))
            continue
        index = int(match[1])
        to = frozen if index < finished else refused
        if index >= begun or (to is refused and match[2] in _MAY_CHANGE_IN_PHASE and index < kept):
            continue
        if index >= kept:
            to.add(f"config.phases[{index}]", f"{lengths[index]} steps", None)
        elif key.startswith("config.") or not (frozen.lines or refused.lines):
            # What follows from settings that are named already is not: keys of `data` come last.
            to.add(key, before.get(key), after.get(key))
    store = "config.data.store"
    if any(key.startswith("data.") for key in refused.lines) and before[store] != after[store]:
        refused.add(store, before[store], after[store])  # may change; here it says why
    if frozen.lines:
        raise UserError(
            f"{workdir}: cannot go on with another {', '.join([*refused.lines, *frozen.lines])}: a "
            f"finished phase cannot change, and {step} steps are done; put the old values back, "
            f"add a phase or give a new --workdir\n{_Refused(refused.lines | frozen.lines)}"
        )
    if refused.lines:
        raise UserError(
            f"{workdir}: cannot go on with another {', '.join(refused.lines)} after {step} steps; "
            f"put the old values back or give a new --workdir\n{refused}"
        )
    if finished < begun:
        done, wanted = step - starts[finished], new["config"]["phases"][finished]["steps"]
        if wanted < done:
            key = f"config.phases[{finished}].steps"
            raise UserError(
                f"{workdir}: {key}={wanted} is less than the {done} steps of it that are done; "
                f"give {done} or more, or a new --workdir\n"
                f"- {key}: {lengths[finished]}\n+ {key}: {wanted}"
            )


def _of_run(description: dict[str, Any]) -> dict[str, Any]:
    """What of a description may stop a run, one value per key."""
    return flatten({"config": description["config"], "data": description["data"]})


def _said_of_changes(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    before, after = flatten(old["config"], "config"), flatten(new["config"], "config")
    lines = []
    for index in range(len(old["config"]["phases"]), len(new["config"]["phases"])):
        lines.append(f"goes on with a new config.phases[{index}]")
    for index in range(len(new["config"]["phases"]), len(old["config"]["phases"])):
        lines.append(f"goes on without config.phases[{index}]")
    for key in [k for k in before if k in after and before[k] != after[k]]:
        bits = _BITS if _ROUNDS.match(key) else ""
        lines.append(f"goes on with {key}={after[key]} (was {before[key]}){bits}")
    for name, version in new["versions"].items():
        was = old.get("versions", {}).get(name, version)
        if was != version:
            lines.append(f"goes on with {name} {version} (was {was}){_BITS}")
    was, now = old.get("devices"), new["devices"]
    if was and was != now:
        lines.append(f"goes on with {_devices(now)} (was {_devices(was)}){_BITS}")
    return lines


def _devices(devices: dict[str, Any]) -> str:
    axes = " ".join(f"{axis}={size}" for axis, size in devices["mesh"].items())
    return f"{devices['kind']} devices of mesh {axes}"


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
