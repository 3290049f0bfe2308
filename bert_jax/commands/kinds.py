"""The kinds of outputs that commands write: each is imported when a command line names one."""

import importlib
from typing import TYPE_CHECKING

from absl import flags

from bert_jax.commands.paths import FindKind
from bert_jax.errors import UsageError

if TYPE_CHECKING:
    from bert_jax.storage.outputs import OutputKind


def _kind(module: str, name: str) -> FindKind:
    def find(values: flags.FlagValues) -> "OutputKind":
        found: OutputKind = getattr(importlib.import_module(f"bert_jax.{module}"), name)
        return found

    return find


page = _kind("reporting.html", "PAGE")
batch_file = _kind("reporting.batch_view", "BATCH")
example_values = _kind("training.per_example", "EXAMPLE_VALUES")
vocabulary = _kind("data_pipeline.tokenizer.tokenizer", "VOCABULARY")
store = _kind("data_pipeline.store_build.build", "STORE")
work = _kind("data_pipeline.store_build.shards", "WORK")
example_folder = _kind("data_pipeline.export.example_files", "EXAMPLES")
vectors = _kind("api.vector_files", "VECTORS")
hard_negatives = _kind("api.hard_negatives", "HARD_NEGATIVES")
predictions = _kind("finetune.predict_file", "PREDICTIONS")
run = _kind("training.claim", "RUN")
export = _kind("publish.export", "EXPORT")
ablation_folder = _kind("ablation.record", "ABLATION")
demo_folder = _kind("demo.pipeline", "DEMO")
rendering = _kind("launch.job", "RENDERING")
_all_exports = _kind("publish.export", "EXPORTS")
_task_run = _kind("training.claim", "TASK_RUN")
_seeds = _kind("finetune.results", "SEEDS")


def exports(values: flags.FlagValues) -> "OutputKind":
    """The folder of an export, or of those of all checkpoints; UsageError if one is chosen, too."""
    for name in ("step", "revision"):
        if values.all_steps and values[name].value is not None:
            raise UsageError(f"--all_steps and --{name} exclude each other")
    return (_all_exports if values.all_steps else export)(values)


def task_runs(values: flags.FlagValues) -> "OutputKind":
    """The workdir of a run for a task, or the folder of those of several seeds."""
    return (_seeds if values.seeds > 1 else _task_run)(values)
