"""Runs of an ablation in their folders, as `pretrain` and `evaluate` leave them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ablated
import numpy as np
import pytest

from bert_jax.ablation import budget, record, results, spec, tasks
from bert_jax.ablation.layout import AblationDir
from bert_jax.checkpoint import catalog
from bert_jax.config.config_files import execute
from bert_jax.config.recorded import recorded
from bert_jax.config.serialization import plain
from bert_jax.data_pipeline.store.store import TokenStore
from bert_jax.metrics import run_records
from bert_jax.training import per_example
from bert_jax.training.eval_setting import OWN, EvalSetting
from bert_jax.training.per_example import PerExample

DOCUMENTS, EXAMPLES = 40, 200
CHECKPOINT = "checkpoint.json"  # the metadata of the only one
Change = Callable[[dict[str, Any], dict[str, Any]], None]


class MadeRuns:
    """An ablation whose runs are all trained and measured; `config_of` and `about_of` are files."""

    def __init__(
        self, folder: Path, store: TokenStore, monkeypatch: pytest.MonkeyPatch, **options: Any
    ):
        self.workdir, self.store = folder / "A", store
        self.dir = AblationDir.open(self.workdir)
        self.file = ablated.write(folder, **options)
        values = plain(execute(self.file)) | {"store": str(store.path)}
        ablation, self.planned = budget.equalize_budgets(
            spec.parse_ablation(values), {str(store.path): store}
        )
        self.ablation, self.runs = ablation, spec.runs(ablation)
        record.claim(self.dir, ablation)
        for number, run in enumerate(self.runs):
            self._make(run, number)
        monkeypatch.setattr(catalog, "complete_steps", self._steps)
        monkeypatch.setattr(catalog, "read_meta", lambda place, _: _read(place.parent))

    def _make(self, run: spec.Run, number: int) -> None:
        data = {"tokenizer": self.store.tokenizer_digest, "train": self.store.train.digest,
                "held_out": self.store.held_out.digest, "rows_per_epoch": [7]}  # fmt: skip
        path = self.path(run.name) / "config.json"
        known = {"config": recorded(run.config), "data": data, "run_id": f"{number:016x}"}
        known |= {"versions": {"jax": "0.9"}, "devices": {"kind": "cpu", "mesh": {"data": 1}}}
        self._describe(path.parent, known)
        self.record(run)
        rng = np.random.default_rng(number)
        document = np.repeat(np.arange(DOCUMENTS), EXAMPLES // DOCUMENTS)
        loss = np.random.default_rng(5).gamma(3.0, 2.0, EXAMPLES) + rng.normal(0, 0.1, EXAMPLES)
        count = np.ones(EXAMPLES, np.float32)
        sums = {"mlm": {"loss": loss.astype(np.float32), "count": count, "correct": count}}
        phase = run.config.phases[-1]
        forms = {OWN: EvalSetting.of(run.config, phase)}
        for name in map(self.ablation.form, self.ablation.texts):
            forms[name] = EvalSetting.parse(name, phase.seq_length)
        one = PerExample(document, (document % 2).astype(np.uint16), sums)
        metrics = {"mlm/loss": float(loss.mean()), "mlm/baseline_loss": 7.0, "mlm/accuracy": 0.3}
        about = {
            "run_id": known["run_id"], "step": run.config.total_steps, "seconds": 1.0,
            "bigram_loss": 5.5, "held_out": data["held_out"], "sources": list(self.store.sources),
            "forms": {k: {"settings": v.settings(), "metrics": metrics} for k, v in forms.items()},
        }  # fmt: skip
        per_example.write(f"{path.parent}.npz", dict.fromkeys(forms, one), about)
        for measure in self.ablation.tasks:
            self._fine_tune(run, measure, f"f{number:015x}")

    def record(self, run: spec.Run) -> None:
        """Writes the records of a run that spent what was planned."""
        spent, steps = self.planned[run.variant], run.config.total_steps
        padding = 1 - spent.real_tokens / spent.positions
        logged = range(run.config.log_every_steps, steps + 1, run.config.log_every_steps)
        lines = [run_records.line("train", step, 0, {"padding": padding}) for step in logged]
        (self.path(run.name) / "metrics.jsonl").write_text("".join(lines))

    def _fine_tune(self, run: spec.Run, measure: str, run_id: str) -> None:
        values, place = self.ablation.values, Path(self.dir.run(run, measure).path)
        start = str(self.dir.run(run))
        model = run.config.with_model_of(run.config.phases[-1]).model
        config = tasks.config_of(values, measure, model, start, run.seed)
        files = record.read_record(self.dir)["task_files"][measure.removeprefix(tasks.PREFIX)]
        data = {"tokenizer": self.store.tokenizer_digest, **files}
        known = {"config": recorded(config), "data": data, "run_id": run_id}
        self._describe(place, known)
        loss = np.random.default_rng(run.seed).gamma(3.0, 0.2, DOCUMENTS).astype(np.float32)
        name, count = "single_label_classification", np.ones(DOCUMENTS, np.float32)
        sums = {name: {"loss": loss, "count": count, "correct": count}}
        one = PerExample(np.arange(DOCUMENTS), np.zeros(DOCUMENTS, np.uint16), sums)
        metrics = {f"{name}/loss": float(loss.mean()), f"{name}/baseline_loss": 0.69}
        form = f"task/{config.task.name}"
        about = {"run_id": run_id, "step": config.total_steps, "seconds": 1.0,
                 "held_out": files["held_out"], "sources": [],
                 "forms": {form: {"settings": {}, "metrics": metrics}}}  # fmt: skip
        per_example.write(f"{place}.npz", {form: one}, about)

    def _describe(self, folder: Path, known: dict[str, Any]) -> None:
        """Writes config.json, and its copy in the only checkpoint."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("config.json", CHECKPOINT):
            (folder / name).write_text(json.dumps(known))

    def _steps(self, checkpoints: Any) -> list[int]:
        if not (checkpoints.parent / CHECKPOINT).exists():
            return []
        return [_read(checkpoints.parent)["config"]["phases"][0]["steps"]]

    def path(self, name: str) -> Path:
        return self.workdir / "runs" / name

    def change_config(self, name: str, change: Callable[[dict[str, Any]], None]) -> None:
        """Changes config.json of a run, of which its only checkpoint has a copy."""
        known = _read(self.path(name))
        change(known)
        self._describe(self.path(name), known)

    def change_values(
        self, name: str, change: Callable[[dict[str, Any], dict[str, PerExample]], None]
    ) -> None:
        """Changes the file of examples of a run."""
        path = f"{self.path(name)}.npz"
        values, about = per_example.read_losses(path)
        change(about, values)
        per_example.write(path, values, about)

    def results(self) -> results.Results:
        known = record.read_record(self.dir)
        return results.read_results(self.ablation, self.dir, self.runs, self.planned, known)


def _read(folder: Any) -> dict[str, Any]:
    known: dict[str, Any] = json.loads((folder / CHECKPOINT).read_text())
    return known
