"""The description of a run, stored in its config.json: configuration, data, versions, devices."""

import functools
import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Protocol

from etils import epath

from bert_jax.config.recorded import head_of, recorded
from bert_jax.config.schema import Config, ModelConfig, PhaseConfig
from bert_jax.config.serialization import flatten, to_dict
from bert_jax.errors import StorageError, UserError
from bert_jax.extensions.registry import used_rows
from bert_jax.runtime.versions import software
from bert_jax.storage import json_record
from bert_jax.storage.digest import json_digest
from bert_jax.storage.read_files import read_bytes
from bert_jax.storage.regular_file import UnfitFileError
from bert_jax.storage.remote import STORAGE_RETRIES, is_transient, put, storage_errors
from bert_jax.storage.retry import retry
from bert_jax.workdir.layout import Workdir


class Split(Protocol):
    """A part of the data of a run."""

    @property
    def digest(self) -> str: ...


class Data(Protocol):
    """The data of a run: a token store, or the files of a task."""

    @property
    def tokenizer_digest(self) -> str: ...

    @property
    def train(self) -> Split: ...

    @property
    def held_out(self) -> Split: ...


def describe(
    config: Config,
    data: Data,
    rows_per_epoch: Sequence[int],
    shapes: Sequence[PhaseConfig] | None = None,
    *,
    mesh: Mapping[str, int],
    device_kind: str,
    init: str | None = None,
    init_step: int = 0,
    init_origin: str = "",
    teacher: ModelConfig | None = None,
    digests: Mapping[str, str] = MappingProxyType({}),
    files: Mapping[str, Any] = MappingProxyType({}),
    hub: Mapping[str, str] = MappingProxyType({}),
    words_per_step: Sequence[float | None] = (),
) -> dict[str, Any]:
    """Returns the run's description, stored in `config.json` and in every checkpoint.

    Args:
        rows_per_epoch: rows per epoch of each phase.
        shapes: the phases with the rows that their batches really have, if these are others.
        mesh: devices along each axis; the number of processes changes no result.
        device_kind: `jax.Device.device_kind` of the devices.
        init: digest of the model that the run starts from.
        init_step: updates done before the run, see `config.init_optimizer`.
        init_origin: name and commit of this model on the Hugging Face hub.
        teacher: the architecture of the model that pretraining learns from.
        digests: of what else it learns from.
        files: of a task, see `run_data.RunData`.
        hub: the commits of the models on the Hugging Face hub that the configuration names, see
            `storage.hub.recorded`.
        words_per_step: of each phase, see `config.words_seen`; None if they are not counted.
    """
    from bert_jax.metrics.flops import step_flops  # imports JAX, which `bert-jax status` need not

    values = recorded(config)
    modules = used_rows(flatten(values))
    return {
        "config": values,
        "data": {
            "tokenizer": data.tokenizer_digest,
            "train": data.train.digest,
            "held_out": data.held_out.digest,
            "rows_per_epoch": list(rows_per_epoch),
            **head_of(config.model),
            **({"init": init} if init else {}),
            **({"init_step": init_step} if init_step else {}),
            **digests,
        },
        # Not in "data", which must not change: a copy of the same arrays may not say it.
        **({"init_origin": init_origin} if init_origin else {}),
        **({"hub": dict(hub)} if hub else {}),
        **({"files": dict(files)} if files else {}),
        **({"modules": modules} if modules else {}),
        **({"words_per_step": list(words_per_step)} if _all_counted(words_per_step) else {}),
        "versions": software(),
        "devices": {"kind": device_kind, "mesh": dict(mesh)},
        "step_flops": [step_flops(config, phase, teacher) for phase in shapes or config.phases],
    }


def _all_counted(words_per_step: Sequence[float | None]) -> bool:
    return bool(words_per_step) and None not in words_per_step


def digest(config: Config) -> str:
    """Returns a short digest of a configuration: equal if and only if all values are."""
    return json_digest(to_dict(config))[:12]


def read_description(workdir: Workdir) -> dict[str, Any]:
    """Reads the description of the run in a workdir.

    Raises:
        UserError: the folder is not the workdir of a run.
    """
    path = workdir.config_json
    with storage_errors(path):
        try:
            data = retry(functools.partial(read_bytes, path), STORAGE_RETRIES)
            description: dict[str, Any] = json_record.parse(data)
            if is_description(description):
                return description
        except (FileNotFoundError, NotADirectoryError, ValueError, UnfitFileError):
            pass
        missing, near = not workdir.path.exists(), run_inside(workdir)
    reason = "not the workdir of a run (no valid config.json)"
    reason = "no such folder" if missing else reason
    remedy = near or "; give the --workdir that was given to `bert-jax pretrain` or `finetune`"
    raise UserError(f"{workdir}: {reason}{remedy}")


def training_command(task: str) -> str:
    """Returns the command that makes, and resumes, a run with this `config.task.name`."""
    return f"bert-jax {'finetune' if task else 'pretrain'}"


def run_inside(workdir: Workdir) -> str:
    """Returns the suggestion of the run in a folder: a demo's, or that of the first seed of a task;
    "" if there is none."""
    inside = (workdir.path / name for name in ("run", "seed-0"))
    inner = next((path for path in inside if (path / workdir.config_json.name).exists()), None)
    return f"; did you mean {inner}?" if inner else ""


def is_description(value: Any) -> bool:
    return json_record.has_form(value, _FORM)


def _is_budget(value: Any) -> bool:
    """Returns whether a value is the decision of a time budget, or None."""
    return value is None or (
        json_record.has_form(value, _BUDGET) and len(value["config_steps"]) == len(value["steps"])
    )


def _is_positive(value: Any) -> bool:
    return json_record.count(value) and value > 0


_BUDGET: Final = {
    "config_steps": [_is_positive],
    "steps": [_is_positive],
    "seconds": json_record.number,
}
_FORM: Final = {
    "config": {"phases": [{"steps": int}]},
    "data": {
        "init_step?": json_record.count,
        "init?": json_record.text,
        "teacher?": json_record.text,
    },
    "adopted?": [{"state": str}],
    "time_budget?": _is_budget,
    "devices?": {"kind": json_record.text, "mesh": {str: json_record.count}},
    "modules?": [dict.fromkeys(("key", "what", "row", "module", "sha256"), json_record.text)],
    "versions?": {str: json_record.text},
    "init_origin?": json_record.text,
    "hub?": {str: json_record.text},
    "words_per_step?": [json_record.number],
    "words_before?": json_record.number,
    "step_flops?": [lambda value: json_record.number(value) and value > 0],
}


def check_name(workdir: str) -> None:
    try:
        usable = "\0" not in workdir and bool(workdir.encode())
    except UnicodeEncodeError:
        usable = False
    if not usable:
        shown = workdir.encode("ascii", "backslashreplace").decode()
        raise UserError(f"--workdir={shown}: not valid UTF-8; give the folder another name")


def copy_tokenizer(workdir: Workdir, data: bytes) -> None:
    """Writes the tokenizer.json of a run's data into the workdir, byte for byte."""
    _write(workdir.tokenizer, data)


def has_config_json(workdir: Workdir) -> bool:
    with storage_errors(workdir.path):
        return retry(workdir.config_json.exists, STORAGE_RETRIES)


def write_config_json(workdir: Workdir, description: Mapping[str, Any]) -> None:
    _write(workdir.config_json, (json.dumps(description, indent=2) + "\n").encode())


def _write(path: epath.Path, data: bytes) -> None:
    """Writes a file atomically.

    Raises:
        UserError: the bucket does not exist, or permission is denied.
        StorageError: the disk or the bucket cannot be written to at the moment.
    """
    try:
        with storage_errors(path, "cannot be written"):
            retry(lambda: put(path, data), STORAGE_RETRIES)
    except UserError as error:
        if error.__cause__ and is_transient(error.__cause__):
            raise StorageError(str(error)) from error
        raise
