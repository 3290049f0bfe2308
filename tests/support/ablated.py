"""A tiny ablation: its file, and its command as a process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from bert_jax.ablation import budget, record, spec
from bert_jax.ablation.layout import AblationDir
from bert_jax.ablation.measured import Measured
from bert_jax.ablation.results import Results
from bert_jax.ablation.state import RunState
from bert_jax.config.config_files import execute
from bert_jax.config.serialization import plain
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.training.per_example import PerExample

FILE = """
from bert_jax.config.ablation import ablation


def get_config():
    return ablation(
        base="tiny",
        changes={changes},
        variants={variants},
        seeds={seeds},
        measures={measures},
        tasks={tasks},
        primary="{primary}",
        equal="{equal}",
        published={{"A paper, table 1": (("variant", "F1"), ("reference", "90.1"))}},
    )
"""
CHANGES = {
    "model.hidden_size": 32,
    "model.intermediate_size": 64,
    "model.num_hidden_layers": 1,
    "model.max_position_embeddings": 32,
    "model.pad_vocab_to_multiple_of": 64,
    "data.pairing": "single",
    "model.hidden_dropout_prob": 0.0,
    "model.attention_probs_dropout_prob": 0.0,
    "phases[0].steps": 60,
    "phases[0].batch_size": 8,
    "phases[0].seq_length": 32,
    "phases[0].max_predictions": 5,
    "optimizer.name": "adamw",
    "optimizer.learning_rate": 1e-2,
    "optimizer.warmup_steps": 6,
    "checkpoint.every_steps": 10,
    "evaluation.every_steps": 20,
    "log_every_steps": 10,
}
VARIANTS = {"token": {}, "span": {"data.masking": "span"}}


def write(
    folder: Path,
    *,
    variants: dict[str, dict] = VARIANTS,
    seeds: tuple[int, ...] = (0, 1, 2),
    measures: tuple[str, ...] = ("single/token", "single/span"),
    equal: str = "steps",
    tasks: dict[str, dict] | None = None,
    primary: str = "single/token",
    **changes: object,
) -> Path:
    """Writes an ablation file; `changes` of the base by key, with "__" for a dot."""
    base = CHANGES | {key.replace("__", "."): value for key, value in changes.items()}
    path = folder / "ablation.py"
    values = {"variants": variants, "seeds": seeds, "measures": measures, "equal": equal}
    more = {"tasks": tasks or {}, "primary": primary}
    path.write_text(FILE.format(changes=base, **values, **more))
    return path


def words(file: Path, store: TokenStore, workdir: Path, *more: str) -> list[str]:
    return [
        "ablate", "run", f"--config={file}", f"--config.store={store.path}",
        f"--workdir={workdir}", "--cpu_devices=1", *more,
    ]  # fmt: skip


def start(words: list[str]) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "bert_jax", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
    )


def made_results(
    folder: Path,
    store: TokenStore,
    effects: dict[str, float],
    *,
    seeds: int = 5,
    failed: dict[str, float] | None = None,
    name: str = "{}",
    documents: int = 40,
) -> Results:
    """Results as of runs that were measured: in every variant the reference's losses plus an
    effect.

    effects: nats by variant. failed: run -> nats added to it. name: of variants, around their own.
    documents: that the 200 examples are in.
    """
    names = ["reference", *effects]
    variants = {
        name.format(each): {"optimizer.eps": 1e-6 + 1e-9 * n} for n, each in enumerate(names)
    }
    file = write(folder, variants=variants, seeds=tuple(range(seeds)))
    values = plain(execute(file)) | {"store": str(store.path)}
    ablation, planned = budget.equalize_budgets(
        spec.parse_ablation(values), {str(store.path): store}
    )
    plan = record.describe(ablation)
    (folder / "A").mkdir(exist_ok=True)
    own = AblationDir.open(folder / "A")
    own.record.write_text(json.dumps(plan))
    runs = spec.runs(ablation)
    rng = np.random.default_rng(8)
    examples = 200
    document = np.sort(np.arange(examples) % documents)
    measured = {}
    of_text = rng.gamma(3.0, 2.0, examples)
    for run in runs:
        effect = {name.format("reference"): 0.0, **{name.format(k): v for k, v in effects.items()}}
        count = np.full(examples, 4.0, np.float32)
        noise = rng.normal(0, 0.02, examples) + rng.normal(0, 0.002)
        added = effect[run.variant] + (failed or {}).get(run.name, 0.0)
        loss = ((of_text + noise + added) * count).astype(np.float32)
        sums = {"mlm": {"loss": loss, "count": count, "correct": (loss < 16).astype(np.float32)}}
        one = PerExample(document, (document % 2).astype(np.uint16), sums)
        forms = {"own": one, **{ablation.form(each): one for each in ablation.measures}}
        mean = float(loss.sum() / count.sum())
        metrics = {"mlm/loss": mean, "mlm/baseline_loss": 7.0, "mlm/accuracy": 0.3}
        measured[run.name] = Measured(
            run=run,
            forms=forms,
            metrics=dict.fromkeys(forms, metrics),
            bigram_loss=5.5,
            sources=("wiki", "books"),
            spent=planned[run.variant],
            is_recorded=True,
            software={},
            seconds=1.0,
        )
    states = {run.name: RunState("measured", 12) for run in runs}
    return Results(ablation, own, runs, states, measured, planned, {}, plan)
