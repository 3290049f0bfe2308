"""Checks that a run is what the plan says. A verdict compares no other runs.

What is compared: the configuration of the run and of its checkpoints, without the paths of data;
digests of its store, of the models that it read, of its held-out text and of the files of its
tasks; the sources; the forms in which it was measured; and its id, which no other run has.
"""

# Over 300 lines: all by which a run may be another than planned is compared in one place.

import dataclasses
import functools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, TypeVar

from bert_jax.ablation import tasks
from bert_jax.ablation.layout import AblationDir
from bert_jax.ablation.places import TEACHER
from bert_jax.ablation.record import Record
from bert_jax.ablation.spec import Ablation, Run
from bert_jax.checkpoint import catalog
from bert_jax.config.recorded import recorded
from bert_jax.config.schema import Config
from bert_jax.config.serialization import completed, flatten
from bert_jax.errors import UserError
from bert_jax.training.eval_setting import OWN, EvalSetting
from bert_jax.workdir import description
from bert_jax.workdir.layout import Workdir

# Their digests are compared; the width follows from the teacher.
_PATHS: Final = re.compile(r"config\.(data\.store|init|teacher|model\.teacher_width)")
# Of a fine-tuned run the number of its examples decides these, alike for all of one tokenizer.
_DECIDED: Final = re.compile(
    r"config\.(phases\[0\]\.steps|optimizer\.warmup_steps|(checkpoint|evaluation)\.every_steps)"
)
_TASK_PATHS: Final = re.compile(
    rf"{_PATHS.pattern}|config\.task\.(data|held_out|teacher)|{_DECIDED.pattern}"
)
Key = TypeVar("Key")
Model = tuple[Any, ...]  # its key and name, and what decides which of its arrays are read
_SHOWN: Final = 3  # differences of a run
_DIGEST: Final = 12  # shown characters


@dataclasses.dataclass(frozen=True)
class RunRecord:
    """The record of a run in its workdir.

    Attributes:
        config_json: empty if it is damaged, None without one.
        checkpoints: the metadata of those that are not damaged.
    """

    workdir: Workdir
    config_json: Mapping[str, Any] | None
    checkpoints: Sequence[Mapping[str, Any]]

    @classmethod
    def read(cls, own: Workdir) -> "RunRecord":
        try:
            known = description.read_description(own) if description.has_config_json(own) else None
        except UserError:
            known = {}
        return cls(own, known, list(_checkpoints(own)))

    @property
    def started(self) -> bool:
        return self.config_json is not None or bool(self.checkpoints)

    @property
    def all(self) -> list[Mapping[str, Any]]:
        """The descriptions of the run: that of config.json first, then those of checkpoints."""
        return [each for each in (self.config_json, *self.checkpoints) if each]

    @property
    def first_step(self) -> int:
        """Updates done before the run, see `config.init_optimizer`."""
        return int((self.config_json or {}).get("data", {}).get("init_step", 0))

    @property
    def run_ids(self) -> list[str]:
        return list(dict.fromkeys(str(own["run_id"]) for own in self.all if own.get("run_id")))


class Workdirs:
    """The workdirs of the runs of an ablation; each is read once."""

    def __init__(self, root: AblationDir):
        self.root = root
        self._record = functools.cache(RunRecord.read)

    def of(self, run: Run, task: str = "") -> RunRecord:
        """task: for the run that was fine-tuned for it."""
        return self._record(self.root.run(run, task))


def differences(ablation: Ablation, workdirs: Workdirs, run: Run, plan: Record) -> list[str]:
    """Returns in what a run is not as planned, by its own configuration and its checkpoints;
    nothing where none was started.

    plan: what `ablation.json` records.
    """
    found = _of_workdir(workdirs.of(run), run.config, _store_of(plan, run), _PATHS)
    for measure in ablation.tasks:
        found += _of_task(ablation, workdirs, run, measure, plan)
    return found


def of_values(ablation: Ablation, run: Run, plan: Record, about: Mapping[str, Any]) -> list[str]:
    """Returns in what the held-out values of a run are not as planned.

    about: of its file of examples, see `training/per_example.py`.
    """
    store, phase = _store_of(plan, run), run.config.phases[-1]
    found = [*_digest("held-out text", about["held_out"], store["held_out"])]
    sources = store.get("sources")  # not in the records of earlier versions
    if sources is not None and about["sources"] != sources:
        found.append(f"sources {', '.join(about['sources'])}, not {', '.join(sources)}")
    forms = {OWN: EvalSetting.of(run.config, phase)}
    for form in map(ablation.form, ablation.texts):
        forms[form] = EvalSetting.parse(form, phase.seq_length)
    for name, asked in forms.items():
        settings = json.loads(json.dumps(asked.settings()))
        own = EvalSetting.completed(about["forms"][name]["settings"])
        for key, text in _differing(own, settings):
            found.append(f"measured in {name} with {key}{text}")
    return found


def of_task_values(
    workdirs: Workdirs, run: Run, measure: str, plan: Record, about: Mapping[str, Any]
) -> list[str]:
    """Returns the same of the values of the held-out examples of a task."""
    files = plan.get("task_files", {}).get(measure.removeprefix(tasks.PREFIX), {})
    planned = files.get("held_out", about["held_out"])  # not in the records of earlier versions
    found = [*_digest(f"{measure}: held-out examples", about["held_out"], planned)]
    record = workdirs.of(run, measure)
    if not record.started:
        found.append(f"{measure}: {record.workdir} is missing, the run with these values")
    if (known := record.config_json) and known.get("run_id") != about["run_id"]:
        found.append(f"{measure}: its values are those of another run ({about['run_id']})")
    if known and about["step"] != (
        steps := completed(known["config"], Config)["phases"][0]["steps"]
    ):
        found.append(f"{measure}: measured at step {about['step']}, not {steps}")
    return found


def between(
    ablation: Ablation, workdirs: Workdirs, runs: Sequence[Run]
) -> Iterator[tuple[str, str]]:
    """Yields runs that cannot both be as planned: two with one id, or two that have read models
    with one name and other arrays."""
    ids, models = dict[str, list[str]](), dict[Model, dict[str, list[str]]]()
    for run in runs:
        own = workdirs.of(run)
        for record in (own, *(workdirs.of(run, task) for task in ablation.tasks)):
            for run_id in record.run_ids:
                ids.setdefault(run_id, []).append(run.name)
        for where, digest in _models(ablation, workdirs, run):
            models.setdefault(where, {}).setdefault(digest, []).append(run.name)
    for run_id, names in ids.items():
        for name in names if len(names) > 1 else ():
            others = ", ".join(dict.fromkeys(each for each in names if each != name)) or name
            yield name, f"run_id {run_id}, which is also that of {others}"
    for (where, *_), by_digest in models.items():
        for name in chain.from_iterable(by_digest.values()) if len(by_digest) > 1 else ():
            yield name, f"{where} was another model for other runs"


def _models(ablation: Ablation, workdirs: Workdirs, run: Run) -> Iterator[tuple[Model, str]]:
    """Yields each model that a run has read, with the settings that decide which of its arrays, and
    the digest of these."""
    config, own = run.config, workdirs.of(run)
    taken = (
        *(config.init_optimizer, config.init_weights),
        *(config.data.replaced_tokens, config.model.generator.embedding_sharing),
    )
    read: list[tuple[str, str, str, RunRecord, Model]] = [
        ("config.init", config.init, "init", own, taken),
        ("config.teacher", config.teacher, "teacher", own, ()),
    ]
    for measure in ablation.tasks:
        name = tasks.settings_of(ablation.values, measure).get(TEACHER, "")
        where = f"{measure}: config.{TEACHER}"
        read.append((where, name, "teacher", workdirs.of(run, measure), ()))
    for where, name, key, record, how in read:
        if name and record.config_json:
            yield (f"{where}={name}", *how), str(record.config_json["data"].get(key))


def between_tasks(
    ablation: Ablation, workdirs: Workdirs, runs: Sequence[Run]
) -> Iterator[tuple[str, str]]:
    """Yields runs whose fine-tuned runs cannot all be as planned: with other steps than most of
    one tokenizer have, two from one model, or one run's from several models."""
    starts, models = dict[str, list[str]](), dict[str, dict[str, None]]()
    for measure in ablation.tasks:
        groups = dict[str, dict[tuple[tuple[str, Any], ...], list[str]]]()
        for run in runs:
            known = workdirs.of(run, measure).config_json
            if not known:
                continue
            try:
                values = flatten({"config": completed(known["config"], Config)})
            except (KeyError, TypeError, AttributeError):  # which `differences` names
                continue
            own = tuple((key, values[key]) for key in sorted(values) if _DECIDED.fullmatch(key))
            of_tokenizer = groups.setdefault(str(known["data"].get("tokenizer")), {})
            of_tokenizer.setdefault(own, []).append(run.name)
            if init := known["data"].get("init"):
                starts.setdefault(str(init), []).append(run.name)
                models.setdefault(run.name, {})[str(init)] = None
        for found in groups.values():
            for own in unusual(found):
                theirs = max((each for each in found if each != own), key=lambda x: len(found[x]))
                for key, text in _differing(dict(own), dict(theirs)):
                    for name in found[own]:
                        yield name, f"{measure}: {key}{text}, as other runs have"
    for init, names in starts.items():
        for name in dict.fromkeys(names) if len(set(names)) > 1 else ():
            others = ", ".join(each for each in dict.fromkeys(names) if each != name)
            yield name, f"fine-tuned from the model {init[:_DIGEST]}, as {others}"
    for name, digests in models.items():
        if len(digests) > 1:
            yield name, "its tasks start from several models"


def unusual(groups: Mapping[Key, Sequence[str]]) -> list[Key]:
    """Returns the groups of runs that are not the largest one; all, if several are the largest:
    which of them is right is unknown."""
    most = max(map(len, groups.values()), default=0)
    largest = [key for key, names in groups.items() if len(names) == most]
    return [key for key in groups if len(groups) > 1 and largest != [key]]


def software(record: RunRecord) -> dict[str, str]:
    """Returns the versions and the devices that a run was last trained with."""
    known = record.config_json or {}
    mesh = known.get("devices", {}).get("mesh", {})
    devices = {"devices": f"{math.prod(mesh.values())} {known['devices']['kind']}"} if mesh else {}
    return {**known.get("versions", {}), **devices}


def _of_task(
    ablation: Ablation, workdirs: Workdirs, run: Run, measure: str, plan: Record
) -> list[str]:
    record, start = workdirs.of(run, measure), str(workdirs.root.run(run))
    model = run.config.with_model_of(run.config.phases[-1]).model  # of its last checkpoint
    config = tasks.config_of(ablation.values, measure, model, start, run.seed)
    name = measure.removeprefix(tasks.PREFIX)
    data = {"tokenizer": _store_of(plan, run)["tokenizer"]}
    data |= plan.get("task_files", {}).get(name, {})
    found = _of_workdir(record, config, data, _TASK_PATHS)
    known = record.config_json
    init = str(known["config"].get("init")) if known else start
    if not init.endswith(f"/{run.name}"):
        found.append(f"config.init={init}, not {start}")
    return [f"{measure}: {each}" for each in found]


def _of_workdir(
    record: RunRecord, config: Config, data: Mapping[str, Any], paths: re.Pattern[str]
) -> list[str]:
    """Returns in what the configurations and the data of a workdir are not as planned."""
    expected = flatten({"config": recorded(config)})
    found = dict[str, None]()
    if record.started and not record.config_json:
        what = "is missing" if record.config_json is None else "cannot be read"
        found[f"{record.workdir.config_json} {what}"] = None
    if len(record.run_ids) > 1:
        found[f"config.json and its checkpoints are of runs {', '.join(record.run_ids)}"] = None
    for each in record.all:
        try:
            settings = flatten({"config": completed(each["config"], Config)})
            digests = {key: each["data"].get(key) for key in data}
        except (KeyError, TypeError, AttributeError):
            return [f"{record.workdir}: a configuration of another form"]
        for key, text in _differing(settings, expected):
            if not paths.fullmatch(key):
                found[f"{key}{text}"] = None
        for key in ("tokenizer", "train", "held_out"):
            if key in data:
                found |= dict.fromkeys(_digest(f"data.{key}", digests[key], data[key]))
    for entry in (record.config_json or {}).get("adopted", ()):
        found[f"step {entry.get('step')} adopted from run {entry.get('run_id')}"] = None
    return list(found)


def _checkpoints(own: Workdir) -> Iterator[Mapping[str, Any]]:
    for step in catalog.complete_steps(own.checkpoints):
        try:
            yield catalog.read_meta(own.checkpoints, step)
        except catalog.DamagedError:  # not the one that was measured
            continue


def _store_of(plan: Record, run: Run) -> Mapping[str, Any]:
    return dict(plan.get("stores", {}).get(run.variant, plan["store"]))


def _differing(own: Mapping[str, Any], planned: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields each key whose value is another one, and the text "=0.1, not 0.2"."""
    for key in {**planned, **own}:
        if own.get(key) != planned.get(key):
            yield key, f"={own.get(key)!r}, not {planned.get(key)!r}"


def _digest(what: str, own: Any, planned: str) -> Iterator[str]:
    if own != planned:
        yield f"{what} {str(own)[:_DIGEST]}, not {planned[:_DIGEST]}"


def sentence(found: Sequence[str]) -> str:
    """Returns what a run is that is not as planned, from its differences."""
    more = len(found) - _SHOWN
    shown = [*found[:_SHOWN], *([f"{more} more"] if more > 0 else [])]
    return f"not as planned: {'; '.join(shown)}"
