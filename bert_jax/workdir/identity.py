"""Identity of a run: what may change when it resumes, and whether a checkpoint belongs to it.

A run has a random id, created when its workdir is first claimed and stored in `config.json` and in
the `meta` of every checkpoint. If either has no id (an earlier version wrote it), the rest of the
checkpoint's metadata is compared instead: configuration, seed, digests of store and tokenizer, by
the same rules that decide what may change when a run resumes.
"""

import dataclasses
import re
import secrets
from collections.abc import Mapping
from typing import Any

from bert_jax.config.on_resume import OnResume, on_resume
from bert_jax.config.schema import Config
from bert_jax.config.serialization import completed, flatten
from bert_jax.errors import UserError
from bert_jax.extensions.registry import check_rows
from bert_jax.storage.digest import json_digest
from bert_jax.workdir.layout import Workdir

_OF_PHASE = re.compile(r"(?:config\.phases|data\.rows_per_epoch)\[(\d+)\]")
_WIDTH = "config.model.teacher_width"  # follows from the teacher and cannot be set
# What is recorded of a model -> the keys that may name it.
_MODELS: dict[str, tuple[str, ...]] = {
    "data.init": ("config.init",),
    "data.teacher": ("config.teacher", "config.task.teacher"),
    _WIDTH: ("config.teacher",),
}
_BITS = ": the last bits may differ"
_SHOWN = 3  # differences listed in the message about another run's checkpoint

Description = Mapping[str, Any]


def new_id() -> str:
    """Returns a random id for a run, 16 hexadecimal digits."""
    return secrets.token_hex(8)


def foreign_reason(meta: Description, run: Description) -> str:
    """Returns why a checkpoint does not belong to this run, an empty string if it does.

    Args:
        meta: the checkpoint's metadata.
        run: the description that the run was last started with.
    """
    if is_adopted(meta, run):
        return ""
    theirs, ours = meta.get("run_id"), run.get("run_id")
    if theirs and theirs == ours:
        return ""
    try:
        differences = compare(meta, run, meta["step"])
    except (KeyError, TypeError, AttributeError):
        return "of another run: it does not record a configuration"
    reasons = [f"run id {theirs}, not {ours}"] if theirs and ours else []
    differ = {**differences.refused, **differences.frozen, **differences.too_few}
    for key in sorted(differ, key=lambda key: not key.startswith("data.")):  # digests first
        reasons.append(f"{key} is {_short(key, differ[key][0])}, not {_short(key, differ[key][1])}")
    if len(reasons) > _SHOWN:
        reasons[_SHOWN:] = [f"{len(reasons) - _SHOWN} more"]
    return f"of another run: {', '.join(reasons)}" if reasons else ""


def is_adopted(meta: Description, run: Description) -> bool:
    """Returns whether this run adopted the checkpoint from another run (--adopt)."""
    return any(entry["state"] == _state(meta) for entry in run.get("adopted", ()))


def adoption(meta: Description, why: str) -> dict[str, Any]:
    """Returns the entry for another run's checkpoint in `adopted` of config.json.

    why: the reason that `foreign_reason` returned.
    """
    return {
        "step": meta["step"],
        "run_id": meta.get("run_id"),
        "state": _state(meta),
        "why": why,
    }


def _state(meta: Description) -> str:
    """Returns a digest of the step and all fingerprints, which identifies the saved arrays."""
    return json_digest([meta["step"], meta.get("fingerprints")])


def _short(key: str, value: Any) -> str:
    return str(value)[:12] if key.startswith("data.") else str(value)


Values = dict[str, tuple[Any, Any]]  # key -> (old, new)


@dataclasses.dataclass
class Comparison:
    """Differences that prevent a run from resuming, grouped by reason."""

    refused: Values = dataclasses.field(default_factory=dict)
    frozen: Values = dataclasses.field(default_factory=dict)  # of a finished phase
    too_few: Values = dataclasses.field(default_factory=dict)  # steps of the current phase
    done: int = 0  # updates of the current phase


def compare(old: Description, new: Description, step: int) -> Comparison:
    """Returns the differences between two descriptions that are not allowed after `step` updates.

    Raises:
        KeyError, TypeError, AttributeError: one of them is not a description.
    """
    before, after, phases = _comparable(old), _comparable(new), old["config"]["phases"]
    lengths, remaining = [phase["steps"] for phase in phases], len(new["config"]["phases"])
    starts = [0]
    for steps in lengths:
        starts.append(starts[-1] + steps)
    begun = sum(start < step for start in starts[:-1])  # phases with at least one update done
    finished = begun - (step < starts[begun])
    result = Comparison()
    for key in [k for k in {**before, **after} if before.get(k) != after.get(k)]:
        match = _OF_PHASE.match(key)
        if match is None:
            if _on_resume(key) is OnResume.FIXED:
                result.refused[key] = before.get(key), after.get(key)
            continue
        index = int(match[1])
        if index >= begun:
            continue
        group = result.frozen if index < finished else result.refused
        may_change = _on_resume(key) is not OnResume.FIXED and not _moves_masks(key, phases[index])
        if group is result.refused and may_change and index < remaining:
            continue
        if index >= remaining:
            group[f"config.phases[{index}]"] = f"{lengths[index]} steps", None
        elif key.startswith("config.") or not (result.frozen or result.refused):
            # Keys of `data` come last and are left out if settings listed already explain them.
            group[key] = before.get(key), after.get(key)
    if finished < begun and finished < remaining:
        result.done, wanted = step - starts[finished], new["config"]["phases"][finished]["steps"]
        if wanted < result.done:
            result.too_few[f"config.phases[{finished}].steps"] = lengths[finished], wanted
    return result


def check(workdir: Workdir, old: Description, new: Description, step: int) -> None:
    """Raises UserError if a run cannot resume under a new description after `step` updates.

    The error is one line with every such key, then a diff with one line per old and new value.

    Args:
        old: the previous description, from config.json or a checkpoint.
    """
    check_rows(old.get("modules", ()))
    try:
        before, after = _comparable(old), _comparable(new)
        differences = compare(old, new, step)
    except (KeyError, TypeError, AttributeError):
        raise UserError(
            f"{workdir.config_json}: not written by a pretraining run; put the "
            "old file back or give a new --workdir"
        ) from None
    store = "config.data.store"
    if before.get("data.tokenizer") != after.get("data.tokenizer"):
        keys = ("data.tokenizer", store)
        differ = {key: (before.get(key), after.get(key)) for key in keys}
        raise UserError(
            f"{workdir}: its checkpoint was trained with another tokenizer than the store was "
            f"built with; give the store of the run or a new --workdir\n{_diff(differ)}"
        )
    refused, frozen = differences.refused, differences.frozen
    stores = before.get(store), after.get(store)
    if any(key.startswith("data.") for key in refused) and stores[0] != stores[1]:
        refused = refused | {store: stores}  # may change; shown here as the cause
    refused, unmoved = _with_names(refused, before, after)
    if unmoved and not frozen and refused.keys() <= _MODELS.keys():
        raise UserError(
            f"{workdir}: {unmoved} has changed since the run started; put the old one back or "
            "give a new --workdir"
        )
    if frozen:
        raise UserError(
            f"{workdir}: cannot resume with another {', '.join([*refused, *frozen])}: a "
            f"finished phase cannot change, and {step} steps are done; put the old values back, or "
            f"start a new run from this one: --config.init={workdir} --workdir=…\n"
            f"{_diff(refused | frozen)}"
        )
    if refused:
        raise UserError(
            f"{workdir}: cannot resume with another {', '.join(refused)} after {step} steps; "
            f"put the old values back or give a new --workdir\n{_diff(refused)}"
        )
    for key, (_, wanted) in differences.too_few.items():
        raise UserError(
            f"{workdir}: {key}={wanted} is less than the {differences.done} steps already done; "
            f"give {differences.done} or more, or a new --workdir\n{_diff(differences.too_few)}"
        )


def _with_names(
    refused: Values, before: Mapping[str, Any], after: Mapping[str, Any]
) -> tuple[Values, str]:
    """Returns the differences with the keys that name another model than before, and `KEY=MODEL` of
    a model that differs under the same name; "" if there is none."""
    found, unmoved = dict(refused), ""
    for record in filter(refused.__contains__, _MODELS):
        named = {key: (before.get(key), after.get(key)) for key in _MODELS[record]}
        named = {key: both for key, both in named.items() if any(both)}
        if named and record == _WIDTH:
            del found[record]
        found |= {key: both for key, both in named.items() if both[0] != both[1]}
        unmoved = next((f"{key}={old}" for key, (old, new) in named.items() if old == new), unmoved)
    return found, unmoved


def _diff(values: Values) -> str:
    lines = []
    for key, (old, new) in values.items():
        lines += [f"{sign} {key}: {v}" for sign, v in (("-", old), ("+", new)) if v is not None]
    return "\n".join(lines)


def _on_resume(key: str) -> OnResume:
    """Returns whether a setting may change; digests and numbers of the data may not."""
    group, _, name = key.partition(".")
    return on_resume(Config, name) if group == "config" else OnResume.FIXED


def _moves_masks(key: str, phase: Mapping[str, Any]) -> bool:
    """Returns whether another value would give the steps already done other masks."""
    return key.endswith("].steps") and phase.get("mask_rate_end") is not None


def _comparable(description: Description) -> dict[str, Any]:
    """Returns the configuration and data of a description, flattened, with defaults filled in."""
    config = completed(description["config"], Config)
    return flatten({"config": config, "data": description["data"]})


def changes(old: Description, new: Description) -> list[str]:
    """Returns one line for each allowed difference."""
    before = flatten(completed(old["config"], Config), "config")
    after = flatten(new["config"], "config")
    lines = []
    for index in range(len(old["config"]["phases"]), len(new["config"]["phases"])):
        lines.append(f"resumes with a new config.phases[{index}]")
    for index in range(len(new["config"]["phases"]), len(old["config"]["phases"])):
        lines.append(f"resumes without config.phases[{index}]")
    for key in [k for k in before if k in after and before[k] != after[k]]:
        bits = _BITS if _on_resume(key) is OnResume.ROUNDS else ""
        lines.append(f"resumes with {key}={after[key]} (was {before[key]}){bits}")
    for key in sorted(before.keys() - flatten(old["config"], "config")):
        if before[key] == after[key] is not None:
            lines.append(f"uses {key}={after[key]}: a setting newer than the run")
    for name, version in new["versions"].items():
        was = old.get("versions", {}).get(name, version)
        if was != version:
            lines.append(f"resumes with {name} {version} (was {was}){_BITS}")
    was, now = old.get("devices"), new["devices"]
    if was and was != now:
        lines.append(f"resumes with {_devices(now)} (was {_devices(was)}){_BITS}")
    return lines


def _devices(devices: Description) -> str:
    axes = " ".join(f"{axis}={size}" for axis, size in devices["mesh"].items())
    return f"{devices['kind']} devices in mesh {axes}"
