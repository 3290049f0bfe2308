"""The facts about a run that its model card lists, from the workdir and a checkpoint's metadata."""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.config.schema import Config
from bert_jax.config.serialization import flatten, from_dict
from bert_jax.convert.model_card import Card
from bert_jax.data_pipeline.errors import UserError
from bert_jax.data_pipeline.store.manifest import read_manifest, split_digest
from bert_jax.metrics import records
from bert_jax.metrics.records import is_finite
from bert_jax.objectives.registry import chosen
from bert_jax.workdir.layout import Workdir


def read_card(run: Workdir, meta: Mapping[str, Any]) -> Card:
    """Returns the facts about a checkpoint; meta: as stored with it."""
    config, step = from_dict(meta["config"], Config), meta["step"]
    settings = flatten(dict(meta["config"]))
    settings.pop("data.store")  # a path on the machine that trained
    sources, languages = _text(config.data.store, meta["data"])
    measured = [record for record in records.read(run.metrics, "eval") if record["step"] <= step]
    return Card(
        step=step,
        length=trained_length(config, step),
        objectives=chosen(config.data, config.objectives),
        training=_training(run, meta, config),
        settings=settings,
        sources=sources,
        languages=languages,
        metrics=measured[-1] if measured else None,
    )


def trained_length(config: Config, step: int) -> int:
    """Returns the tokens of the longest sequences in the phases of the first `step` updates."""
    phases = zip(config.phases, _steps(config, max(step, 1)), strict=True)
    return max(phase.seq_length for phase, steps in phases if steps)


def _steps(config: Config, step: int) -> list[int]:
    """Returns how many of the first `step` updates are in each phase."""
    return [
        min(max(step - end + phase.steps, 0), phase.steps)
        for phase, end in zip(config.phases, config.phase_ends, strict=True)
    ]


def _training(run: Workdir, meta: Mapping[str, Any], config: Config) -> dict[str, str]:
    """Returns name -> text of what is known: older runs recorded less."""
    logged = [r for r in records.records(run.metrics) if r["step"] <= meta["step"]]
    times = [record["time"] for record in logged if is_finite(record.get("time"))]
    devices, versions = meta.get("devices"), meta.get("versions", {})
    tokens = _tokens_seen(config, meta["step"], logged)
    facts = {"steps": f"{meta['step']:,}"}
    if tokens is not None:
        facts["tokens seen, without padding"] = f"about {float(f'{tokens:.3g}'):,.0f}"
    if times:
        days = dict.fromkeys(map(_day, (min(times), max(times))))
        facts["dates (UTC)"] = " to ".join(days)
    if devices:
        count = math.prod(devices["mesh"].values())
        facts["devices"] = f"{count:,} {devices['kind']}"
    if versions:
        facts["software"] = ", ".join(f"{name} {versions[name]}" for name in versions)
    return facts


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))


def _tokens_seen(config: Config, step: int, logged: Sequence[Mapping[str, Any]]) -> float | None:
    """Returns the tokens of the first `step` updates, by the recorded share of padding in each
    phase; None if it was not recorded."""
    padding = {r["phase"]: r["padding"] for r in logged if r["kind"] == "train" and "padding" in r}
    tokens = 0.0
    for index, (phase, steps) in enumerate(zip(config.phases, _steps(config, step), strict=True)):
        if steps and index not in padding:
            return None
        tokens += steps * phase.batch_size * phase.row_tokens * (1 - padding.get(index, 0.0))
    return tokens


def _text(store: str, digests: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """Sources and languages of the store; empty if it is not the store that was trained on."""
    try:
        manifest = read_manifest(store)
    except UserError:
        return [], []
    if split_digest("train", manifest["files"]) != digests["train"]:
        return [], []
    return manifest["sources"], manifest["languages"]
