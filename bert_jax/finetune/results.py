"""The results of fine-tuned runs on the held-out examples: each seed, median, range, baselines."""

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

from etils import epath

from bert_jax.checkpoint.manager import chosen_step, known_run
from bert_jax.config.schema import Config, ModelConfig
from bert_jax.finetune.find_model import FILE
from bert_jax.finetune.task_data import TaskData
from bert_jax.finetune.tasks.kind import Measured
from bert_jax.finetune.tasks.task_kinds import kind_of
from bert_jax.metrics import run_records
from bert_jax.metrics.run_records import shown
from bert_jax.runtime.console import console, table
from bert_jax.storage import json_record
from bert_jax.storage.outputs import OutputKind
from bert_jax.storage.remote import open_path, put, storage_errors
from bert_jax.training.claim import check_free
from bert_jax.workdir.layout import Workdir

_RESULTS: Final = dict.fromkeys(("task", "metrics", "runs"), object)
_SEED: Final = re.compile(r"seed-\d+")


def _has_seeds(folder: epath.Path) -> bool:
    """Returns whether a folder has nothing but the runs of several seeds and their results."""
    names = {path.name for path in folder.iterdir()}
    if not all(name == FILE or _SEED.fullmatch(name) for name in names):
        return False
    for name in filter(_SEED.fullmatch, names):
        check_free(Workdir.open(folder / name))
    return FILE not in names or json_record.holds(folder / FILE, _RESULTS)


SEEDS: Final = OutputKind("folder of runs", _has_seeds, is_folder=True)


def run_result(config: Config, folder: epath.PathLike) -> dict[str, Any]:
    """Returns the step and the metrics of the checkpoint that a run keeps, and where it was
    compared before training, the rows beside it; a metric that is not defined is None."""
    run = Workdir.open(folder)
    step = chosen_step(run, None, known_run(run))
    logged = [*run_records.records(run.metrics)]
    found = next(r for r in run_records.of_kind(logged, "eval") if r["step"] == step)
    measured, beside = run_records.task_metrics(found), run_records.compared(logged)
    return {
        "run": run.name,
        "seed": config.seed,
        "step": step,
        **run_records.strict(measured),
        **({"beside": beside} if beside else {}),
    }


def write_results(
    folder: epath.PathLike, config: Config, data: TaskData, runs: Sequence[dict[str, Any]]
) -> None:
    """Prints the results of runs with their median and range, beside the baselines, and writes them
    to `FILE` in the folder."""
    kind, task, held_out = data.kind, config.task, data.held_out.examples
    names = data.metrics(task)
    baselines = kind.baselines(task, data.train.examples, held_out)
    trivial = _medians([run.get("beside", {}) for run in runs])
    trivial |= {what: kind.compute_metrics(task, held_out, x) for what, x in baselines.items()}
    defined = {name: [run[name] for run in runs if run[name] is not None] for name in names}
    values: dict[str, Any] = {
        "task": task.name,
        "metrics": list(names),
        "examples": len(held_out.examples),
        "runs": list(runs),
        "median": {n: statistics.median(found) if found else None for n, found in defined.items()},
        "range": {n: [f(found, default=None) for f in (min, max)] for n, found in defined.items()},
        "baselines": {name: dict(measured) for name, measured in trivial.items()},
    }
    path = open_path(folder) / FILE
    with storage_errors(path, "cannot be written"):
        put(path, (json.dumps(values, indent=2) + "\n").encode())
    rows = [[f"seed {run['seed']}", *(shown(run[name]) for name in names)] for run in runs]
    if len(runs) > 1:
        rows.append(["median", *(shown(values["median"][name]) for name in names)])
        spans = (values["range"][name] for name in names)
        rows.append(["range", *(" to ".join(map(shown, span)) for span in spans)])
    rows += [
        [what, *(shown(found[n]) if n in found else "-" for n in names)]
        for what, found in trivial.items()
    ]
    console.print(f"{len(held_out.examples):,} held-out examples; in {path}", markup=False)
    console.print(table([task.name, *names], rows), markup=False)
    keys = data.decides_steps(config), "optimizer.learning_rate"
    if line := _below(config, names[0], values["median"], values["baselines"], keys):
        console.print(line, markup=False)


def _medians(beside: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, Measured]:
    """Returns the rows beside runs, each metric the median of theirs."""
    found: dict[str, Measured] = {}
    for name, first in next(iter(beside), {}).items():
        own = [rows[name] for rows in beside if name in rows]
        found[name] = {metric: statistics.median(row[metric] for row in own) for metric in first}
    return found


def _below(
    config: Config,
    name: str,
    found: Mapping[str, Any],
    baselines: Mapping[str, Any],
    keys: Sequence[str],
) -> str:
    """Returns a line with what to try if a baseline has a higher metric, or one where that of the
    runs is not defined; "" if none has. keys: of the config, of which other values may help."""
    values = {what: measured.get(name) for what, measured in baselines.items()}
    known = {what: value for what, value in values.items() if value is not None}
    best = max(known, key=lambda what: known[what], default="")
    if not best or (found[name] is not None and known[best] <= found[name]):
        return ""
    problem = f"is below that of {best}"
    if found[name] is None:
        problem = f"is not defined: all predictions may be the same; {best} has {known[best]:.3f}"
    has_rule = config.optimizer.base_width or config.model.hidden_size >= ModelConfig().hidden_size
    makes_vectors = kind_of(config.task).pools  # which the recipe does not train
    recipe = (
        ""
        if has_rule or makes_vectors
        else "take the recipe for small models, --config=glue_small, "
    )
    return (
        f"{name} {problem}: {recipe}pretrain for longer, start from a larger model "
        f"(config.init), or try other values of {' and '.join(f'config.{key}' for key in keys)}"
    )
