"""The record of a plan, which `ablate run` writes to the workdir of an ablation.

The keys of `ablation.json`:
    config              values of its file, `AblationConfig`
    base                values of the base of all runs: no report executes it, an edit is noticed
    store, stores       digests and sources of its store, and of the stores of variants
    modules             the rows of the user's modules that variants use, see `used_rows`
    task_files          digests of the training and held-out examples of each task
    seeds               the seeds, and when they were given; they may be added to
    first_report        when `ablate report` first ran, and the seeds of that time
    reports             each time when it ran on other seeds than before: those that were measured
"""

# Over 300 lines: what is recorded of a plan, and what may not change in it, is in one place.

import datetime
import json
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

from etils import epath

from bert_jax.ablation import stores, tasks
from bert_jax.ablation.layout import AblationDir
from bert_jax.ablation.places import check_commits, with_places
from bert_jax.ablation.spec import Ablation
from bert_jax.config.ablation import AblationConfig
from bert_jax.config.serialization import flatten, from_dict, to_dict
from bert_jax.config.shipped import shipped
from bert_jax.errors import UserError
from bert_jax.extensions.registry import check_rows, used_rows
from bert_jax.storage import json_record
from bert_jax.storage.digest import sha256
from bert_jax.storage.outputs import OutputKind, check_output
from bert_jax.storage.read_files import read_bytes
from bert_jax.storage.reader_errors import VALUE_ERRORS
from bert_jax.storage.remote import put, storage_errors

Record = Mapping[str, Any]
_SEEDS: Final = "config.seeds"
_PLAN: Final = ("config", "base", "store", "stores", "task_files")  # may not change
# Keys that records of earlier versions lack.
_SINCE: Final = ("base", "task_files", "store.sources", "config.consequences", "config.against")


class Added(NamedTuple):
    """Seeds that were added after a report."""

    seeds: tuple[int, ...]
    time: str
    reported: str  # time of the first report


def describe(ablation: Ablation) -> dict[str, Any]:
    """Returns what identifies an ablation.

    Raises:
        UserError: its store or the examples of a task cannot be read.
    """
    values, model = ablation.values, ablation.variants[0].config.model
    others = {
        variant.name: stores.identity(variant.config.data.store)
        for variant in ablation.variants
        if variant.config.data.store != values.store
    }
    files = tasks.file_digests(values, ablation.measures, model)
    used = (used_rows(flatten(to_dict(variant.config))) for variant in ablation.variants)
    modules = {json.dumps(row): row for row in chain.from_iterable(used)}
    about = {
        "config": to_dict(values),
        "base": ablation.base,
        "store": stores.identity(values.store),
        **({"stores": others} if others else {}),
        **({"task_files": files} if files else {}),
        **({"modules": [*modules.values()]} if modules else {}),
    }
    return dict(json.loads(json.dumps(about, default=str)))  # as it is read


def _is_ablation(folder: epath.Path) -> bool:
    """Returns whether `claim` wrote to a folder, or is about to: runs may be made before,
    elsewhere."""
    own = AblationDir.open(folder)
    if not own.record.exists():
        names = (path.name for path in folder.iterdir())
        return all(n == own.runs.name or n.startswith(f".{own.record.name}.") for n in names)
    read_record(own)
    return True


ABLATION: Final = OutputKind("ablation", _is_ablation, is_folder=True)


def claim(workdir: AblationDir, ablation: Ablation) -> None:
    """Writes `ablation.json`, or checks that the folder is of this ablation; seeds may be added.

    Raises:
        UserError: the folder is of others, of another ablation, or of this one with another value;
            names it; or a new one, as `check_commits`.
    """
    if not workdir.record.exists():
        check_commits(variant.config for variant in ablation.variants)
    stores_ = {variant.config.data.store for variant in ablation.variants}
    check_output(workdir.path, ABLATION, inputs=[ablation.values.store, *stores_])
    new, path = describe(ablation), workdir.record
    old = read_record(workdir) if path.exists() else {}
    if old:
        _check_same(workdir, old, new)
    before = list(old.get("seeds", ()))
    if old and not before:  # of an earlier version
        before = [{"seeds": old["config"]["seeds"], "time": ""}]
    if not before or before[-1]["seeds"] != new["config"]["seeds"]:
        before.append({"seeds": new["config"]["seeds"], "time": _now()})
    new["seeds"] = before
    if "reports" in old:
        new["reports"] = old["reports"]
    if "first_report" in old:
        new["first_report"] = old["first_report"]
    elif old and workdir.report.with_suffix(".json").exists():  # of an earlier version
        new["first_report"] = {"seeds": old["config"]["seeds"], "time": ""}
    if old != new:
        _write(path, new)


def note_report(workdir: AblationDir, measured: Sequence[int]) -> None:
    """Keeps when the first report was made and of which planned seeds, and what each one saw.

    measured: seeds of which a variant can be compared with the reference.
    """
    found = read_record(workdir)
    reports, seeds = list(found.get("reports", ())), ",".join(map(str, measured))
    is_first = "first_report" not in found
    is_new = bool(seeds) and (not reports or reports[-1]["seeds"] != seeds)
    if not is_first and not is_new:
        return
    now = _now()
    first = {"first_report": {"seeds": found["config"]["seeds"], "time": now}} if is_first else {}
    more = {"reports": [*reports, {"seeds": seeds, "time": now}]} if is_new else {}
    _write(workdir.record, {**found, **first, **more})


def seen(found: Record) -> list[tuple[int, ...]]:
    """Returns the measured seeds that each report saw, in their order."""
    return [tuple(_seeds(entry["seeds"])) for entry in found.get("reports", ())]


def added_seeds(found: Record) -> list[Added]:
    """Returns the seeds that were added after the first report, in their order."""
    first = found.get("first_report")
    if not first:
        return []
    known, added = set(_seeds(first["seeds"])), []
    for entry in found.get("seeds", ()):
        if new := tuple(seed for seed in _seeds(entry["seeds"]) if seed not in known):
            added.append(Added(new, entry["time"], first["time"]))
            known.update(new)
    return added


def _seeds(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _write(path: epath.Path, values: Record) -> None:
    with storage_errors(path, "cannot be written"):
        put(path, (json.dumps(values, indent=2) + "\n").encode())


def _check_same(workdir: AblationDir, old: Record, new: Record) -> None:
    before, after = _by_key(old), _by_key(new)
    unknown = tuple(key for key in _SINCE if _lacks(old, key))
    for key in {**before, **after}:
        part, _, rest = key.partition(".")
        if unknown and key.startswith(unknown):
            continue
        if key == _SEEDS:
            seeds, given = before[key].split(","), after[key].split(",")
            if seeds[0] != given[0]:
                raise UserError(
                    f"{workdir}: the first seed of the ablation there is {seeds[0]}, not "
                    f"{given[0]}: the steps of all variants follow from it; begin config.seeds "
                    "with it"
                )
            if not set(seeds) - set(given):
                continue
        if before.get(key) == after.get(key):
            continue
        if part == "store":
            raise UserError(
                f"{new['config']['store']}: not the store of the ablation in {workdir} ({rest} "
                "differs); put the old one back, or give another --workdir"
            )
        if part == "task_files":
            raise UserError(
                f"config.tasks: the examples differ from those of the ablation in {workdir} "
                f"({rest}); put the old files back, or give another --workdir"
            )
        if part == "base":
            raise UserError(
                f"{new['config']['base']}: the base of the ablation in {workdir} has "
                f"{rest}={before.get(key)!r}, not {after.get(key)!r}; put the old value back, or "
                "give another --workdir"
            )
        if key != "config.store":  # a copy elsewhere is the same store
            raise UserError(
                f"{workdir}: the ablation there has {key}={before.get(key)!r}, not "
                f"{after.get(key)!r}; give another --workdir, or the file as it was"
            )


def _lacks(known: Any, key: str) -> bool:
    """Returns whether a record has no such key; a key with an empty list is there."""
    for part in key.split("."):
        if part not in known:
            return True
        known = known[part]
    return False


def _by_key(about: Record) -> dict[str, Any]:
    """Returns all values that may not change by their keys, those of a variant by its name, and the
    order of all."""
    config = about["config"]
    named = dict(config)  # in which earlier versions recorded some paths as they were typed
    for part in ("variants", "tasks"):
        named[part] = {name: with_places(dict(own)) for name, own in config.get(part, ())}
    named["changes"] = with_places(dict(config["changes"]))
    planned = {key: with_places(about[key]) for key in _PLAN if key in about}
    return {"config.variants": ", ".join(named["variants"])} | flatten({**planned, "config": named})


_CHANGES: Final = [(json_record.text, object)]
_NAMED: Final = [(json_record.text, _CHANGES)]
_CONFIG: Final = {
    "variants": _NAMED, "changes": _CHANGES, "tasks?": _NAMED, "seeds": json_record.text,
}  # fmt: skip
_STORE: Final = dict.fromkeys(("train", "held_out", "tokenizer"), json_record.text)


def read_record(workdir: AblationDir) -> dict[str, Any]:
    """Returns what the workdir of an ablation records; UserError if it is none."""
    path = workdir.record
    if not path.exists():
        raise UserError(
            f"{workdir}: no {path.name} there; give the --workdir of `bert-jax ablate run`"
        )
    try:
        with storage_errors(path):
            values: dict[str, Any] = json_record.read_json(
                path, {"config": _CONFIG, "store": _STORE}
            )
        _check_form(values)
        check_rows(values.get("modules", ()))
    except UserError:
        raise
    except VALUE_ERRORS as error:
        raise UserError(
            f"{path}: not written by `bert-jax ablate run`; give another --workdir"
        ) from error
    return values


def _check_form(values: Record) -> None:
    """Raises an error of those that `read` handles if a record has another form."""
    _by_key(values)
    first = filter(None, [values.get("first_report")])
    for entry in (*values.get("seeds", ()), *values.get("reports", ()), *first):
        _seeds(entry["seeds"])
        entry["time"].encode()
    for part in ("base", "store", "stores", "task_files"):
        values.get(part, {}).items()
    if "\\u0000" in json.dumps(values):  # in a path
        raise ValueError("NUL")


def values_of(found: Record) -> AblationConfig:
    """Returns the values of the file of an ablation."""
    return from_dict(found["config"], AblationConfig)


def base_of(workdir: AblationDir, found: Record) -> Mapping[str, Any] | None:
    """Returns the values of the base of all runs; None if it is a shipped config, of a record that
    an earlier version wrote.

    Raises:
        UserError: an earlier version wrote the record, and the base is a file. It is not executed:
            the record may come from anywhere.
    """
    if "base" in found:
        return dict(found["base"])
    name = found["config"].get("base", AblationConfig.base)
    if name in shipped():
        return None
    raise UserError(
        f"{workdir.record}: written by an earlier version, without the values of the base {name}; "
        "a report never executes a config file, so run the same `bert-jax ablate run` command "
        "again to record them"
    )


def note_command(workdir: AblationDir, line: str) -> None:
    """Keeps the line of a command that makes runs; each has its own file, as several may start at
    once."""
    path = workdir.commands / sha256(line.encode())[:12]
    with storage_errors(path, "cannot be written"):
        if not path.exists():
            put(path, f"{line}\n".encode())


def commands(workdir: AblationDir) -> list[str]:
    """Returns the lines of the commands that made runs."""
    with storage_errors(workdir.commands):
        files = sorted(workdir.commands.iterdir()) if workdir.commands.exists() else []
        return sorted(read_bytes(path).decode("utf-8", "replace").rstrip() for path in files)
