"""The facts about a run that its model card lists, from the workdir and a checkpoint's metadata."""

from collections.abc import Mapping
from typing import Any

from bert_jax.config.optimizer_settings import Weights
from bert_jax.config.recorded import config_of
from bert_jax.config.schema import Config
from bert_jax.config.serialization import flatten
from bert_jax.data_pipeline.store.manifest import read_manifest, split_digest
from bert_jax.data_pipeline.store_build.units import commits_in
from bert_jax.errors import UserError
from bert_jax.metrics import run_records
from bert_jax.objectives.known_objectives import learned_by
from bert_jax.publish.model_card import Card
from bert_jax.publish.task_card import UNUSED, read_task
from bert_jax.reporting.run_facts import run_facts, trained_length
from bert_jax.storage import hub
from bert_jax.training.eval_setting import EvalSetting
from bert_jax.workdir.find_store import find_store
from bert_jax.workdir.layout import Workdir


def read_card(run: Workdir, meta: Mapping[str, Any], weights: Weights = "last") -> Card:
    """Returns the facts about weights of a checkpoint; meta: as stored with it."""
    config, step = config_of(meta), meta["step"]
    task = read_task(config, meta)
    left_out = UNUSED if task else ("data.store",)  # a path on the machine that trained
    settings = {
        key: value
        for key, value in flatten(dict(meta["config"])).items()
        if not any(key == name or key.startswith(f"{name}.") for name in left_out)
    }
    manifest = _text(find_store(run, config.data.store, meta["data"]), meta["data"])
    measured = [
        record for record in run_records.read_records(run.metrics, "eval") if record["step"] <= step
    ]
    training = run_facts(meta, step, run_records.records(run.metrics))
    if weights == "ema":
        measured = []  # the run measures the others
        decay = f"decay {config.optimizer.ema_decay:g}"
        training["weights"] = f"exponential moving average of those after each step, {decay}"
    return Card(
        step=step,
        length=trained_length(config, step),
        form=_form(config, meta),
        objectives=learned_by(config),
        training=training,
        settings=settings,
        sources=manifest.get("sources", ()),
        datasets=hub.datasets_in(commits_in(manifest.get("build") or {}) | meta.get("hub", {})),
        languages=manifest.get("languages", ()),
        metrics=measured[-1] if measured else None,
        task=task,
    )


def _form(config: Config, meta: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns how the phase of a checkpoint is evaluated; empty of a task, which has no such text,
    and of a checkpoint without a phase."""
    if config.task.name or "phase" not in meta:
        return {}
    return EvalSetting.of(config, config.phases[meta["phase"]]).settings()


def _text(store: str, digests: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the manifest of the store; empty if it is not the store that was trained on."""
    try:
        manifest = read_manifest(store)
    except UserError:
        return {}
    same = split_digest("train", manifest["files"]) == digests["train"]
    return manifest if same else {}
