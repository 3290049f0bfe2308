"""Which run a description is of: what may change between two starts, and whose a checkpoint is.

A run has a random id, made when its workdir is first claimed and stored in `config.json` and in the
`meta` of every checkpoint. Where one of the two has none, being of an earlier version, the rest of
the checkpoint's record is compared: configuration, seed, digests of store and tokenizer, by the
same rules that decide what a second start may change.
"""

import dataclasses
import hashlib
import json
import re
import secrets
from collections.abc import Mapping
from typing import Any

from etils import epath

from bert_jax.config.schema import Config
from bert_jax.config.serialization import completed, flatten
from bert_jax.errors import UserError

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
_SHOWN = 3  # differences named in the line about another run's checkpoint

Description = Mapping[str, Any]


def new_id() -> str:
    """A random id for a run, 16 hexadecimal digits."""
    return secrets.token_hex(8)


def foreign(meta: Description, run: Description) -> str:
    """Why a checkpoint is not of this run, in a few words; an empty text where it is.

    Args:
        meta: the checkpoint's own record.
        run: the description that the run was last started with.
    """
    if is_adopted(meta, run):
        return ""
    theirs, ours = meta.get("run_id"), run.get("run_id")
    if theirs and theirs == ours:
        return ""
    try:
        found = compare(meta, run, meta["step"])
    except (KeyError, TypeError, AttributeError):
        return "of another run: it does not record a configuration"
    said = [f"run id {theirs}, not {ours}"] if theirs and ours else []
    differ = {**found.refused, **found.frozen, **found.too_few}
    for key in sorted(differ, key=lambda key: not key.startswith("data.")):  # digests first
        said.append(f"{key} is {_short(key, differ[key][0])}, not {_short(key, differ[key][1])}")
    if len(said) > _SHOWN:
        said[_SHOWN:] = [f"{len(said) - _SHOWN} more"]
    return f"of another run: {', '.join(said)}" if said else ""


def is_adopted(meta: Description, run: Description) -> bool:
    """Whether a checkpoint of another run was taken into this one with --adopt."""
    return any(one["state"] == _state(meta) for one in run.get("adopted", ()))


def adoption(meta: Description, why: str) -> dict[str, Any]:
    """The entry for another run's checkpoint in `adopted` of config.json.

    why: what `foreign` says of it.
    """
    return {
        "step": meta["step"],
        "run_id": meta.get("run_id"),
        "state": _state(meta),
        "why": why,
    }


def _state(meta: Description) -> str:
    """What identifies the saved arrays: a digest of the step and all fingerprints."""
    text = json.dumps([meta["step"], meta.get("fingerprints")], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _short(key: str, value: Any) -> str:
    return str(value)[:12] if key.startswith("data.") else str(value)


Values = dict[str, tuple[Any, Any]]  # key -> (old, new)


@dataclasses.dataclass
class Comparison:
    """What keeps a run from continuing, by why it does."""

    refused: Values = dataclasses.field(default_factory=dict)
    frozen: Values = dataclasses.field(default_factory=dict)  # of a finished phase
    too_few: Values = dataclasses.field(default_factory=dict)  # steps of the phase at work
    done: int = 0  # updates of the phase at work


def compare(old: Description, new: Description, step: int) -> Comparison:
    """What of two descriptions may not differ after `step` updates.

    Raises:
        KeyError, TypeError, AttributeError: one of them is not a description.
    """
    before, after, phases = _of_run(old), _of_run(new), old["config"]["phases"]
    lengths, kept = [phase["steps"] for phase in phases], len(new["config"]["phases"])
    starts = [0]
    for steps in lengths:
        starts.append(starts[-1] + steps)
    begun = sum(start < step for start in starts[:-1])  # phases with at least one update done
    finished = begun - (step < starts[begun])
    found = Comparison()
    for key in [k for k in {**before, **after} if before.get(k) != after.get(k)]:
        match = _OF_PHASE.match(key)
        if match is None:
            if not _MAY_CHANGE.match(key):
                found.refused[key] = before.get(key), after.get(key)
            continue
        index = int(match[1])
        to = found.frozen if index < finished else found.refused
        may = to is found.refused and match[2] in _MAY_CHANGE_IN_PHASE and index < kept
        if index >= begun or may:
            continue
        if index >= kept:
            to[f"config.phases[{index}]"] = f"{lengths[index]} steps", None
        elif key.startswith("config.") or not (found.frozen or found.refused):
            # What follows from settings that are named already is not: keys of `data` come last.
            to[key] = before.get(key), after.get(key)
    if finished < begun and finished < kept:
        found.done, wanted = step - starts[finished], new["config"]["phases"][finished]["steps"]
        if wanted < found.done:
            found.too_few[f"config.phases[{finished}].steps"] = lengths[finished], wanted
    return found


def check(workdir: epath.PathLike, old: Description, new: Description, step: int) -> None:
    """Raises UserError where a run cannot continue under a new description after `step` updates.

    After one line that names every key comes a diff, a line for each old and new value.

    Args:
        old: as it was, from config.json or a checkpoint.
    """
    try:
        before, after = _of_run(old), _of_run(new)
        found = compare(old, new, step)
    except (KeyError, TypeError, AttributeError):
        raise UserError(
            f"{epath.Path(workdir) / 'config.json'}: not what a pretraining run writes; put the "
            "old file back or give a new --workdir"
        ) from None
    store = "config.data.store"
    if before.get("data.tokenizer") != after.get("data.tokenizer"):
        keys = ("data.tokenizer", store)
        differ = {key: (before.get(key), after.get(key)) for key in keys}
        raise UserError(
            f"{workdir}: its checkpoint was trained with another tokenizer than the store was made "
            f"with; give the store of the run or a new --workdir\n{_diff(differ)}"
        )
    refused, frozen = found.refused, found.frozen
    stores = before.get(store), after.get(store)
    if any(key.startswith("data.") for key in refused) and stores[0] != stores[1]:
        refused = refused | {store: stores}  # may change; here it says why
    if frozen:
        raise UserError(
            f"{workdir}: cannot go on with another {', '.join([*refused, *frozen])}: a "
            f"finished phase cannot change, and {step} steps are done; put the old values back, "
            f"add a phase or give a new --workdir\n{_diff(refused | frozen)}"
        )
    if refused:
        raise UserError(
            f"{workdir}: cannot go on with another {', '.join(refused)} after {step} steps; "
            f"put the old values back or give a new --workdir\n{_diff(refused)}"
        )
    for key, (_, wanted) in found.too_few.items():
        raise UserError(
            f"{workdir}: {key}={wanted} is less than the {found.done} steps of it that are done; "
            f"give {found.done} or more, or a new --workdir\n{_diff(found.too_few)}"
        )


def _diff(values: Values) -> str:
    lines = []
    for key, (old, new) in values.items():
        lines += [f"{sign} {key}: {v}" for sign, v in (("-", old), ("+", new)) if v is not None]
    return "\n".join(lines)


def _of_run(description: Description) -> dict[str, Any]:
    """What of a description may stop a run, one value per key."""
    config = completed(description["config"], Config)
    return flatten({"config": config, "data": description["data"]})


def changes(old: Description, new: Description) -> list[str]:
    """A line for everything that is different and may be."""
    before = flatten(completed(old["config"], Config), "config")
    after = flatten(new["config"], "config")
    lines = []
    for index in range(len(old["config"]["phases"]), len(new["config"]["phases"])):
        lines.append(f"goes on with a new config.phases[{index}]")
    for index in range(len(new["config"]["phases"]), len(old["config"]["phases"])):
        lines.append(f"goes on without config.phases[{index}]")
    for key in [k for k in before if k in after and before[k] != after[k]]:
        bits = _BITS if _ROUNDS.match(key) else ""
        lines.append(f"goes on with {key}={after[key]} (was {before[key]}){bits}")
    for key in sorted(before.keys() - flatten(old["config"], "config")):
        if before[key] == after[key]:
            lines.append(f"takes {key}={after[key]}: a setting newer than the run")
    for name, version in new["versions"].items():
        was = old.get("versions", {}).get(name, version)
        if was != version:
            lines.append(f"goes on with {name} {version} (was {was}){_BITS}")
    was, now = old.get("devices"), new["devices"]
    if was and was != now:
        lines.append(f"goes on with {_devices(now)} (was {_devices(was)}){_BITS}")
    return lines


def _devices(devices: Description) -> str:
    axes = " ".join(f"{axis}={size}" for axis, size in devices["mesh"].items())
    return f"{devices['kind']} devices of mesh {axes}"
